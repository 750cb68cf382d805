"""Batches of a rank; padded lengths S and T count eos."""

from collections.abc import Iterator
from itertools import count, pairwise
from typing import NamedTuple

import numpy as np

from hvd_nmt.config import PAD
from hvd_nmt.data.batch_plan import BatchPlan, Position, cut, step_count
from hvd_nmt.data.corpus import ParallelCorpus, Sentences


class PaddedBatch(NamedTuple):
    """Shape of what one rank computes in a step."""

    rows: int
    """sentences of the rank, rows of pad alone included"""
    source_length: int
    """tokens of each source sentence, padding included"""
    target_length: int
    """tokens of each target sentence, padding included"""

    @property
    def rounded(self) -> "PaddedBatch":
        """One of few shapes, for XLA: lengths are multiples of 8, rows at most an eighth more."""
        rows_to = 1 << max(0, self.rows.bit_length() - 4)
        source, target = (-(-length // 8) * 8 for length in self[1:])
        return PaddedBatch(-(-self.rows // rows_to) * rows_to, source, target)


class Batch(NamedTuple):
    """What one rank computes in one step."""

    source_BxS: np.ndarray
    """int32 ids, each row ends with eos, then pad; rows of pad alone fill up the share of a rank
    that was dealt one sentence less"""
    target_BxT: np.ndarray
    """int32 ids, in the same form"""
    source_tokens: int
    """real source tokens (eos counted) of the step over ALL ranks"""
    target_tokens: int
    """real target tokens of the step over ALL ranks: the loss's denominator"""
    epoch: int
    """epoch of this step, from 0"""
    step: int
    """step within the epoch, from 0"""
    rank_target_tokens: tuple[int, ...]
    """real target tokens of each rank, by rank"""
    sentences: np.ndarray
    """int64, places of these rows in the training text, without those of pad"""


def batches(
    corpus: ParallelCorpus, plan: BatchPlan, start: Position, rank: int, size: int,
    rounded: bool = False,
) -> Iterator[Batch]:  # fmt: skip
    """Yields this rank's batches from `start` on, epoch after epoch, without end."""
    for epoch in count(start.epoch):
        epoch_plan = plan.epoch(epoch)
        for at in range(start.step if epoch == start.epoch else 0, epoch_plan.steps):
            sentences = epoch_plan.sentences(at)
            tokens = int(epoch_plan.source_tokens[at]), int(epoch_plan.target_tokens[at])
            indices_B, source_BxS, target_BxT = _share(corpus, sentences, rank, size, rounded)
            pairs = indices_B[indices_B >= 0] // plan.copies
            lengths = corpus.target.lengths[sentences]
            by_rank = tuple(int(dealt(lengths, index, size).sum()) for index in range(size))
            yield Batch(source_BxS, target_BxT, *tokens, epoch, at, by_rank, pairs)


def dealt(sentences: np.ndarray, rank: int, size: int) -> np.ndarray:
    """A rank's part of a step's sentences, or of their values, in the order of the plan."""
    return sentences[rank::size]


def evaluation_batches(
    corpus: ParallelCorpus, tokens_per_batch: int, rank: int, size: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields this rank's share of every sentence pair, each exactly once over all ranks.

    The number of batches and the shapes are the same on all ranks, so that collectives inside the
    evaluation match. The longest sources come first: what does not fit into memory fails at once.

    Args:
        tokens_per_batch: target tokens of one batch over ALL ranks, as `tokens_per_step`.

    Yields:
        (indices_B, source_BxS, target_BxT): int64 positions, -1 for a row of pad; int32 ids.
    """
    order = np.lexsort((corpus.target.lengths, corpus.source.lengths))[::-1]
    lengths = corpus.target.lengths[order]
    edges = cut(lengths, step_count(lengths, tokens_per_batch))
    for first, last in pairwise(edges):
        yield _share(corpus, order[first:last], rank, size)


def _share(
    corpus: ParallelCorpus, sentences: np.ndarray, rank: int, size: int,
    rounded: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """This rank's rows of a step as (indices_B, source_BxS, target_BxT); -1 marks a pad row."""
    source, target = (int(side.lengths[sentences].max()) for side in (corpus.source, corpus.target))
    shape = PaddedBatch(-(-len(sentences) // size), source, target)
    rows, source, target = shape.rounded if rounded else shape
    share = dealt(sentences, rank, size)
    indices_B = np.full(rows, -1, np.int64)
    indices_B[: len(share)] = share
    source_BxS = _padded(corpus.source, share, rows, source)
    return indices_B, source_BxS, _padded(corpus.target, share, rows, target)


def _padded(sentences: Sentences, indices: np.ndarray, rows: int, width: int) -> np.ndarray:
    """The ids of some sentences as int32 [rows, width], filled up with pad."""
    lengths = np.zeros(rows, np.int64)
    lengths[: len(indices)] = sentences.lengths[indices]
    real = np.arange(width) < lengths[:, None]
    # The place of each token in the flat file: its sentence's start, plus how far it is into it.
    shift = sentences.offsets[indices] - (np.cumsum(lengths) - lengths)[: len(indices)]
    places = np.repeat(shift, lengths[: len(indices)]) + np.arange(lengths.sum())
    matrix = np.full((rows, width), PAD, np.int32)
    matrix[real] = sentences.ids[places]
    return matrix
