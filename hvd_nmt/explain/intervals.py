"""Which intervals of a run count, what a mean step of them is, and where the run changes."""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from hvd_nmt.records.record import Interval, Run

PARTS = {
    "input_wait_s": "waiting for input",
    "compute_s": "computing",
    "straggler_wait_s": "waiting for the slowest rank",
    "communication_s": "exposed communication",
}
"""fields of `Interval` that add up to a step, in the order in which they happen, in words"""
CHANGE_THAT_COUNTS = 0.2
"""share of a step by which one of its parts must change to make another phase of the run"""
_SURELY = 0.9  # share of the pairs (before, after) in which the one after is larger, or smaller
_LEAST_SHARE = 0.1  # share of the time or of the steps that a phase must take
_USUAL_LENGTH = 3  # number of intervals that a phase of a short run must have
_LARGE_CHANGE = 0.5  # share of a step: a change by more is believed of two intervals
_WINDOW = 5  # number of neighbours that an interval is compared with, itself one of them
_STALL, _STALL_STEPS = 1.5, 5
"""duration of a step of a stall over a usual one, and its excess over usual steps, in steps"""
_MOST_BLOCKS = 200  # number of parts into which a long run is cut before it is searched for phases


@dataclass(frozen=True)
class Stall:
    """A single interval in which far more time went than in its neighbours."""

    interval: Interval
    seconds: float
    """time beyond what its steps usually take"""
    part: str
    """the part of a step that grew most, in words"""


@dataclass(frozen=True)
class Course:
    """A run under its newest settings, and its intervals as they are judged."""

    run: Run
    settled: Sequence[Interval]
    """intervals whose parts are known, without the first of each start"""
    step: Interval
    """mean step of the settled intervals"""
    shares: dict[str, float]
    """shares of the time of all their steps, by the words of `named_parts`"""
    stalls: Sequence[Stall]
    even: Sequence[Interval]
    """settled intervals without those of stalls"""
    phases: Sequence[Sequence[Interval]]
    """even intervals, cut where a part of the steps changed"""


def course(run: Run) -> Course | None:
    """What of a run is judged; None where the parts of its newest steps are unknown."""
    run = last_settings(run)
    parted = [i for i in run.intervals if None not in (i.step_s, i.compute_s, i.communication_s)]
    counted = settled(parted)
    if not counted:
        return None
    step = mean(counted)
    shares = {words: (getattr(step, name) or 0.0) / (step.step_s or 1.0)
              for name, words in named_parts(run.ranks).items()}  # fmt: skip
    stalled = stalls(counted, run.ranks)
    long = [stall.interval for stall in stalled]
    pairs = itertools.pairwise([counted[0], *counted])  # pauses of a stall count one step later
    even = [replace(b, rank_paused_s=()) if a in long else b for a, b in pairs if b not in long]
    return Course(run, counted, step, shares, stalled, even, phases(even))


def by_settings(run: Run) -> list[Run]:
    """The run, cut where a start had another exchange, or other numbers of ranks on its hosts."""
    groups = itertools.groupby(
        run.intervals,
        lambda i: (sorted(Counter(run.hosts_of(i)).values()), run.start_of(i).exchange),
    )
    parts = [tuple(rows) for _, rows in groups]
    return [replace(run, intervals=rows, hosts=run.hosts_of(rows[-1])) for rows in parts] or [run]


def last_settings(run: Run) -> Run:
    """Its steps since its settings changed last; those before, until two intervals are known."""
    parts = by_settings(run)
    return next((part for part in reversed(parts) if len(part.intervals) > 1), parts[-1])


def settled(intervals: Sequence[Interval]) -> list[Interval]:
    """All but the first interval of each start, which holds the tracing of the graph."""
    later = [b for a, b in itertools.pairwise(intervals) if a.start == b.start]
    return later or list(intervals)


def mean(intervals: Sequence[Interval]) -> Interval:
    """The mean step of some intervals, one at least: the time of each part over all their steps.

    The ranks are those of the start that took most of the time: another may have had other hosts.
    """
    return _merged(intervals, lambda values, steps: np.average(values, axis=0, weights=steps))


def typical(intervals: Sequence[Interval]) -> Interval:
    """The step in the middle: as `mean`, but with the median of each part, which no stall moves."""
    return _merged(intervals, lambda values, _: np.median(values, axis=0))


def _merged(
    intervals: Sequence[Interval], middle: Callable[[list[Any], list[int]], Any]
) -> Interval:
    """Several as one; values of ranks come from the start that took longest."""
    starts = [list(rows) for _, rows in itertools.groupby(intervals, lambda i: i.start)]
    of_start = max(starts, key=seconds_of)

    def of_all(name: str) -> float:
        values = [getattr(i, name) or 0.0 for i in intervals]
        return float(middle(values, [i.steps for i in intervals]))

    def of_ranks(name: str) -> tuple[float, ...]:
        known = [i for i in of_start if getattr(i, name)]
        rows = [getattr(i, name) for i in known]
        return tuple(middle(rows, [i.steps for i in known]).tolist()) if rows else ()

    parts: dict[str, Any] = {name: of_all(name) for name in PARTS}
    exchanges = any(i.exchange_s is not None for i in intervals)
    return Interval(
        intervals[-1].step, sum(i.steps for i in intervals), step_s=sum(parts.values()),
        **parts, start=of_start[0].start,
        exchange_s=of_all("exchange_s") if exchanges else None,
        rank_ready_s=of_ranks("rank_ready_s"), rank_input_wait_s=of_ranks("rank_input_wait_s"),
        rank_paused_s=of_ranks("rank_paused_s"),
    )  # fmt: skip


def named_parts(ranks: int) -> dict[str, str]:
    """`PARTS`, with the words for one rank, which communicates with no other."""
    return PARTS if ranks > 1 else PARTS | {"communication_s": "the rest of the step"}


def stalls(intervals: Sequence[Interval], ranks: int) -> list[Stall]:
    """The stalls of a run; none if there are so many that they are how its steps are."""
    stalled = []
    for n, interval in enumerate(intervals):
        near = intervals[max(0, n - _WINDOW // 2) : n + _WINDOW // 2 + 1]
        usual, step_s = typical(near), _own_s(interval)
        usual_s = float(np.median([_own_s(other) for other in near]))
        seconds = (step_s - usual_s) * interval.steps
        if step_s > _STALL * usual_s and seconds > _STALL_STEPS * usual_s and len(near) > 2:
            grown = {part: (getattr(interval, name) or 0.0) - getattr(usual, name)
                     for name, part in named_parts(ranks).items()}  # fmt: skip
            stalled.append(Stall(interval, seconds, max(grown, key=lambda part: grown[part])))
    return stalled if len(stalled) <= max(_USUAL_LENGTH, len(intervals) // 20) else []


def _own_s(interval: Interval) -> float:
    """Seconds of a step without the rare exchanges of local steps."""
    return (interval.step_s or 0.0) - (interval.exchange_s or 0.0)


def phases(intervals: Sequence[Interval]) -> list[Sequence[Interval]]:
    """Cuts a run where a part of its steps changes, and stays changed.

    Neighbouring stretches are joined, the most similar first, until each differs from the next by
    more than `CHANGE_THAT_COUNTS`: the bottom-up algorithm of Keogh et al. 2001.
    """
    blocks_at = np.linspace(0, len(intervals), min(len(intervals), _MOST_BLOCKS) + 1, dtype=int)
    blocks = [mean(intervals[a:b]) for a, b in itertools.pairwise(blocks_at)]
    cuts = [*range(len(blocks) + 1)]
    whole_s, steps = seconds_of(blocks), sum(block.steps for block in blocks)
    usual = max(_USUAL_LENGTH, len(blocks) // 20)

    @cache
    def difference(begin: int, cut: int, end: int) -> float:
        parts = blocks[begin:cut], blocks[cut:end]
        change = _difference(*parts)
        fewest = 2 if change > _LARGE_CHANGE else usual
        enough = all(
            len(part) >= fewest
            and max(seconds_of(part) / whole_s, sum(b.steps for b in part) / steps) >= _LEAST_SHARE
            for part in parts
        )
        return change - (0.0 if enough else 1e3)

    while len(cuts) > 2:
        differences = list(map(difference, cuts, cuts[1:], cuts[2:]))
        if min(differences) >= CHANGE_THAT_COUNTS:
            break
        del cuts[1 + differences.index(min(differences))]
    return [
        [interval for interval in intervals if begin < interval.step <= end]
        for begin, end in itertools.pairwise([0, *(blocks[cut - 1].step for cut in cuts[1:])])
    ]


def seconds_of(intervals: Sequence[Interval]) -> float:
    """The wall time of all their steps; 0 for those without."""
    return sum((interval.step_s or 0.0) * interval.steps for interval in intervals)


def _difference(before: Sequence[Interval], after: Sequence[Interval]) -> float:
    """By which share of a step the part that changed most differs, where it surely does.

    A rank that is ready earlier or later is a part, too, if both have as many ranks.
    """
    ranks = {len(i.rank_ready_s) for i in (*before, *after)}
    compared = ranks.pop() if len(ranks) == 1 else 0

    def values(part: Sequence[Interval]) -> np.ndarray:
        rows = [[*(getattr(i, name) or 0.0 for name in PARTS), *i.rank_ready_s[:compared]]
                for i in part]  # fmt: skip
        return np.array(rows).T

    step_s = max(typical(before).step_s or 0.0, typical(after).step_s or 0.0) or 1.0
    largest = 0.0
    for a, b in zip(values(before), values(after), strict=True):
        if max((a[:, None] < b).mean(), (a[:, None] > b).mean()) >= _SURELY:
            largest = max(largest, float(abs(np.median(b) - np.median(a))) / step_s)
    return largest
