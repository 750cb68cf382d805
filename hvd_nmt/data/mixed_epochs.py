"""Which sentences of several corpora make up each epoch, in each stage of a run.

An epoch of a stage has as many pairs as the corpora in use have together. Each corpus `as is` comes
in it once; the others share the rest by their weights. So a small corpus comes several times, and
only a part of a large one. Each time it is the next part of a random order, and the order is new
when all of it has come. Over a stage, every sentence of a corpus is seen equally often, or once
more. All of it is a pure function of seed, stages and the numbers of pairs.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, final

import numpy as np

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.mixture import AS_IS, END, Stage, Weight
from hvd_nmt.data.corpus import DataDirectory

_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, odd
_END = 1 << 62
"""step at which the last stage ends"""
_FEWEST_STEPS = 32
"""fewest steps of the last epoch of a stage; fewer ones join the epoch before. In a few steps
sentences of very different lengths would meet, and be padded to the longest"""


class Place(NamedTuple):
    """An epoch within the stages."""

    stage: int
    """number of the stage, from 0"""
    first_step: int
    """steps of the run before it"""
    steps: int
    """steps of the epoch"""


@final
@dataclass(frozen=True, eq=False)
class MixedEpochs:
    """The epochs of a run on several corpora.

    ConfigError: a stage names a corpus that is not there, or has too few sentences a step.
    """

    ranges: Mapping[str, range]
    """places of each corpus among all sentences, by name"""
    target_lengths: np.ndarray
    """int [sentences] or [sentences, copies], tokens of each target, eos counted"""
    stages: Sequence[Stage]
    """one after the other, the last without an end"""
    tokens_per_step: int
    """real target tokens of a step, on average and at most about so many"""
    seed: int

    @classmethod
    def of(
        cls, data: DataDirectory, stages: Sequence[Stage], tokens_per_step: int, seed: int
    ) -> "MixedEpochs":
        """Epochs of data, by its weights if no stage is given; ConfigError: there is one corpus."""
        ranges = data.manifest.by_corpus("train")
        if not ranges:
            raise ConfigError(
                f"data.stages mixes corpora, and {data.path} has only one: prepare several with "
                "`python -m hvd_nmt.prepare --corpora FILE`, or remove data.stages."
            )
        weights = {corpus.name: corpus.weight for corpus in data.manifest.corpora}
        present = {name: weight for name, weight in weights.items() if ranges[name]}
        chosen = tuple(stages) or (Stage(END, present),)
        lengths = data.epochs.target.lengths.reshape(len(data.train), -1)
        return cls(ranges, lengths, chosen, tokens_per_step, seed)

    def __post_init__(self) -> None:
        for stage in self.stages:
            for name in stage.weights:
                if not self.ranges.get(name):
                    known = ", ".join(name for name, pairs in self.ranges.items() if pairs)
                    raise ConfigError(
                        f"data.stages names the corpus {name}, but the data have no pairs of it: "
                        f"use {known}."
                    )
        for number, stage in enumerate(self.stages, start=1):
            steps, pairs = self.steps_per_epoch[number - 1], sum(self._quotas[number - 1].values())
            if steps > 1 and pairs < (len(stage.weights) + 1) * steps:
                raise ConfigError(
                    f"Stage {number} has {float(pairs / steps):.1f} pairs a step, too few for "
                    f"{len(stage.weights)} corpora: raise training.tokens_per_step."
                )

    @property
    def is_plain(self) -> bool:
        """Whether each epoch has every pair once."""
        as_is = {name: AS_IS for name, pairs in self.ranges.items() if pairs}
        return len(self.stages) == 1 and dict(self.stages[0].weights) == as_is

    def place(self, epoch: int) -> Place:
        """Where an epoch is, from 0."""
        stage = bisect_right(self.first_epochs, epoch) - 1
        steps, of_stage = self.steps_per_epoch[stage], epoch - self.first_epochs[stage]
        begun = self._first_steps[stage] + of_stage * steps
        is_last = of_stage == self._epochs(stage) - 1
        return Place(stage, begun, self._ends[stage] - begun if is_last else steps)

    @cached_property
    def first_epochs(self) -> list[int]:
        """First epoch of each stage; epochs of the same stage are much alike."""
        return [0, *accumulate(map(self._epochs, range(len(self.stages) - 1)))]

    def position(self, global_step: int) -> tuple[int, int]:
        """Epoch and step within the epoch after so many steps from the very start."""
        stage = bisect_right(self._first_steps, global_step) - 1
        steps, done = self.steps_per_epoch[stage], global_step - self._first_steps[stage]
        epoch = min(done // steps, self._epochs(stage) - 1)
        return self.first_epochs[stage] + epoch, done - epoch * steps

    def draw(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The sentences of an epoch, corpus after corpus.

        Returns int64 places in the corpus, and int32 passes through it that they belong to, from 0,
        by which the next copy of a sentence is chosen.
        """
        stage, first_step, steps = self.place(epoch)
        sentences, passes = [], []
        for name in self.stages[stage].weights:
            first, last = (
                self._drawn(stage, name, step) for step in (first_step, first_step + steps)
            )
            pairs = len(self.ranges[name])
            before = sum(
                -(-self._drawn(earlier, name, self._ends[earlier]) // pairs)
                for earlier in range(stage)
                if name in self.stages[earlier].weights
            )
            for number in range(first // pairs, last // pairs + 1):
                begin, end = max(first - number * pairs, 0), min(last - number * pairs, pairs)
                part = self._part(name, before + number, begin, end)
                sentences.append(part)
                passes.append(np.full(len(part), before + number))
        return np.concatenate(sentences), np.concatenate(passes, dtype=np.int32)

    def shares(self, stage: int) -> dict[str, Fraction]:
        """Share of each corpus in use among a stage's pairs, by name."""
        whole = sum(self._quotas[stage].values())
        return {name: quota / whole for name, quota in self._quotas[stage].items()}

    def times_seen(self, stage: int, last_step: int) -> dict[str, float]:
        """How often a stage sees each pair of a corpus, where the run has so many steps."""
        end = min(last_step, self._ends[stage])
        return {
            name: self._drawn(stage, name, end) / len(self.ranges[name])
            for name in self.stages[stage].weights
            if end > self._first_steps[stage]
        }

    @cached_property
    def _ends(self) -> list[int]:
        return [_END if isinstance(s.until, str) else s.until for s in self.stages]

    @cached_property
    def _first_steps(self) -> list[int]:
        return [0, *self._ends[:-1]]

    @cached_property
    def _quotas(self) -> list[dict[str, Fraction]]:
        return [_pairs_of_epoch(self.ranges, stage.weights) for stage in self.stages]

    @cached_property
    def steps_per_epoch(self) -> list[int]:
        """Steps of the epochs of each stage; its last one may have others."""
        mean = {
            name: Fraction(int(lengths.sum(dtype=np.int64)), lengths.size)
            for name, pairs in self.ranges.items()
            if len(lengths := self.target_lengths[pairs.start : pairs.stop])
        }
        tokens = [sum(q * mean[name] for name, q in quotas.items()) for quotas in self._quotas]
        return [math.ceil(some / self.tokens_per_step) for some in tokens]

    def _epochs(self, stage: int) -> int:
        steps = self._ends[stage] - self._first_steps[stage]
        whole, left = divmod(steps, self.steps_per_epoch[stage])
        return whole if whole and left < _FEWEST_STEPS else whole + 1

    def _drawn(self, stage: int, name: str, step: int) -> int:
        """Pairs of a corpus that a stage has drawn until a step of the run."""
        epochs = Fraction(step - self._first_steps[stage], self.steps_per_epoch[stage])
        return int(epochs * self._quotas[stage][name])

    def _part(self, name: str, number: int, begin: int, end: int) -> np.ndarray:
        """Sentences of a pass through a corpus from the begin-th to the end-th, sorted."""
        pairs = self.ranges[name]
        if end - begin in (0, len(pairs)):
            return np.arange(pairs.start, pairs.start + end - begin)
        key = np.zeros(1, np.uint64)
        for part in (self.seed, number, pairs.start):
            key = _mixed(key ^ np.uint64(part))
        order = np.argsort(_mixed(key ^ np.arange(len(pairs), dtype=np.uint64)), kind="stable")
        return np.sort(order[begin:end]) + pairs.start


def _pairs_of_epoch(
    ranges: Mapping[str, range], weights: Mapping[str, Weight]
) -> dict[str, Fraction]:
    pairs = {name: Fraction(len(ranges[name])) for name in weights}
    shares = {name: Fraction(str(w)) for name, w in weights.items() if w != AS_IS}
    shared, whole = sum(pairs[name] for name in shares), sum(shares.values())
    return pairs | {name: shared * share / whole for name, share in shares.items()}


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64, uint64: a bijection in which each bit depends on all.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
    """
    x = x + _STRIDE
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
