"""The embedded corpus: its text is pinned."""

import hashlib

from hvd_nmt.data.text import read_lines
from hvd_nmt.preparation import embedded, options


def test_the_text_is_that_of_version_0_1_0(tmp_path):
    """A directory that 0.1.0 prepared holds this text, so the request in its manifest is ours."""
    of_0_1_0 = {
        "corpus": "embedded", "languages": ["en", "de"], "pieces": 4000, "max_length": 128,
        "too_long": "skip", "dev_size": 0, "seed": 1,
        "words": {"babel": "2.18.0", "num2words": "0.5.14"},
        "generator": "a8792c521a621ab991acf6760952ed2f3acb1a82d9451949eb0130d0fac64e03",
    }  # fmt: skip
    wanted = options.request(options.PreparationOptions(tmp_path / "x", dataset="embedded"), [])
    assert wanted == of_0_1_0 | {"normalization_rules": ["visible", "nfc"]}
    text = {
        part: list(zip(*map(read_lines, paths), strict=True))
        for part, paths in embedded.unpack(tmp_path).items()
    }
    digest = hashlib.sha256(repr(text).encode()).hexdigest()
    assert digest == "c599636519cc36ff03d531293a13edd6d952b5abd68c387bda60fb34bf23873b"
