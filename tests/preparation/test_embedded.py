"""The embedded corpus: its text is pinned, and what a new text has to keep."""

import hashlib
import os
import re
import subprocess
import sys
import unicodedata

import pytest

from hvd_nmt.preparation import embedded, options


@pytest.fixture(scope="module")
def corpus():
    return embedded.generate(seed=1)


def test_the_text_is_that_of_version_0_1_0(corpus, tmp_path):
    """A directory that 0.1.0 prepared holds this text, so the request in its manifest is ours."""
    of_0_1_0 = {
        "corpus": "embedded", "languages": ["en", "de"], "pieces": 4000, "max_length": 128,
        "too_long": "skip", "dev_size": 0, "seed": 1,
        "words": {"babel": "2.18.0", "num2words": "0.5.14"},
        "generator": "a8792c521a621ab991acf6760952ed2f3acb1a82d9451949eb0130d0fac64e03",
    }  # fmt: skip
    assert options.request(options.Options(tmp_path / "x", corpus="embedded"), {}) == of_0_1_0
    digest = hashlib.sha256(repr(corpus).encode()).hexdigest()
    assert digest == "c599636519cc36ff03d531293a13edd6d952b5abd68c387bda60fb34bf23873b", (
        "the text has changed: give embedded.TEXT_VERSION another value"
    )


def test_parts_are_whole_held_out_and_clean(corpus):
    counts = {name: len(pairs) for name, pairs in corpus.items()}
    assert counts == {"train": 52_000, "dev": 500, "test": 500}
    pairs = [pair for part in corpus.values() for pair in part]
    assert len({english.casefold() for english, _ in pairs}) == 53_000
    for line in (line for pair in pairs for line in pair):
        assert line == " ".join(unicodedata.normalize("NFC", line).split())
        assert line[-1] in ".?!"
        assert line[0].isupper() or line[0].isdigit()
        assert not re.search(r"[{}\[\]@|_&]", line)
        assert 2 <= len(line.split()) <= 40


def test_same_in_two_processes_with_different_hash_seeds():
    code = (
        "import hashlib, sys; from hvd_nmt.preparation.embedded import generate\n"
        "assert 'tensorflow' not in sys.modules\n"
        "print(hashlib.sha256(repr(generate(7, 3000, 50, 50)).encode()).hexdigest())"
    )
    digests = []
    for hash_seed, locale in (("1", "C"), ("2", "de_DE.UTF-8")):
        env = os.environ | {"PYTHONHASHSEED": hash_seed, "LC_ALL": locale, "LANG": locale}
        out = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
        digests.append(out.strip())
    here = hashlib.sha256(repr(embedded.generate(7, 3000, 50, 50)).encode()).hexdigest()
    assert digests == [here, here]


def test_seeds_differ_and_held_out_parts_do_not_depend_on_train(corpus):
    other = embedded.generate(seed=2, train=1000)
    assert other["test"] != corpus["test"]
    smaller = embedded.generate(seed=1, train=1000)
    assert smaller["test"] == corpus["test"]
    assert smaller["dev"] == corpus["dev"]
    assert smaller["train"] == corpus["train"][:1000]


def test_german_without_known_mistakes(corpus):
    """Patterns that no correct sentence of this corpus can hold."""
    wrong = re.compile(
        r"\bin dem\b|\bzu (dem|der)\b|\bin das\b|\bnach (der|die|den) |\baus (die|der Iran)\b"
        r"|\beins (?!plus|minus|mal|ist|um)[A-ZÄÖÜ]|\b(million|milliarde)"
        r"|\bseit \w+ (Jahre|Monate|Tage)\b|\b(ein|einen|einem|einer) \w+(en|e) (Uhren)\b"
        r"|\bder (Mutter|Vater)|\bam [A-Z]\w+, \d"
    )
    for _, german in (pair for part in corpus.values() for pair in part):
        assert not wrong.search(german), german
