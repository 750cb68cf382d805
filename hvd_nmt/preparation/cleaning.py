"""Which training pairs stay: the rules of Moses' clean-corpus-n, and more that are off by default.

The first rules are those of `clean-corpus-n.perl CORPUS L1 L2 OUT 1 80`, with which the corpus of
the OpenSeq2Seq recipe was made; the counts agree with that script line by line. It drops every "|",
and runs of white space, which is what `\\s` is to Perl, become one space. Other control characters,
and a byte order mark, are letters to it: only after its rules they become spaces, as in
`hvd_nmt.data.text`. A side of which nothing is left then, or after SentencePiece's normalisation
(as of U+200B), goes by a rule of our own, `ONLY_CONTROLS`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, final

import numpy as np
import regex
import sentencepiece
from babel.core import get_global, parse_locale

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.schema import NaturalFloat, NaturalInt, PositiveInt, require_limits
from hvd_nmt.data.sentencepiece_model import without_tags
from hvd_nmt.data.text import plain

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
_LETTER = regex.compile(r"\p{L}")
_NORMALIZER = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
# ISO 15924 codes that stand for several scripts of Unicode
_JOINT_SCRIPTS = {
    "Hans": ("Hani",),
    "Hant": ("Hani",),
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
}
_ODD = np.uint64(0x9E3779B97F4A7C15)  # any large odd number: multiplying by it loses nothing


@dataclass(frozen=True)
class Rules:
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


@final
class Cleaner:
    """The rules that one pair alone decides; can be pickled. ConfigError: an unknown script."""

    def __init__(self, rules: Rules, languages: tuple[str, str]) -> None:
        self._rules = rules
        self._own_letters = [*map(_letters_of, languages)] if rules.min_script_share else []

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
            for line, own in zip((source, target), self._own_letters, strict=False):
                letters = len(_LETTER.findall(line))
                if letters and len(own.findall(line)) / letters < rules.min_script_share:
                    rule = WRONG_SCRIPT
        return rule, (source, target)

    def _moses(self, source: str, target: str) -> str | None:
        """The script's rules, in its order; words stand between spaces."""
        rules = self._rules
        if not source or not target:
            return EMPTY
        words, target_words = source.count(" ") + 1, target.count(" ") + 1
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


def repeated(rules: Rules, keys: np.ndarray, held_out: Mapping[str, np.ndarray]) -> np.ndarray:
    """The rules by which pairs go because of others: object [pairs], names, "" where a pair stays.

    Args:
        keys: of the pairs that no other rule removes.
        held_out: the `keys` of each other part, by its name.
    """
    found = np.full(len(keys), "", object)
    if rules.remove_duplicates:
        found[:] = DUPLICATE
        found[np.unique(pair_keys(keys), return_index=True)[1]] = ""
    if rules.remove_leaks:
        for part, of_part in held_out.items():
            found[leaks(keys, of_part).any(axis=1)] = f"sentence of {part}"
    return found


def keys(pairs: Sequence[Pair], tags: Sequence[str] = ()) -> np.ndarray:
    """A hash of each side of each pair, uint64 [pairs, 2], the same on every host.

    Two of five million different texts share one with a probability of less than one in a million.
    `tags` in front of a source make no other sentence of it.
    """
    digests = [
        blake2b(line.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for source, target in pairs
        for line in (without_tags(source, tags) if tags else source, target)
    ]
    return np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)


def pair_keys(keys: np.ndarray) -> np.ndarray:
    """One hash for each pair, uint64 [pairs], of `keys` [pairs, 2]."""
    return keys[:, 0] * _ODD ^ keys[:, 1]


def leaks(keys: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """Which sides of pairs are sentences of another part, by both `keys`: bool [pairs, 2]."""
    return np.stack([np.isin(keys[:, side], held_out[:, side]) for side in (0, 1)], axis=1)


def _is_empty(line: str) -> bool:
    """Whether normalisation leaves nothing of a line, for example of U+200B alone.

    `encoding.left_out` is exact for each vocabulary, but too late for `removed.tsv.gz`.
    """
    return not line.strip() or not (_WORD.search(line) or _NORMALIZER.normalize(line))


def _collapsed(line: str) -> str:
    if not line.isprintable():  # of all white space, only U+0020 is printable
        line = _SPACES.sub(" ", line)
    return " ".join(filter(None, line.split(" ")))


def _out_of(ratio: float, one: int, other: int) -> bool:
    return ratio > 0 and (one / other > ratio or other / one > ratio)


def _letters_of(language: str) -> regex.Pattern[str]:
    """Finds the letters that a text of a language may have: those of its script, or of none."""
    try:
        name, territory, script = parse_locale(language.replace("-", "_"))[:3]
        if script is None:
            likely = get_global("likely_subtags")
            script = parse_locale(likely.get(f"{name}_{territory}") or likely[name])[2]
    except (ValueError, KeyError):
        raise ConfigError(
            f"No script is known for the language {language!r}: give its code, such as en or "
            "pt_BR, or remove --min-script-share."
        ) from None
    scripts = (*_JOINT_SCRIPTS.get(script, (script,)), "Zyyy", "Zinh")  # common, inherited
    own = "".join(rf"\p{{Script={code}}}" for code in scripts)
    return regex.compile(rf"(?V1)[\p{{L}}&&[{own}]]")
