"""Copies of the training pairs that are cut and spelled differently: BPE-dropout and noise.

Each epoch of a run takes the next copy. BPE-dropout refuses every merge of two neighbours with one
probability. Source: Provilkov et al. 2020, "BPE-Dropout: Simple and Effective Subword
Regularization". Noise changes characters, see `hvd_nmt.preparation.noise`.

All lengths are known before a run begins, and the same seed gives the same bytes on every host, on
any number of cores.
"""

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
import sentencepiece

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.config import UNK
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.sentencepiece_model import SPACE
from hvd_nmt.preparation import subwords
from hvd_nmt.preparation.noise import ADDITIONS, Noise, noised

Ids = tuple[np.ndarray, np.ndarray]
"""sentences: their ids [tokens], one after the other, each ending with eos, and lengths [pairs]"""


_WAYS = 64
"""in which a word may be cut"""

Sentences = list[list[int]]


@dataclasses.dataclass(frozen=True)
class Copying:
    """How the copies differ from the text, and how many there are."""

    bpe_dropout: float = 0.0
    """share of subword merges refused at random in training sentences: 0.1 is usual and makes them
    a third longer (BPE-dropout, Provilkov et al. 2020); 0: none"""
    noise: Noise = dataclasses.field(default_factory=Noise)
    """noise in the training sentences"""
    copies: int = 8
    """with --bpe-dropout or --noise: copies of the training sentences, each cut or spelled
    differently; an epoch of training takes the next one"""
    seed: int = 1
    """seed of --bpe-dropout and --noise"""

    def __post_init__(self) -> None:
        if not 0 <= self.bpe_dropout < 1:
            raise ConfigError(
                f"--bpe-dropout is {self.bpe_dropout:g}: give a share of merges in [0, 1)."
            )
        if not 1 <= self.copies <= 1000:
            raise ConfigError(f"--copies must be from 1 to 1,000, not {self.copies}.")

    @property
    def is_on(self) -> bool:
        """Whether there are copies at all."""
        return self.bpe_dropout > 0 or self.noise.is_on


class Copier:
    """Makes copies of pairs with the vocabularies of source and target."""

    def __init__(
        self, models: Sequence[sentencepiece.SentencePieceProcessor], copying: Copying
    ) -> None:
        self._models, self._copying = models, copying
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
            numbers: of the pairs in the training text.
            plain: what SentencePiece makes of the text.
        """
        own = [_sentences(side) for side in plain]
        copies = [self._copy(pairs, numbers, own, copy) for copy in range(self._copying.copies)]
        for i, (source, target) in enumerate(zip(*own, strict=True)):
            for copy in copies:
                sides = (copy[0][i], source), (copy[1][i], target)
                if any(len(new) > max_length or new.count(UNK) > old.count(UNK)
                       for new, old in sides):  # fmt: skip
                    copy[0][i], copy[1][i] = source, target
        every = range(len(pairs))
        source, target = (flat([copy[s][i] for i in every for copy in copies]) for s in (0, 1))
        return source, target

    def _copy(
        self, pairs: Sequence[tuple[str, str]], numbers: Sequence[int], own: Sequence[Sentences],
        copy: int,
    ) -> list[Sentences]:  # fmt: skip
        noise, sides = self._copying.noise, [*own]
        if noise.is_on:
            changed = [
                noised(pair, noise, self._chance(copy, number), self._symbols, self._additions)
                for number, pair in zip(numbers, pairs, strict=True)
            ]
            sides = [
                subwords.encode_lines(model, [*lines])
                for model, lines in zip(self._models, zip(*changed, strict=True), strict=True)
            ]
        if self._copying.bpe_dropout:
            for side, merges in enumerate(self._merges):
                sides[side] = [
                    merges.cut(ids, self._chance(copy, number, side))
                    for number, ids in zip(numbers, sides[side], strict=True)
                ]
        return [[*side] for side in sides]

    def _chance(self, *of: int) -> Callable[[], float]:
        """Draws from [0, 1). Python promises that they stay the same, see `random`."""
        return random.Random(f"{self._copying.seed} {of}").random


class Merges:
    """BPE-dropout with the merges of a vocabulary.

    Merges are refused once and for all, and the best of the others is done first, as SentencePiece
    does it; but its chance is not the same in two processes, whatever the seed. A word has so many
    ways to be cut as `_WAYS`, and each occurrence draws one: so a frequent word is not merged anew
    each time.
    """

    def __init__(
        self, model: sentencepiece.SentencePieceProcessor, refused: float, seed: int
    ) -> None:
        self._refused, self._seed = refused, seed
        # Merges have ranks; pieces of a unigram model have log-probabilities.
        scores = map(model.get_score, range(model.get_piece_size()))
        if refused and not all(score.is_integer() for score in scores):
            raise DataError(
                "The vocabulary is not of byte-pair encoding, so there are no merges to refuse: "
                "leave --bpe-dropout out."
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
        found: list[int] = []
        word = ""
        for number in ids:
            piece = self._pieces[number]
            if piece not in self._ids:
                found += (*self._drawn(word, draw), number)
                word = ""
            elif piece.startswith(SPACE) and self._words_end_at_spaces:
                found += self._drawn(word, draw)
                word = piece
            else:
                word += piece
        return [*found, *self._drawn(word, draw)]

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


def _sentences(side: Ids) -> Sentences:
    flat, ends = side[0].tolist(), np.cumsum(side[1]).tolist()
    return [flat[first:last] for first, last in zip([0, *ends[:-1]], ends, strict=True)]


def flat(sentences: list[list[int]]) -> Ids:
    """Sentences in a row."""
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.fromiter(chain.from_iterable(sentences), np.int32, int(lengths.sum())), lengths
