"""The global batch plan: which sentences make up which step, the same on every rank.

The plan of an epoch is a pure function of (seed, epoch) and of the sentence lengths (of several
corpora: also of their stages, see `hvd_nmt.data.mixed_epochs`). A step is a set of sentences; only
at the end is it dealt out to the ranks, `[rank::size]`, and padded to the longest sentence of the
*whole* step. So (tests/data/test_batches.py):

1. every rank has the same number of steps, and the same [B, S] and [B, T] in the same step;
2. the order of sentences does not depend on the number of ranks;
3. two integers, epoch and step, are enough to resume;
4. every rank knows the global token count of a step without asking the others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

import numpy as np

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.mixture import Stage
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.data.mixed_epochs import MixedEpochs

# Target lengths are sorted in bands of two, never more: one bit of the sort key has the place in
# the band. With bands of one the source is padded more (Multi30k, 4,096 tokens a step: 10.5 %, not
# 7.2 %). More of the same sentences meet again in the next epoch, too.
BAND_WIDTH_TOKENS = 2


@dataclass(frozen=True, order=True)
class Position:
    """The next step to be done: all that a resumed run has to know about the data."""

    epoch: int = 0
    """number of the epoch, from 0"""
    step: int = 0
    """step within the epoch, from 0"""


@final
@dataclass(frozen=True, eq=False)
class BatchPlan:
    """All epochs of a corpus, cut into global steps.

    Every epoch has ceil(target tokens / tokens_per_step) steps, which share the real target tokens
    evenly, give or take less than one sentence. Padding comes on top. Where sentences have copies,
    an epoch has the next one of each, and as many steps as the longest copy of the corpus. Of
    several corpora with weights, an epoch's tokens depend on which sentences it draws.
    ConfigError: the longest target sentence does not fit into a step.
    """

    source_lengths: np.ndarray
    """int [sentences], tokens of each source sentence, eos counted"""
    target_lengths: np.ndarray
    """int [sentences], tokens of each target sentence, eos counted"""
    tokens_per_step: int
    """real target tokens of one step over all ranks"""
    seed: int
    mixture: MixedEpochs | None = None
    """sentences of each epoch; None: all, each once"""
    copies: int = 1
    """copies of each sentence, one after the other"""

    def __post_init__(self) -> None:
        longest = int(self.target_lengths.max())
        if self.tokens_per_step < longest:
            raise ConfigError(
                f"tokens_per_step is {self.tokens_per_step}, but the longest target sentence has "
                f"{longest} tokens: raise --training.tokens-per-step to at least {longest}, or "
                "prepare the data with a smaller --max-length."
            )

    @classmethod
    def of_data(
        cls, data: DataDirectory, stages: Sequence[Stage], tokens_per_step: int, seed: int
    ) -> "BatchPlan":
        """The plan of prepared training data, whose corpora stages may mix; raises as the class."""
        mixture = None
        if stages or data.manifest.corpora:
            mixed = MixedEpochs.of(data, stages, tokens_per_step, seed)
            mixture = None if mixed.is_plain else mixed
        lengths = data.epochs.source.lengths, data.epochs.target.lengths
        return cls(*lengths, tokens_per_step, seed, mixture, data.manifest.copies or 1)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps of every epoch; where stages mix several corpora, of the first one."""
        if self.mixture is not None:
            return self.mixture.place(0).steps
        copies = (self.target_lengths[copy :: self.copies] for copy in range(self.copies))
        return max(step_count(lengths, self.tokens_per_step) for lengths in copies)

    def steps_of(self, epoch: int) -> int:
        """Steps of one epoch, from 0."""
        return self.mixture.place(epoch).steps if self.mixture else self.steps_per_epoch

    @cached_property
    def epoch(self) -> Callable[[int], "EpochPlan"]:
        """Gives the plan of one epoch, a pure function of (seed, epoch); the last two are kept."""
        return lru_cache(maxsize=2)(self._made)

    def _made(self, epoch: int) -> "EpochPlan":
        # Philox is counter-based, and NumPy promises that the raw stream of a bit generator never
        # changes (NEP 19; not so the methods of Generator): the plan is the same everywhere.
        philox = np.random.Philox(key=np.array([self.seed, epoch], dtype=np.uint64))
        # Bands begin elsewhere in the next epoch, so that a sentence meets others than last time.
        if self.mixture is not None:
            sentences, passes = self.mixture.draw(epoch)
            drawn = sentences * self.copies + passes % self.copies
        else:
            drawn = np.arange(epoch % self.copies, len(self.target_lengths), self.copies)
        lengths = self.source_lengths[drawn], self.target_lengths[drawn]
        order = _sorted_by_length(*lengths, epoch % BAND_WIDTH_TOKENS, philox)
        source_lengths, target_lengths = (of_side[order] for of_side in lengths)
        edges = cut(target_lengths, self.steps_of(epoch))
        shuffled = np.argsort(philox.random_raw(len(edges) - 1), kind="stable")
        source_tokens, target_tokens = (
            np.add.reduceat(of_side, edges[:-1], dtype=np.int64)[shuffled]
            for of_side in (source_lengths, target_lengths)
        )
        first, last = edges[:-1][shuffled], edges[1:][shuffled]
        return EpochPlan(drawn[order], first, last, source_tokens, target_tokens)

    def padded_shapes(
        self, epoch: "EpochPlan", size: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Largest rows, source and target lengths of a rank, int64 [steps], by place in `order`."""
        first = np.sort(epoch.first)
        rows = -(-np.diff(np.append(first, len(epoch.order))) // size)
        source, target = (
            np.maximum.reduceat(lengths[epoch.order], first).astype(np.int64)
            for lengths in (self.source_lengths, self.target_lengths)
        )
        return rows, source, target

    def position(self, global_step: int) -> Position:
        """Where the data stands after `global_step` steps from the very start."""
        if self.mixture is not None:
            return Position(*self.mixture.position(global_step))
        return Position(*divmod(global_step, self.steps_per_epoch))

    def epochs_after(self, global_step: int) -> float:
        """How many epochs so many steps from the very start are."""
        at = self.position(global_step)
        return at.epoch + at.step / self.steps_of(at.epoch)


@final
@dataclass(frozen=True, eq=False)
class EpochPlan:
    """The steps of one epoch."""

    order: np.ndarray
    """int64 [sentences], a permutation of the corpus, or of what is drawn; cut into steps"""
    first: np.ndarray
    """int64 [steps], where each step starts in `order`, in the order of training"""
    last: np.ndarray
    """int64 [steps], where each step ends"""
    source_tokens: np.ndarray
    """int64 [steps], real source tokens over all ranks, eos counted"""
    target_tokens: np.ndarray
    """int64 [steps], real target tokens over all ranks, eos counted"""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.first)

    def sentences(self, step: int) -> np.ndarray:
        """int64 corpus indices of a step's sentences, in an order that no rank count changes."""
        return self.order[self.first[step] : self.last[step]]


def _sorted_by_length(
    source_lengths: np.ndarray, target_lengths: np.ndarray, band_offset: int,
    philox: np.random.Philox,
) -> np.ndarray:  # fmt: skip
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


def step_count(lengths: np.ndarray, tokens_per_step: int) -> int:
    """Steps of sentences with these lengths, tokens."""
    return min(len(lengths), -(-int(lengths.sum(dtype=np.int64)) // tokens_per_step))


def cut(lengths: np.ndarray, steps: int) -> np.ndarray:
    """Edges, int64 [steps + 1], of steps with token counts as equal as can be; none is empty."""
    if not len(lengths):
        return np.zeros(1, np.int64)
    tokens = np.cumsum(lengths, dtype=np.int64)
    wanted = np.arange(1, steps, dtype=np.int64) * tokens[-1] // steps
    inner = np.searchsorted(tokens, wanted) + 1
    # One sentence may be longer than a step's share, and two cuts are then the same place. Keep at
    # least one sentence in each step, counted from the left and then from the right.
    counter = np.arange(1, steps, dtype=np.int64)
    inner = np.maximum.accumulate(np.maximum(inner - counter, 0)) + counter
    inner = np.minimum(inner, len(lengths) - steps + counter)
    return np.concatenate(([0], inner, [len(lengths)])).astype(np.int64)
