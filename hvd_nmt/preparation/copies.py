"""Copies of the training pairs that are cut and spelled differently: BPE-dropout and noise.

The same seed gives the same bytes on every host. Sources: Provilkov et al. 2020, "BPE-Dropout:
Simple and Effective Subword Regularization"; the kinds of noise and the sides that they change:
OpusTrainer (Burchell et al. 2023), https://github.com/hplt-project/OpusTrainer.
"""

import dataclasses
import math
import random
import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import chain, pairwise, takewhile

import numpy as np
import sentencepiece

from hvd_nmt.common.errors import DataError
from hvd_nmt.config import UNK
from hvd_nmt.config.schema import PositiveInt, Share, require_limits
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.language import capitalized, upper, without_mark
from hvd_nmt.data.sentencepiece_model import SPACE
from hvd_nmt.preparation import subwords

Ids = tuple[np.ndarray, np.ndarray]
"""sentences: their ids [tokens], one after the other, each ending with eos, and lengths [pairs]"""
_WAYS = 64
"""ways in which a word may be cut"""
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
_WORD = re.compile(r"([^\W\d_]{3,})[^\w\s]*")


@dataclasses.dataclass(frozen=True)
class Noise:
    """How often which noise is in the copies of training pairs."""

    upper_case: Share = 0.0
    """share of the pairs written in capitals, both sides"""
    title_case: Share = 0.0
    """share of the pairs in which each word gets a capital, on both sides"""
    no_punctuation: Share = 0.0
    """share of the pairs that lose the marks at their end; only where both sides have some"""
    typos: Share = 0.0
    """share of the source words with a typing error; a letter swapped, lost, doubled, another"""
    spaces: Share = 0.0
    """share of the source words written as one with the word before, or as two"""
    emoji: Share = 0.0
    """share of the pairs that get an emoji or a web address at one end, the same on both sides"""

    def __post_init__(self) -> None:
        require_limits(self, "noise.")

    @property
    def is_on(self) -> bool:
        """Whether any pair is changed."""
        return any(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True)
class Copying:
    """How the copies differ from the text, and how many there are."""

    bpe_dropout: Share = 0.0
    """share of subword merges refused at random, 0: none; 0.1 is usual (Provilkov et al. 2020)"""
    noise: Noise = dataclasses.field(default_factory=Noise)
    """noise in the training sentences"""
    copies: PositiveInt = 8
    """copies of the training sentences, for either; an epoch of training takes the next one"""
    seed: int = 1
    """seed of --bpe-dropout and --noise"""

    def __post_init__(self) -> None:
        require_limits(self)

    @property
    def is_on(self) -> bool:
        """Whether there are copies at all."""
        return self.bpe_dropout > 0 or self.noise.is_on


class Copier:
    """Makes copies of pairs with the vocabularies of source and target."""

    def __init__(
        self, models: Sequence[sentencepiece.SentencePieceProcessor], copying: Copying,
        languages: Sequence[tuple[str, str]] = (("", ""),), corpora: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """`languages` are those of source and target, by number of the corpus of each pair."""
        self._models, self._copying = models, copying
        self._languages, self._corpora = languages, corpora
        self._merges = [Merges(model, copying.bpe_dropout, copying.seed) for model in models]
        self._symbols = frozenset().union(*(merges.symbols for merges in self._merges))
        self._additions = [
            text for text in ADDITIONS if not any(UNK in model.encode(text) for model in models)
        ]

    def copies(
        self, pairs: Sequence[tuple[str, str]], numbers: Sequence[int],
        plain: tuple[Ids, Ids], max_length: int,
    ) -> tuple[Ids, Ids]:  # fmt: skip
        """The copies of source and target, those of a pair one after the other.

        A pair of which a side would get more than `max_length` tokens (eos counted), or characters
        that its vocabulary does not know, is copied as it is.

        Args:
            numbers: of the pairs in the training text, from 1.
            plain: what SentencePiece makes of the text.
        """
        made: tuple[list[list[int]], list[list[int]]] = ([], [])
        for number, pair, *as_is in zip(numbers, pairs, *map(_sentences, plain), strict=True):
            for copy in range(self._copying.copies):
                sides = self._copy(pair, as_is, copy, number)
                if any(len(new) > max_length or new.count(UNK) > old.count(UNK)
                       for new, old in zip(sides, as_is, strict=True)):  # fmt: skip
                    sides = as_is
                made[0].append(sides[0])
                made[1].append(sides[1])
        return flat(made[0]), flat(made[1])

    def _copy(
        self, pair: tuple[str, str], as_is: list[list[int]], copy: int, number: int
    ) -> list[list[int]]:
        noise, sides = self._copying.noise, as_is
        if noise.is_on:
            corpus = 0 if self._corpora is None else self._corpora[number - 1]
            lines = noised(
                pair, noise, self._chance(copy, number), self._symbols, self._additions,
                self._languages[corpus],
            )  # fmt: skip
            both = zip(self._models, lines, strict=True)
            sides = [model.encode(line, out_type=int, add_eos=True) for model, line in both]
        if self._copying.bpe_dropout:
            sides = [
                merges.cut(ids, self._chance(copy, number, side))
                for side, (merges, ids) in enumerate(zip(self._merges, sides, strict=True))
            ]
        return sides

    def _chance(self, *of: int) -> Callable[[], float]:
        """Draws from [0, 1). Python promises that they stay the same, see `random`."""
        return random.Random(f"{self._copying.seed} {of}").random


class Merges:
    """BPE-dropout with the merges of a vocabulary.

    Merges are refused once and for all, and the best of the others is done first, as SentencePiece
    does it; but its chance is not the same in two processes, whatever the seed. A word has `_WAYS`
    ways to be cut, of which each occurrence draws one: frequent words are not merged anew.
    """

    def __init__(
        self, model: sentencepiece.SentencePieceProcessor, refused: float, seed: int
    ) -> None:
        self._refused, self._seed = refused, seed
        # Merges have ranks; pieces of a unigram model have log-probabilities.
        scores = map(model.get_score, range(model.get_piece_size()))
        if refused and not all(score.is_integer() for score in scores):
            raise DataError(
                "--bpe-dropout needs a byte-pair vocabulary, and this one is of another type: "
                "remove the option."
            )
        atoms = sentencepiece_model.never_merged(model.serialized_model_proto())
        self.symbols = frozenset(name.removeprefix(SPACE) for name in atoms if name != SPACE)
        self._pieces = subwords.pieces(model)
        self._ids = {
            piece: i for i, piece in enumerate(self._pieces) if i > UNK and piece not in atoms
        }
        self._scores = {piece: model.get_score(i) for piece, i in self._ids.items()}
        self._words_end_at_spaces = not any(SPACE in piece[1:] for piece in self._ids)
        self._way = lru_cache(maxsize=1 << 20)(self._merged)

    def cut(self, ids: Sequence[int], draw: Callable[[], float]) -> list[int]:
        """A sentence, cut into other pieces."""
        cut: list[int] = []
        word = ""
        for number in ids:
            piece = self._pieces[number]
            if piece not in self._ids:
                cut += (*self._drawn(word, draw), number)
                word = ""
            elif piece.startswith(SPACE) and self._words_end_at_spaces:
                cut += self._drawn(word, draw)
                word = piece
            else:
                word += piece
        return [*cut, *self._drawn(word, draw)]

    def _drawn(self, word: str, draw: Callable[[], float]) -> tuple[int, ...]:
        return self._way(word, int(draw() * _WAYS)) if word else ()

    def _merged(self, word: str, way: int) -> tuple[int, ...]:
        chance = random.Random(f"{self._seed} {way} {word}").random
        ends = list(range(len(word) + 1))
        refused: dict[tuple[int, ...], bool] = {}
        while True:
            best, at = -math.inf, 0
            for i in range(len(ends) - 2):
                first, middle, last = ends[i : i + 3]
                score = self._scores.get(word[first:last], -math.inf)
                if score > best:  # equal scores: the left one
                    if (first, middle, last) not in refused:
                        refused[first, middle, last] = chance() < self._refused
                    if not refused[first, middle, last]:
                        best, at = score, i + 1
            if not at:
                return tuple(self._ids[word[a:b]] for a, b in pairwise(ends))
            del ends[at]


def _sentences(side: Ids) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(side[0], np.cumsum(side[1]))[:-1]]


def flat(sentences: list[list[int]]) -> Ids:
    """Sentences in a row."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.fromiter(chain.from_iterable(sentences), np.int32, int(lengths.sum())), lengths


def noised(
    pair: tuple[str, str], noise: Noise, draw: Callable[[], float],
    symbols: Collection[str] = (), additions: Sequence[str] = ADDITIONS,
    languages: tuple[str, str] = ("", ""),
) -> tuple[str, str]:  # fmt: skip
    """A clean pair with noise.

    Args:
        draw: gives chance in [0, 1), always the same for the same copy of a pair.
        symbols: pieces that a vocabulary cuts out of text, tags among them: words with one stay.
        additions: some of `ADDITIONS`, those that the vocabularies can write.
        languages: of source and target, which decide what capitals are.
    """
    case, loses_mark, adds = draw(), draw() < noise.no_punctuation, draw() < noise.emoji
    which, in_front = int(draw() * len(additions)), draw() < 0.5
    change: Callable[[str, str], str] = lambda word, language: word
    if case < noise.upper_case + noise.title_case:
        change = upper if case < noise.upper_case else capitalized
    without = tuple(map(without_mark, pair))
    if loses_mark and all(new != old for new, old in zip(without, pair, strict=True)):
        pair = without[0], without[1]
    sides = []
    for side, (line, language) in enumerate(zip(pair, languages, strict=True)):
        words = line.split()
        fixed = {word for word in words if any(symbol in word for symbol in symbols)}
        if side == 0:
            words = _misspelled(words, noise, draw, fixed)
        words = [w if w in fixed or _ADDRESS.search(w) else change(w, language) for w in words]
        if adds and additions:
            tags = len(list(takewhile(symbols.__contains__, words)))
            words.insert(tags if in_front else len(words), additions[which])
        sides.append(" ".join(words))
    return sides[0], sides[1]


def _misspelled(
    words: Sequence[str], noise: Noise, draw: Callable[[], float], fixed: Collection[str]
) -> list[str]:
    changed: list[str] = []
    for word in words:
        match = _WORD.fullmatch(word)
        if not match or word in fixed:
            changed.append(word)
            continue
        letters = len(match[1])
        if draw() < noise.typos:
            word = _mistyped(word, int(draw() * (letters - 1)), draw)
        if draw() >= noise.spaces:
            changed.append(word)
        elif draw() < 0.5 and changed and changed[-1].isalpha() and changed[-1] not in fixed:
            changed[-1] += word
        else:
            at = 1 + int(draw() * (letters - 2))
            changed += [word[:at], word[at:]]
    return changed


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
