"""Which training pairs stay: the rules of Moses' clean-corpus-n, and more that are off by default.

The first rules are those of `clean-corpus-n.perl CORPUS L1 L2 OUT 1 80`, which made the corpus of
the OpenSeq2Seq recipe. The counts agree with that script line by line, but for scripts without
blanks between words, whose sentences are words to it. It drops every "|", and runs of white space
(`\\s` of Perl) become one space. Other control characters and a byte order mark are letters to it:
only after its rules they become spaces, as in `hvd_nmt.data.text`. A side of which nothing visible
remains then (U+200B is invisible) goes by a further rule, `ONLY_CONTROLS`.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal, final

import numpy as np

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.schema import NaturalFloat, NaturalInt, PositiveInt, require_limits
from hvd_nmt.data import language
from hvd_nmt.data.sentencepiece_model import SPACE, without_tags
from hvd_nmt.data.text import plain
from hvd_nmt.preparation.normalization import normalizer

EMPTY = "a side is empty"
TOO_MANY_WORDS = "too many words"
TOO_FEW_WORDS = "too few words"
WORD_RATIO = "word ratio"
WORD_TOO_LONG = "word too long"
ONLY_CONTROLS = "only control characters"
COPY = "source is target"
CHARACTER_RATIO = "character ratio"
WRONG_SCRIPT = "wrong script"
DUPLICATE = "duplicate"

Pair = tuple[str, str]

_SPACES = re.compile("[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_WORD = re.compile(r"\w")
_ODD = np.uint64(0x9E3779B97F4A7C15)  # any large odd number: multiplying by it loses nothing


@dataclass(frozen=True)
class CleaningRules:
    """Which training pairs are removed."""

    clean: Literal["auto", "moses", "none"] = "auto"
    """rules for pairs that are removed; moses: those of clean-corpus-n; none: only empty sides and
    what other options ask for; auto: moses for a --dataset, none for other text"""
    min_words: NaturalInt = 1
    """moses: fewest words of a side"""
    max_words: PositiveInt = 80
    """moses: most words of a side"""
    max_word_ratio: NaturalFloat = 9.0
    """moses: most words of one side for each word of the other; 0: any"""
    longest_word: NaturalInt = 1000
    """moses: most characters of a word; 0: any"""
    max_character_ratio: NaturalFloat = 0.0
    """most characters of one side for each character of the other; 0: any"""
    min_script_share: NaturalFloat = 0.0
    """least share of letters in the language's script, 0: any; on each side, 0 to 1"""
    remove_copies: bool = False
    """remove pairs whose source and target are the same text"""
    remove_duplicates: bool = False
    """keep only the first of equal pairs"""
    remove_leaks: bool = False
    """remove training pairs with a sentence of dev or test"""

    def __post_init__(self) -> None:
        require_limits(self)


_USUAL: dict[str, Any] = {
    "clean": "moses", "max_character_ratio": 9.0, "min_script_share": 0.5, "remove_copies": True,
}  # fmt: skip


@final
class Cleaner:
    """The rules that one pair alone decides; can be pickled. ConfigError: an unknown script.

    A new rule is a field of `CleaningRules` that is off by default, a name, and in `__call__`:

        if rule is None and rules.remove_shouts and source.isupper():
            rule = SHOUT
    """

    def __init__(self, rules: CleaningRules, languages: tuple[str, str]) -> None:
        self._rules = rules
        self._letters = []
        if rules.min_script_share:
            try:
                self._letters = [*map(language.letters, languages)]
            except ConfigError as error:
                raise ConfigError(f"--min-script-share: {error}") from None

    def __call__(self, source: str, target: str) -> tuple[str | None, Pair]:
        """The rule that removes a raw pair (None: it stays), and the pair as far as cleaned."""
        rules = self._rules
        if rules.clean != "moses":
            source, target = plain(source), plain(target)
            rule = EMPTY if _is_empty(source) or _is_empty(target) else None
        else:
            source, target = (_collapsed(side.replace("|", "")) for side in (source, target))
            rule = self._moses(source, target)
            if rule is None and not (source.isprintable() and target.isprintable()):
                source, target = _collapsed(plain(source)), _collapsed(plain(target))
            if rule is None and (_is_empty(source) or _is_empty(target)):
                rule = ONLY_CONTROLS
        if rule is None and rules.remove_copies and source == target:
            rule = COPY
        if rule is None and _out_of(rules.max_character_ratio, len(source), len(target)):
            rule = CHARACTER_RATIO
        if rule is None:
            for line, known in zip((source, target), self._letters, strict=False):
                if any(map(str.isalpha, {*line} - known)):
                    are_known = [letter in known for letter in line if letter.isalpha()]
                    if sum(are_known) < rules.min_script_share * len(are_known):
                        rule = WRONG_SCRIPT
        return rule, (source, target)

    def _moses(self, source: str, target: str) -> str | None:
        """The script's rules, in its order; words stand between spaces."""
        rules = self._rules
        if not source or not target:
            return EMPTY
        words, target_words = language.words(source), language.words(target)
        if words > rules.max_words or target_words > rules.max_words:
            return TOO_MANY_WORDS
        if words < rules.min_words or target_words < rules.min_words:
            return TOO_FEW_WORDS
        if _out_of(rules.max_word_ratio, words, target_words):
            return WORD_RATIO
        most = rules.longest_word
        for line in (source, target):
            if 0 < most < len(line) and max(map(len, line.split(" "))) > most:
                return WORD_TOO_LONG
        return None


def usual(rules: CleaningRules, languages: tuple[str, str]) -> dict[str, Cleaner]:
    """One usual rule each that `rules` do not have, by the option that asks for it."""
    off, cleaners = CleaningRules(clean="none"), {}
    for name, value in _USUAL.items():
        if getattr(rules, name) in ("auto", getattr(off, name)):
            option = f"--{name.replace('_', '-')}" + (f" {value}" if value is not True else "")
            with suppress(ConfigError):  # a language of which no script is known
                cleaners[option] = Cleaner(replace(off, **{name: value}), languages)
    return cleaners


def repeated(
    rules: CleaningRules, keys: np.ndarray, held_out: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The rules by which pairs go because of others: object [pairs], names, "" where a pair stays.

    Args:
        keys: of the pairs that no other rule removes.
        held_out: the `keys` of each other part, by its name.
    """
    names = np.full(len(keys), "", object)
    if rules.remove_duplicates:
        names[:] = DUPLICATE
        names[np.unique(pair_keys(keys), return_index=True)[1]] = ""
    if rules.remove_leaks:
        for part, of_part in held_out.items():
            names[leaks(keys, of_part).any(axis=1)] = f"sentence of {part}"
    return names


def keys(pairs: Sequence[Pair], tags: Sequence[str] = ()) -> np.ndarray:
    """A hash of each side of each pair, uint64 [pairs, 2], the same on every host.

    Two of five million different texts share one with a probability of less than one in a million.
    Neither `tags` in front of a source make another sentence of it, nor the width of characters,
    kinds of space, what is invisible, or how a letter with marks is written.
    """
    digests = [
        blake2b(_folded(line).encode(), digest_size=8).digest()
        for source, target in pairs
        for line in (without_tags(source, tags) if tags else source, target)
    ]
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


def pair_keys(keys: np.ndarray) -> np.ndarray:
    """One hash for each pair, uint64 [pairs], of `keys` [pairs, 2]."""
    return keys[:, 0] * _ODD ^ keys[:, 1]


def leaks(keys: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Which sides of pairs are sentences of another part, of either side: bool [pairs, 2].

    By the `keys` of both. Of two directions in one model one side is the other's.
    """
    known = np.append(np.unique(held_out), np.uint64(0))
    return known[np.searchsorted(known[:-1], keys)] == keys


def _folded(line: str) -> str:
    if not line.isprintable():  # it has other kinds of space, or invisible characters
        line = normalizer("visible")(line)
    return _collapsed(unicodedata.normalize("NFKC", line))


def _is_empty(line: str) -> bool:
    """Whether normalisation leaves nothing of a line, for example of U+200B alone.

    `encoding.removed_by_length` is exact for each vocabulary, but too late for `removed.tsv.gz`.
    """
    return not _WORD.search(line) and not normalizer("visible")(line).strip(f" {SPACE}")


def _collapsed(line: str) -> str:
    if not line.isprintable():  # of all white space, only U+0020 is printable
        line = _SPACES.sub(" ", line)
    if "  " in line or line[:1] == " " or line[-1:] == " ":
        return " ".join(filter(None, line.split(" ")))
    return line


def _out_of(ratio: float, one: float, other: float) -> bool:
    return ratio > 0 and (one / other > ratio or other / one > ratio)
