"""The global batch plan: which sentences make up which step, the same on every rank.

Capitals: B rows of one rank, S padded source length, T padded target length (tokens, eos counted).

The plan of an epoch is a pure function of (seed, epoch) and of the sentence lengths. It never sees
the ranks: a step is a set of sentences, and only at the end is it dealt out, `[rank::size]`, and
padded to the longest sentence of the *whole* step. From this follow the four properties that the
training loop stands on (and that tests/data/test_batches.py proves):

1. every rank has the same number of steps, and the same [B, S] and [B, T] in the same step;
2. the order of sentences does not depend on the number of ranks;
3. two integers, epoch and step, are enough to resume;
4. every rank knows the global token count of a step without asking the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import PAD
from hvd_nmt.data.bpe_dropout import SubwordDropout
from hvd_nmt.data.corpus import ParallelCorpus, Sentences

# Target lengths are sorted in bands of two, never more: one bit of the sort key says which. With
# bands of one the source is padded more, and more of the same sentences meet again in the next
# epoch. Padding in percent of padded source + target tokens, on Multi30k and the embedded corpus:
#   4,096 tokens per step: one 10.5 + 1.0 and 3.0 + 0.5, two 7.2 + 3.0 and 2.0 + 1.5
#   1,024 tokens per step: one  3.3 + 0.3 and 0.7 + 0.1, two 2.1 + 1.2 and 0.5 + 0.4
BAND_WIDTH_TOKENS = 2


class PaddedBatch(NamedTuple):
    """Shape of what one rank computes in a step."""

    rows: int
    """sentences of the rank, rows of pad alone included"""
    source_length: int
    """tokens of each source sentence, padding included"""
    target_length: int
    """tokens of each target sentence, padding included"""


Rounding = Callable[[PaddedBatch], PaddedBatch]
"""gives a shape at least as large"""


class Batch(NamedTuple):
    """What one rank computes in one step.

    Attributes:
        source_BxS: int32 ids, each row ends with eos, then pad. Rows of pad alone fill up the
            share of a rank that was dealt one sentence less.
        target_BxT: int32 ids, in the same form.
        source_tokens: real source tokens (eos counted) of the step over ALL ranks.
        target_tokens: real target tokens of the step over ALL ranks: the loss's denominator.
        epoch: epoch of this step, from 0.
        step: step within the epoch, from 0.
        rank_target_tokens: real target tokens of each rank, by rank.
        sentences: int64, places in the corpus of the sentences in these rows; none for pad rows.
    """

    source_BxS: np.ndarray
    target_BxT: np.ndarray
    source_tokens: int
    target_tokens: int
    epoch: int
    step: int
    rank_target_tokens: tuple[int, ...]
    sentences: np.ndarray


@dataclass(frozen=True, order=True)
class Position:
    """The next step to be done: all that a resumed run has to know about the data."""

    epoch: int = 0
    """number of the epoch, from 0"""
    step: int = 0
    """step within the epoch, from 0"""


def batches(
    corpus: ParallelCorpus, plan: BatchPlan, start: Position, rank: int, size: int,
    dropout: SubwordDropout | None = None, *, rounded: Rounding | None = None,
) -> Iterator[Batch]:  # fmt: skip
    """Yields this rank's batches from `start` on, epoch after epoch, without end.

    With dropout, every rank segments all sentences of a step anew. So each knows the padded lengths
    and the token counts of the step without asking the others, and these properties stay. The plan
    is made from the lengths without dropout: with it a step has more tokens.

    Args:
        corpus: the training pairs that `plan` was made for.
        plan: the plan, equal on all ranks.
        start: the first step to be yielded.
        rank: this rank, 0 <= rank < size.
        size: number of ranks.
        dropout: segments the sentences of each epoch anew; None: as they are in the corpus.
        rounded: what a step's batches are padded to, of at least their own shape; the same on all
            ranks. None: no more than that.
    """
    epoch, step = start.epoch, start.step
    while True:
        epoch_plan = plan.epoch(epoch)
        for at in range(step, epoch_plan.steps):
            of_step = sentences = epoch_plan.sentences(at)
            tokens = int(epoch_plan.source_tokens[at]), int(epoch_plan.target_tokens[at])
            pairs = corpus
            if dropout is not None:
                pairs = dropout.pairs(corpus, sentences, epoch)
                sentences = np.arange(len(pairs))
                tokens = len(pairs.source.ids), len(pairs.target.ids)
            source_BxS, target_BxT, indices_B = _share(pairs, sentences, rank, size, rounded)
            own = indices_B[indices_B >= 0]
            own = own if dropout is None else of_step[own]
            lengths = pairs.target.lengths[sentences]
            by_rank = tuple(int(dealt(lengths, index, size).sum()) for index in range(size))
            yield Batch(source_BxS, target_BxT, *tokens, epoch, at, by_rank, own)
        epoch, step = epoch + 1, 0


def dealt(sentences: np.ndarray, rank: int, size: int) -> np.ndarray:
    """What one rank gets of a step's sentences, or of their values.

    Args:
        sentences: one value for each, in the order of `EpochPlan.sentences`.
        rank: 0 <= rank < size.
        size: number of ranks.
    """
    return sentences[rank::size]


def evaluation_batches(
    corpus: ParallelCorpus, tokens_per_batch: int, rank: int, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields this rank's share of every sentence pair, each exactly once over all ranks.

    The number of batches and the shapes are the same on all ranks, so that collectives inside the
    evaluation match. The longest sources come first: what does not fit into memory fails at once.

    Args:
        corpus: the pairs to evaluate.
        tokens_per_batch: target tokens of one batch over ALL ranks, as `tokens_per_step`.
        rank: this rank, 0 <= rank < size.
        size: number of ranks.

    Yields:
        (indices_B, source_BxS, target_BxT): int64 positions in the corpus, -1 for a row of pad
        alone, and int32 ids.
    """
    order = np.lexsort((corpus.target.lengths, corpus.source.lengths))[::-1]
    edges = _cut(corpus.target.lengths[order], tokens_per_batch)
    for first, last in pairwise(edges):
        source_BxS, target_BxT, indices_B = _share(corpus, order[first:last], rank, size)
        yield indices_B, source_BxS, target_BxT


@final
@dataclass(frozen=True, eq=False)
class BatchPlan:
    """All epochs of a corpus, cut into global steps.

    An epoch has ceil(target tokens / tokens_per_step) steps, the same number in every epoch. The
    steps share the real target tokens evenly: each has the corpus mean, which is at most
    `tokens_per_step`, give or take less than one sentence. Padding comes on top.

    Args:
        source_lengths: int [sentences], tokens of each source sentence, eos counted.
        target_lengths: int [sentences], tokens of each target sentence, eos counted.
        tokens_per_step: real target tokens of one step over all ranks.
        seed: seed of all epochs.

    Raises:
        ConfigError: no sentence, or the longest target sentence does not fit into a step.
    """

    source_lengths: np.ndarray
    target_lengths: np.ndarray
    tokens_per_step: int
    seed: int

    def __post_init__(self) -> None:
        if len(self.source_lengths) != len(self.target_lengths):
            raise ValueError(
                f"{len(self.source_lengths)} source lengths, {len(self.target_lengths)} target ones"
            )
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"The seed is {self.seed}: use one from 0 to 2**64 - 1.")
        if not len(self.target_lengths):
            raise ConfigError("The corpus has no sentence pair to train on.")
        longest = int(self.target_lengths.max())
        if self.tokens_per_step < longest:
            raise ConfigError(
                f"tokens_per_step is {self.tokens_per_step}, but the longest target sentence has "
                f"{longest} tokens: use at least {longest} tokens per step, or prepare the data "
                "with a smaller --max-length."
            )

    @classmethod
    def of(cls, corpus: ParallelCorpus, tokens_per_step: int, seed: int) -> BatchPlan:
        """The plan of a corpus.

        Args:
            corpus: training pairs.
            tokens_per_step: real target tokens of one step over all ranks.
            seed: seed of all epochs.
        """
        return cls(corpus.source.lengths, corpus.target.lengths, tokens_per_step, seed)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps of every epoch."""
        return _step_count(self.target_lengths, self.tokens_per_step)

    def epoch(self, epoch: int) -> EpochPlan:
        """The plan of one epoch, a pure function of (seed, epoch)."""
        # Philox is counter-based, and NumPy promises that the raw stream of a bit generator never
        # changes (NEP 19; not so the methods of Generator): the plan is the same everywhere.
        philox = np.random.Philox(key=np.array([self.seed, epoch], dtype=np.uint64))
        # Bands begin elsewhere in the next epoch, so that a sentence meets others than last time.
        order = _sorted_by_length(
            self.source_lengths, self.target_lengths, epoch % BAND_WIDTH_TOKENS, philox
        )
        edges = _cut(self.target_lengths[order], self.tokens_per_step)
        shuffled = np.argsort(philox.random_raw(len(edges) - 1), kind="stable")
        source_tokens, target_tokens = (
            np.add.reduceat(lengths[order], edges[:-1], dtype=np.int64)[shuffled]
            for lengths in (self.source_lengths, self.target_lengths)
        )
        first, last = edges[:-1][shuffled], edges[1:][shuffled]
        return EpochPlan(order, first, last, source_tokens, target_tokens)

    def padded_shapes(
        self, epoch: EpochPlan, size: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Shapes of the batches of a rank that has the most rows, by the steps' places in `order`.

        Returns rows, padded source lengths and padded target lengths, each int64 [steps].
        """
        first = np.sort(epoch.first)
        rows = -(-np.diff(np.append(first, len(epoch.order))) // size)
        source, target = (
            np.maximum.reduceat(lengths[epoch.order], first).astype(np.int64)
            for lengths in (self.source_lengths, self.target_lengths)
        )
        return rows, source, target

    def most_shapes(self, size: int) -> int:
        """A bound on the different [rows, source length, target length] of a rank's batches.

        A padded length is at most that of the longest sentence. A step has tokens_per_step target
        tokens and less than one sentence more, so it has at most as many rows as sentences of the
        shortest kind fit into that. Far fewer shapes come up, see `hvd_nmt.data.throughput`.
        """
        longest, shortest = int(self.target_lengths.max()), int(self.target_lengths.min())
        most = min((self.tokens_per_step + longest) // shortest, len(self.target_lengths))
        return -(-most // size) * int(self.source_lengths.max()) * longest

    def position(self, global_step: int) -> Position:
        """Where the data stands after `global_step` steps from the very start."""
        return Position(*divmod(global_step, self.steps_per_epoch))


@final
@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The steps of one epoch.

    Attributes:
        order: int64 [sentences], a permutation of the corpus; steps are slices of it.
        first: int64 [steps], where each step starts in `order`, in the order of training.
        last: int64 [steps], where each step ends.
        source_tokens: int64 [steps], real source tokens over all ranks, eos counted.
        target_tokens: int64 [steps], real target tokens over all ranks, eos counted.
    """

    order: np.ndarray
    first: np.ndarray
    last: np.ndarray
    source_tokens: np.ndarray
    target_tokens: np.ndarray

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.first)

    def sentences(self, step: int) -> np.ndarray:
        """int64 corpus indices of a step's sentences, in an order that no rank count changes."""
        return self.order[self.first[step] : self.last[step]]


def _sorted_by_length(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    band_offset: int,
    philox: np.random.Philox,
) -> np.ndarray:
    """A random permutation in which neighbours have similar lengths on both sides.

    One 64-bit key per sentence: the band of target lengths (16 bits), the source length (16), the
    target length within the band (1), then chance (31). So where many sentences have one source
    length a step holds one target length, and where few do it holds both of the band. Every second
    band runs backwards, and every second source length does within its band, so that lengths do
    not jump where two groups meet inside a step.
    """
    longest = np.uint64(0xFFFF)
    shifted = (target_lengths + band_offset).astype(np.uint64)
    band, within = np.divmod(shifted, np.uint64(BAND_WIDTH_TOKENS))
    source = np.minimum(source_lengths.astype(np.uint64), longest)
    within ^= source & np.uint64(1)
    source = np.where(band % 2 == 1, longest - source, source)
    chance = philox.random_raw(len(target_lengths)) >> np.uint64(33)
    key = (
        np.minimum(band, longest) << np.uint64(48)
        | source << np.uint64(32)
        | within << np.uint64(31)
        | chance
    )
    return np.argsort(key, kind="stable")


def _step_count(lengths: np.ndarray, tokens_per_step: int) -> int:
    return min(len(lengths), -(-int(lengths.sum(dtype=np.int64)) // tokens_per_step))


def _cut(lengths: np.ndarray, tokens_per_step: int) -> np.ndarray:
    """Cuts a sequence of sentences into steps of as equal token counts as possible.

    Returns:
        int64 [steps + 1], strictly increasing: step i is the slice [edges[i], edges[i + 1]).
    """
    if not len(lengths):
        return np.zeros(1, np.int64)
    steps = _step_count(lengths, tokens_per_step)
    tokens = np.cumsum(lengths, dtype=np.int64)
    wanted = np.arange(1, steps, dtype=np.int64) * tokens[-1] // steps
    inner = np.searchsorted(tokens, wanted) + 1
    # One sentence may be longer than a step's share, and two cuts then fall together: keep at
    # least one sentence in each step, counted from the left and then from the right.
    counter = np.arange(1, steps, dtype=np.int64)
    inner = np.maximum.accumulate(np.maximum(inner - counter, 0)) + counter
    inner = np.minimum(inner, len(lengths) - steps + counter)
    return np.concatenate(([0], inner, [len(lengths)])).astype(np.int64)


def _share(
    corpus: ParallelCorpus, sentences: np.ndarray, rank: int, size: int,
    rounded: Rounding | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """This rank's rows of a step as (source_BxS, target_BxT, indices_B); -1 marks a pad row."""
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size}")
    source, target = (int(side.lengths[sentences].max()) for side in (corpus.source, corpus.target))
    shape = PaddedBatch(-(-len(sentences) // size), source, target)
    rows, source, target = shape if rounded is None else rounded(shape)
    own = dealt(sentences, rank, size)
    indices_B = np.full(rows, -1, np.int64)
    indices_B[: len(own)] = own
    source_BxS = _padded(corpus.source, own, rows, source)
    target_BxT = _padded(corpus.target, own, rows, target)
    return source_BxS, target_BxT, indices_B


def _padded(sentences: Sentences, indices: np.ndarray, rows: int, width: int) -> np.ndarray:
    """The ids of some sentences as an int32 [rows, width] matrix, filled up with pad."""
    lengths = np.zeros(rows, np.int64)
    lengths[: len(indices)] = sentences.lengths[indices]
    real = np.arange(width) < lengths[:, None]
    # Where each token lies in the flat file: its sentence's start, plus how far it is into it.
    shift = sentences.offsets[indices] - (np.cumsum(lengths) - lengths)[: len(indices)]
    places = np.repeat(shift, lengths[: len(indices)]) + np.arange(lengths.sum())
    matrix = np.full((rows, width), PAD, np.int32)
    matrix[real] = sentences.ids[places]
    return matrix
