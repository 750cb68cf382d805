"""The embedded corpus: its text is pinned."""

import hashlib

from hvd_nmt.data.text import read_lines
from hvd_nmt.preparation import embedded


def test_the_text_is_that_of_version_0_1_0(tmp_path):
    """A directory of 0.1.0 has this text, so that `embedded.REQUEST` describes both."""
    text = {
        part: list(zip(*map(read_lines, paths), strict=True))
        for part, paths in embedded.unpack(tmp_path).items()
    }
    digest = hashlib.sha256(repr(text).encode()).hexdigest()
    assert digest == "c599636519cc36ff03d531293a13edd6d952b5abd68c387bda60fb34bf23873b"
