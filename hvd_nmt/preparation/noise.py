"""Noise in sentence pairs: capitals, typing errors, spaces, marks that are missing, emoji.

Only words of letters are misspelled, with marks at their end left alone, so that addresses and
numbers stay. Doubled spaces are no noise here: SentencePiece makes them one.

Source of the kinds and of their application to one side or both: OpusTrainer (Burchell et al.
2023), https://github.com/hplt-project/OpusTrainer.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass
from itertools import takewhile

from hvd_nmt.common.errors import ConfigError

ADDITIONS = (
    *"😀😂😊😍😢😎👍🙏🎉🔥💡⭐",
    "https://www.example.com/", "http://example.org/news", "www.example.net",
    "https://example.com/a?id=42", "info@example.org", "https://example.net/2024/report.html",
)  # fmt: skip
"""what may be put at an end of both sides"""
_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_BESIDE = {key: row[max(i - 1, 0) : i] + row[i + 1 : i + 2] for row in _KEYS
           for i, key in enumerate(row)}  # fmt: skip
_ADDRESS = re.compile(r"[@/_]|\w[.!?…。！？]\w")
_FINAL_MARK = re.compile(r"(?<=..)[.!?…。！？]$")
_WORD = re.compile(r"([^\W\d_]{3,})[^\w\s]*")


@dataclass(frozen=True)
class Noise:
    """How often which noise is in the copies of training pairs; each is a share in [0, 1)."""

    upper_case: float = 0.0
    """share of the pairs that are written in capitals, on both sides"""
    title_case: float = 0.0
    """share of the pairs in which each word gets a capital, on both sides"""
    no_punctuation: float = 0.0
    """share of the pairs that lose their last punctuation mark, on both sides"""
    typos: float = 0.0
    """share of the words of a source with a typing error: two letters change places, one is missing
    or doubled, or is that of the key beside it"""
    spaces: float = 0.0
    """share of the words of a source that are written as one with the word before, or as two"""
    emoji: float = 0.0
    """share of the pairs that get an emoji or a web address at one end, the same on both sides, so
    that the model learns to copy it"""

    def __post_init__(self) -> None:
        for name, rate in vars(self).items():
            if not 0 <= rate < 1:
                flag = name.replace("_", "-")
                raise ConfigError(f"--noise.{flag} is {rate:g}: give a share in [0, 1).")
        if self.upper_case + self.title_case > 1:
            raise ConfigError(
                "--noise.upper-case and --noise.title-case share the pairs: together they must be "
                "at most 1."
            )

    @property
    def is_on(self) -> bool:
        """Whether any pair is changed."""
        return any(astuple(self))


def noised(
    pair: tuple[str, str], noise: Noise, draw: Callable[[], float],
    symbols: Collection[str] = (), additions: Sequence[str] = ADDITIONS,
) -> tuple[str, str]:  # fmt: skip
    """A clean pair with noise.

    Args:
        draw: gives chance in [0, 1), always the same for the same copy of a pair.
        symbols: pieces that a vocabulary cuts out of text, tags among them: words with one stay.
        additions: some of `ADDITIONS`, those that the vocabularies can write.
    """
    case, loses_mark, adds = draw(), draw() < noise.no_punctuation, draw() < noise.emoji
    which, in_front = int(draw() * len(additions)), draw() < 0.5
    change: Callable[[str], str] = str
    if case < noise.upper_case + noise.title_case:
        change = str.upper if case < noise.upper_case else _titled
    sides = []
    for side, line in enumerate(pair):
        words = (_FINAL_MARK.sub("", line) if loses_mark else line).split()
        fixed = {word for word in words if any(symbol in word for symbol in symbols)}
        if side == 0:
            words = _misspelled(words, noise, draw, fixed)
        words = [w if w in fixed or _ADDRESS.search(w) else change(w) for w in words]
        if adds and additions:
            tags = len(list(takewhile(symbols.__contains__, words)))
            words.insert(tags if in_front else len(words), additions[which])
        sides.append(" ".join(words))
    return sides[0], sides[1]


def _misspelled(
    words: Sequence[str], noise: Noise, draw: Callable[[], float], fixed: Collection[str]
) -> list[str]:
    found: list[str] = []
    for word in words:
        match = _WORD.fullmatch(word)
        if not match or word in fixed:
            found.append(word)
            continue
        letters = len(match[1])
        if draw() < noise.typos:
            word = _mistyped(word, int(draw() * (letters - 1)), draw)
        if draw() >= noise.spaces:
            found.append(word)
        elif draw() < 0.5 and found and found[-1].isalpha() and found[-1] not in fixed:
            found[-1] += word
        else:
            at = 1 + int(draw() * (letters - 2))
            found += [word[:at], word[at:]]
    return found


def _mistyped(word: str, at: int, draw: Callable[[], float]) -> str:
    """A word with an error at one of its letters, which is not the last one."""
    before, letter, following, rest = word[:at], word[at], word[at + 1], word[at + 2 :]
    kind = int(draw() * 4)
    if kind == 0:
        return before + following + letter + rest
    if kind == 1:
        return before + following + rest
    if kind == 2:
        return before + 2 * letter + following + rest
    keys = _BESIDE.get(letter, letter)
    return before + keys[int(draw() * len(keys))] + following + rest


def _titled(word: str) -> str:
    return word[:1].upper() + word[1:]
