"""Cleaning: the rules of clean-corpus-n to the line, and the rules of our own."""

import pickle
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_nmt.preparation import cleaning
from hvd_nmt.preparation.cleaning import Cleaner, CleaningRules

LANGUAGES = ("en", "de")
MOSES = CleaningRules(clean="moses")
NONE = CleaningRules(clean="none")

# perlrecharclass, "Whitespace": what \s matches in a Unicode string since Perl 5.18.
PERL_SPACES = {
    0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
    0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
}  # fmt: skip
TO_SPACE = dict.fromkeys(PERL_SPACES, " ")
CONTROLS = {*range(0x20), *range(0x7F, 0xA0), 0xFEFF}
ODD = [chr(code) for code in sorted(PERL_SPACES)] + list("\x00\x01\x1b\x1c\x1f\x7f\x80\x9f\ufeff")
ODD += ["\u200b", "\u180e", "\u00ad", "\u2581", "|", "||", " | ", "\U0001f600", "e\u0301"]


def moses(corpus):
    """What `clean-corpus-n.perl` does, by what is written about it: [(words..., words...) or None].

    A line ends at LF. The separator "|" is dropped. White space is normalised, empty lines go, then
    those out of the range of words, out of the ratio and with a word that crashes the aligner.
    """
    for pair in corpus:
        table = TO_SPACE | {ord("|"): None}
        sides = [list(filter(None, line.translate(table).split(" "))) for line in pair]
        counts = [len(words) for words in sides]
        keep = (
            min(counts) >= 1
            and max(counts) <= 80
            and max(counts) / min(counts) <= 9
            and max(len(word) for words in sides for word in words) <= 1000
        )
        yield tuple(sides) if keep else None


def hard_pairs(n_pairs, seed=1):
    """Pairs at and around every limit, with all that is odd in them."""
    chance = random.Random(seed)
    words = ["a", "the", "Haus", "über", "한국어"]
    long_words = ["x" * 999, "x" * 1000, "x" * 1001, "ß" * 1001]
    gaps = [" "] * (2 * len(ODD)) + ODD
    counts = [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 18, 19, 27, 28, 79, 80, 81, 82]

    def line(count):
        pairs = zip(chance.choices(gaps, k=count), chance.choices(words, k=count), strict=True)
        parts = [gap + word for gap, word in pairs]
        if parts and chance.random() < 0.01:
            parts[-1] += chance.choice(long_words)
        edges = chance.choices(["", " ", "\t", "\r", "  ", *ODD], k=2)
        return edges[0] + "".join(parts)[1:] + edges[1]

    for _ in range(n_pairs):
        count = chance.choice(counts[:12]) if chance.random() < 0.9 else chance.choice(counts)
        near = chance.choice([count, count, 9 * count, 9 * count + 1, chance.choice(counts)])
        pair = line(count), line(min(near, 83))
        yield pair if chance.random() < 0.5 else pair[::-1]


def test_counts_agree_with_moses_on_hard_lines():
    corpus = [*hard_pairs(25_000)]
    cleaner = Cleaner(MOSES, LANGUAGES)
    rules = Counter()
    for pair, expected in zip(corpus, moses(corpus), strict=True):
        rule, cleaned = cleaner(*pair)
        rules[rule] += 1
        # Moses keeps pairs of which only control characters are left.
        assert (expected is None) == (rule not in (None, cleaning.ONLY_CONTROLS)), pair
        if rule is None:
            assert cleaned == tuple(controls_as_spaces(" ".join(side)) for side in expected)
    found = (cleaning.ONLY_CONTROLS, cleaning.EMPTY, cleaning.TOO_MANY_WORDS, cleaning.WORD_RATIO,
             cleaning.WORD_TOO_LONG)  # fmt: skip
    assert all(rules[rule] for rule in found)
    assert rules[None] > 4_000


def controls_as_spaces(line):
    """The policy of data/text.py, in other words than there; spaces collapsed if it changed one."""
    changed = line.translate(dict.fromkeys(CONTROLS, " "))
    return line if changed == line else " ".join(filter(None, changed.split(" ")))


MORE = CleaningRules("moses", remove_copies=True, max_character_ratio=3, min_script_share=0.5)
FEW_WORDS = CleaningRules("moses", min_words=2, max_words=3, max_word_ratio=0, longest_word=0)


@pytest.mark.parametrize(
    ("rules", "source", "target", "rule"),
    [
        (MOSES, "a", "\u3000\u2028\x85", cleaning.EMPTY),
        (MOSES, "\x1c", "c", cleaning.ONLY_CONTROLS),
        (MOSES, "w", "w " * 10, cleaning.WORD_RATIO),
        (MOSES, "x" * 600 + "\x01" + "y" * 600, "w", cleaning.WORD_TOO_LONG),
        (FEW_WORDS, "a b", "c", cleaning.TOO_FEW_WORDS),
        (FEW_WORDS, "a b c d", "c d", cleaning.TOO_MANY_WORDS),
        (FEW_WORDS, "a b", "x" * 5000 + " y", None),
        (NONE, "\x01 ", "c", cleaning.EMPTY),
        (NONE, "a", "\u3000", cleaning.EMPTY),
        (NONE, " \u200b ", "c", cleaning.EMPTY),
        (NONE, "a", "\u2581", cleaning.EMPTY),
        (MORE, "OK", "OK", cleaning.COPY),
        (MORE, "abc", "defghijkl", None),
        (MORE, "abc", "defghijklm", cleaning.CHARACTER_RATIO),
        (MORE, "Приве", "hello", cleaning.WRONG_SCRIPT),
        (MORE, "hello", "Приве", cleaning.WRONG_SCRIPT),
        (MORE, "hello", "Größe 日", None),
        (MORE, "12:30", "12.30", None),  # no letters, nothing to say against it
    ],
)
def test_rules_by_their_names(rules, source, target, rule):
    assert Cleaner(rules, LANGUAGES)(source, target)[0] == rule


def test_without_moses_spaces_and_bars_stay():
    kept = Cleaner(NONE, LANGUAGES)(" a|  b\t", "c " * 200)
    assert kept == (None, (" a|  b ", "c " * 200))


@settings(deadline=None)
@given(st.text(), st.text())
def test_what_is_kept_is_clean_and_stays(source, target):
    cleaner = pickle.loads(pickle.dumps(Cleaner(MOSES, LANGUAGES)))
    rule, cleaned = cleaner(source, target)
    if rule is None:
        for line in cleaned:
            assert line == " ".join(filter(None, line.split(" "))) != ""
            assert not any(c < " " or "\x7f" <= c < "\xa1" or c in "|\u2028" for c in line)
        assert cleaner(*cleaned)[1] == cleaned


def test_keys_are_the_same_everywhere():
    keys = cleaning.keys([("a", "b"), ("b", "a"), ("a", "a"), ("", ""), ("ä", "日")])
    assert keys.dtype == np.uint64
    assert keys.shape == (5, 2)
    assert keys[0, 0] == keys[1, 1] == keys[2, 0] == 3405396810240292928
    assert len(set(cleaning.pair_keys(keys).tolist())) == 5
    assert cleaning.keys([]).shape == (0, 2)


@settings(deadline=None)
@given(st.lists(st.integers(0, 30)), st.booleans())
def test_duplicates_and_leaks(numbers, leaking):
    """What a plain set finds."""
    held_out = {"dev": cleaning.keys([("7", "x")]), "test": cleaning.keys([("y", "z")])}
    rules = CleaningRules(remove_duplicates=True, remove_leaks=leaking)
    pairs = [(str(number), "same") for number in numbers]
    found = cleaning.repeated(rules, cleaning.keys(pairs), held_out)
    for index, pair in enumerate(pairs):
        expected = "duplicate" if pair in pairs[:index] else ""
        assert found[index] == ("sentence of dev" if leaking and pair[0] == "7" else expected)


def test_keys_are_of_what_is_read():
    """Space, width, composition and what nobody sees make no other sentence; case does."""
    same = ["Größe 10 m", "Gro\u0308ße 10\u00a0m", "Größe  １０ m", "Grö\u00adße 10 m\u200b"]
    assert len(set(cleaning.keys([(line, "") for line in same])[:, 0].tolist())) == 1
    others = [same[0], "größe 10 m", "می\u200cروم", "میروم", "好。", "好"]
    assert len(set(cleaning.keys([(line, "") for line in others])[:, 0].tolist())) == 6


def test_leaks_on_either_side():
    held_out = {"dev": cleaning.keys([("a", "A"), ("b", "B")]), "test": cleaning.keys([("c", "C")])}
    train = cleaning.keys([("a", "x"), ("x", "B"), ("A", "a"), ("c", "C"), ("x", "y")])
    found = cleaning.repeated(CleaningRules(remove_leaks=True), train, held_out)
    assert found.tolist() == ["sentence of dev"] * 3 + ["sentence of test", ""]
    assert not any(cleaning.repeated(CleaningRules(), train, held_out))
