"""Requests: what a manifest records, and that directories of earlier versions stay valid."""

import json

import pytest

from hvd_nmt.config import command_line
from hvd_nmt.preparation.options import PreparationOptions, find_corpora
from hvd_nmt.preparation.request import is_met, request

FILES = {"s": "s\n", "t": "t\n", "ds": "ds\n", "dt": "dt\n", "b.tsv": "0.9\ta\tb\n",
         "spm.model": "target", "spm.source.model": "source"}  # fmt: skip
YAML = """
corpora:
  - {name: a, file: b.tsv, columns: {source: 2, target: 3, min_scores: {1: 0.5}}, dev_size: 3,
     date: 2016-08, weight: 2}
  - {name: b, source: s, target: t, target_language: fr, tags: [<2fr>],
     cleaning: {remove_duplicates: true}, dev: {source: ds, target: dt}}
"""
TRAIN = ["cbc80bb5c0c0f8944bf73b3a429505ac5cde16644978bc9a1e74c5755f8ca556",
         "fe8edeeb98cc6d3b93cf2d57000254b84bd9eba34b4df7ce4b87db8b937b7703"]  # fmt: skip
DEV = ["ea6f856357f5c351106dc9073376898b9530444250457a3a0984c3c63beb4510",
       "6c23ad801e0d8f4a54fbf5fa40697c02805db3802e5c169a5394441789e49aca"]  # fmt: skip
TABLE = 2 * ["f0ff9d043f651ce07c66e9d11e6a3c8fe9e6b000eeaae28c956f938e154f5591"]
RULES = {
    "clean": "none", "min_words": 1, "max_words": 80, "max_word_ratio": 9.0, "longest_word": 1000,
    "max_character_ratio": 0.0, "min_script_share": 0.0, "remove_copies": False,
    "remove_duplicates": False, "remove_leaks": False,
}  # fmt: skip
BASE = {"languages": ["en", "de"], "max_length": 128, "too_long": "skip", "dev_size": 0}
USUAL = {"normalization_rules": ["visible", "nfc"]}
OF_FILES = BASE | {"corpus": "files", "pieces": 8000, "inputs": {"train": TRAIN, "dev": DEV}}
OF_VOCABULARY = OF_FILES | {
    "vocabulary": "34a04005bcaf206eec990bd9637d9fdb6725e0a0c0d4aebf003f17f4c956eb5c"
}
OF_VOCABULARIES = OF_VOCABULARY | {
    "source_vocabulary": "41cf6794ba4200b839c53531555f0f3998df4cbb01a4d5cb0b94e3ca5e23947d"
}
OF_0_1_0 = BASE | {
    "corpus": "embedded", "pieces": 4000, "seed": 1,
    "words": {"babel": "2.18.0", "num2words": "0.5.14"},
    "generator": "a8792c521a621ab991acf6760952ed2f3acb1a82d9451949eb0130d0fac64e03",
}  # fmt: skip
MOSES = OF_FILES | USUAL | {
    "max_length": 64, "rules": RULES | {"clean": "moses", "max_words": 50}, "not_utf8": "skip",
}  # fmt: skip
ALL = OF_FILES | {
    "too_long": "truncate", "vocabulary_sample": 1000, "source_pieces": 96,
    "learning": {"vocabulary_type": "unigram", "character_coverage": 1.0, "byte_fallback": True,
                 "user_defined_symbols": ["<ph>"], "tags": ["<bt>"]},
    "normalization_rules": ["nmt_nfkc", "nmt_nfkc"],
    "copying": {"bpe_dropout": 0.1, "copies": 4, "seed": 1, "noise": {
        "upper_case": 0.0, "title_case": 0.0, "no_punctuation": 0.0, "typos": 0.01, "spaces": 0.0,
        "emoji": 0.0}},
}  # fmt: skip
SCRIPTS = RULES | {"min_script_share": 0.5}
MIXED = BASE | USUAL | {"corpus": "files", "pieces": 8000, "rules": SCRIPTS, "corpora": [
    {"columns": {"train": "Columns(source=2, target=3, min_scores={1: 0.5}, quoting='none')"},
     "dev_size": 3, "name": "a", "languages": ["en", "de"], "rules": SCRIPTS, "tags": [],
     "weight": 2.0, "date": "2016-08", "n_best": False, "inputs": {"train": [TABLE]}},
    {"name": "b", "languages": ["en", "fr"], "rules": SCRIPTS | {"remove_duplicates": True},
     "tags": ["<2fr>"], "weight": "as is", "date": "", "n_best": False,
     "inputs": {"train": [TRAIN], "dev": [DEV]}},
]}  # fmt: skip
BOTH = "--train-source s --train-target t --dev-source ds --dev-target dt"


@pytest.fixture(autouse=True)
def _in_a_directory_of_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in (FILES | {"c.yaml": YAML}).items():
        (tmp_path / name).write_text(text)


def options_of(words):
    return command_line.options(PreparationOptions, "x", "", ["--out", "out", *words.split()])


def wanted_by(words):
    options = options_of(words)
    return request(options, find_corpora(options))


def meets(made, words):
    return is_met(options_of(words), wanted_by(words), json.loads(json.dumps(made)))


@pytest.mark.parametrize(
    ("made", "words", "others"),
    [
        (OF_0_1_0, "--dataset embedded", ["--normalization-rule nfc", "--vocabulary-size 8000"]),
        (OF_0_1_0, "--dataset embedded --normalization-rule nmt_nfkc --source-normalization-rule "
         "nmt_nfkc", []),
        (OF_0_1_0 | USUAL, "--dataset embedded", ["--normalization-rule nmt_nfkc"]),
        (MOSES, f"{BOTH} --clean moses --max-words 50 --max-length 64 --not-utf8 skip",
         ["--max-words 51", "--max-length 65", "--not-utf8 stop", "--remove-leaks",
          "--train-source ds", "--target-language fr", "--dev-target t"]),
        (ALL, f"{BOTH} --normalization-rule nmt_nfkc --separate-vocabularies --too-long truncate "
         "--source-vocabulary-size 96 --vocabulary-type unigram --byte-fallback --tags <bt> "
         "--user-defined-symbols <ph> --vocabulary-sample 1000 --bpe-dropout 0.1 --copies 4 "
         "--noise.typos 0.01",
         ["--noise.emoji 0.1", "--copies 5", "--seed 2", "--tags <b>", "--no-byte-fallback",
          "--normalization-rule nfc", "--source-vocabulary-size 88", "--vocabulary-sample 0"]),
        (OF_VOCABULARY, f"{BOTH} --vocabulary spm.model",
         ["--vocabulary spm.source.model", "--source-vocabulary spm.source.model"]),
        (OF_VOCABULARIES, f"{BOTH} --vocabulary spm.model", ["--source-vocabulary spm.model"]),
        (MIXED, "--corpora c.yaml --min-script-share 0.5",
         ["--min-script-share 0.4", "--remove-copies"]),
    ],
)  # fmt: skip
def test_a_directory_of_an_earlier_version_is_done_by_the_same_settings_alone(made, words, others):
    assert meets(made, words)
    for more in others:
        assert not meets(made, f"{words} {more}"), more
        assert meets(wanted_by(f"{words} {more}"), f"{words} {more}")
    assert not meets(made | {"languages": ["en", "nl"]}, words)


@pytest.mark.parametrize(
    ("old", "new"),
    [("1: 0.5", "1: 0.6"), ("source: 2", "source: 1"), ("weight: 2", "weight: 3"),
     ("dev_size: 3", "dev_size: 4"), ("<2fr>", "<fr>"), ("{remove_duplicates: true}", "{}"),
     ("2016-08", "2016-09"), ("file: b.tsv", "file: s")],
)  # fmt: skip
def test_each_corpus_of_an_earlier_version_is_compared(tmp_path, old, new):
    (tmp_path / "c.yaml").write_text(YAML.replace(old, new))
    assert not meets(MIXED, "--corpora c.yaml --min-script-share 0.5")


def test_a_setting_that_a_version_did_not_know_is_at_its_default():
    """As if each rule that is off had been added after the directory was made."""
    words = f"{BOTH} --clean moses --max-words 50 --max-length 64 --not-utf8 skip"
    for rule in RULES.keys() - {"clean", "max_words"}:
        rules = {name: value for name, value in MOSES["rules"].items() if name != rule}
        assert meets(MOSES | {"rules": rules}, words)
    assert not meets(MOSES | {"rules": rules | {"new": True}}, words)


def test_a_request_holds_what_differs_from_the_defaults():
    assert wanted_by(f"{BOTH} --clean moses --max-words 50 --noise.typos 0.1 --tags <2de>") == {
        "format_version": 2, "corpus": "files", "languages": ["en", "de"], "pieces": 8000,
        "rules.clean": "moses", "rules.max_words": 50, "copying.noise.typos": 0.1,
        "learning.tags": ["<2de>"], "inputs.train": TRAIN, "inputs.dev": DEV,
    }  # fmt: skip
    first, second = wanted_by("--corpora c.yaml")["corpora"]
    assert first == {
        "name": "a", "languages": ["en", "de"], "weight": 2.0, "date": "2016-08", "dev_size": 3,
        "columns.train.source": 2, "columns.train.target": 3, "columns.train.min_scores.1": 0.5,
        "inputs.train": [TABLE],
    }  # fmt: skip
    assert second == {
        "name": "b", "languages": ["en", "fr"], "rules.remove_duplicates": True,
        "tags": ["<2fr>"], "inputs.train": [TRAIN], "inputs.dev": [DEV],
    }  # fmt: skip
