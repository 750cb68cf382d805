"""How fast the batches of a corpus come, and what they are like: measured without a model."""

from __future__ import annotations

import dataclasses
import time
import tracemalloc
from typing import NamedTuple

import numpy as np

from hvd_nmt.common.units import data_size
from hvd_nmt.data.augmentation import Augmentation
from hvd_nmt.data.batch_plan import BatchPlan, EpochPlan, Position
from hvd_nmt.data.batches import batches
from hvd_nmt.data.corpus import ParallelCorpus


class Throughput(NamedTuple):
    """What `measure` found."""

    sentences: int
    steps: int
    """steps of an epoch"""
    plan_s: float
    """making the plan of an epoch"""
    plan_mb: float
    """most memory at once while it was made, MB, without what noise and BPE-dropout need; the ids
    are mapped and shared between ranks"""
    tokens_per_s: float
    """real source and target tokens of one rank's batches, from the first step on"""
    batches_per_s: float
    padding: float
    """share of pad among source and target tokens, over an epoch, pad rows counted"""
    shapes: int
    """different [rows, source length, target length] of a rank's batches, over an epoch"""
    most_shapes: int | None
    """a bound on them that holds in every epoch: see `BatchPlan.most_shapes`"""

    def rows(self) -> list[tuple[str, str]]:
        """The same for a reader: (what, value)."""
        most = "" if self.most_shapes is None else f", at most {self.most_shapes:,}"
        return [
            ("sentence pairs, steps an epoch", f"{self.sentences:,}, {self.steps:,}"),
            ("plan of an epoch", f"{self.plan_s:.2f} s, {data_size(1e6 * self.plan_mb)} at most"),
            ("batches, real tokens/s, source + target", f"{self.tokens_per_s:,.0f}"),
            ("batches/s", f"{self.batches_per_s:,.1f}"),
            ("padding, share of all tokens", f"{self.padding:.2%}"),
            ("different batch shapes", f"{self.shapes:,} an epoch{most}"),
        ]


def measure(
    corpus: ParallelCorpus, plan: BatchPlan, *,
    augmentation: Augmentation | None = None, size: int = 1, seconds: float = 5.0,
) -> Throughput:  # fmt: skip
    """Makes the plan of epoch 0 and then batches, for some seconds or an epoch.

    Args:
        corpus: training pairs.
        plan: of these pairs, not used before.
        augmentation: as in training.
        size: number of ranks; the batches are those of the first.
        seconds: for how long to make batches.
    """
    started_s = time.perf_counter()
    epoch = plan.epoch(0)
    plan_s = time.perf_counter() - started_s
    tracemalloc.start()  # after the clock has stopped, for it slows what it watches
    dataclasses.replace(plan, lengths=None).epoch(0)
    plan_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    plan_bytes += plan.source_lengths.nbytes + plan.target_lengths.nbytes
    padding, shapes = _padding(plan, epoch, size)

    made, tokens, started_s = 0, 0, time.perf_counter()
    for batch in batches(corpus, plan, Position(), 0, size, augmentation):
        tokens += int(np.count_nonzero(batch.source_BxS) + np.count_nonzero(batch.target_BxT))
        made += 1
        elapsed_s = time.perf_counter() - started_s
        if elapsed_s > seconds or made == epoch.steps:
            break
    return Throughput(
        len(corpus), epoch.steps, plan_s, plan_bytes / 1e6, tokens / elapsed_s, made / elapsed_s,
        padding, shapes, plan.most_shapes(size),
    )  # fmt: skip


def _padding(plan: BatchPlan, epoch: EpochPlan, size: int) -> tuple[float, int]:
    """Share of pad in all batches of an epoch, and the number of their different shapes."""
    rows, source, target = plan.padded_shapes(epoch, size)
    padded = int((rows * size * (source + target)).sum())
    real = int(epoch.source_tokens.sum() + epoch.target_tokens.sum())
    return 1 - real / padded, len(np.unique(np.stack((rows, source, target)), axis=1).T)
