"""Goodput: the share of a run's wall time that made its weights, and what took the rest."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from hvd_nmt.common.units import count, duration, percent
from hvd_nmt.explain import durations
from hvd_nmt.explain.intervals import by_settings, mean, named_parts, seconds_of, typical
from hvd_nmt.records.record import Interval, Run

STEPS, START = "steps that counted, at the median step", "start-up and tracing of the graph"
AGAIN, LEFT_OUT = "steps done again", "steps skipped for NaN or Inf"
TAIL, OTHER = "since the last logged step", "the rest: between steps and records"
_TOLERANCE = 0.01  # share of the wall time by which the parts of a sound record may exceed it


@dataclass(frozen=True)
class Goodput:
    """The wall time of a run in parts."""

    wall_s: float
    """seconds from the first start to the last sign of life"""
    share: float | None
    """share of it in steps that counted, at the median step; None: the record lacks some part"""
    parts: dict[str, float]
    """seconds by what they went for; with a share they add up to the wall time"""

    def __str__(self) -> str:
        if self.share is None:
            return "unknown"
        name, seconds = max(list(self.parts.items())[1:], key=lambda part: part[1])
        most = f"{name} {percent(seconds / self.wall_s)}"
        return f"{percent(self.share)} of {duration(self.wall_s)}; {most}"


def goodput(run: Run) -> Goodput | None:
    """Computes it from a record; None without a clock or without times of steps.

    A step counts once, if its result is in the weights: not again where a start did it again, and
    not with NaN or Inf. It counts as the median step under its settings, from the means of the
    intervals but the first of each start, whose excess is tracing.
    """
    wall_s, timed = durations.wall_s(run), [i.step_s for i in run.intervals if i.step_s is not None]
    if not wall_s or not timed:
        return None
    usual_s = _median_s(run) or max(timed)
    parts = Counter({STEPS: 0.0, START: run.startup_s or 0.0})
    for part in by_settings(run):
        _add_steps(parts, part, _median_s(part) or usual_s)
    parts.update(aside_s(run))
    times = (run.startup_s, run.ended_s, _median_s(run), *(start.time_s for start in run.starts))
    is_whole = None not in times and len(run.pauses) == len(run.starts) - 1
    if is_whole:
        _add_starts(parts, run, usual_s)
        parts.update({TAIL: (run.started_s or 0.0) + wall_s - (run.ended_s or 0.0)})
    other_s = wall_s - sum(parts.values())
    parts.update({OTHER: max(0.0, other_s)})
    share = parts[STEPS] / wall_s if is_whole and other_s >= -_TOLERANCE * wall_s else None
    return Goodput(wall_s, share, {name: s for name, s in parts.items() if s or name == OTHER})


def aside_s(run: Run) -> dict[str, float]:
    """Seconds of what a run does next to its steps, start-up apart, by its name."""
    times = [e.seconds + (e.keep_s or 0.0) for e in run.evaluations if e.seconds is not None]
    gaps = [(of.has_end, s) for of, (_, s, _) in zip(run.starts, run.pauses, strict=False)]
    pauses, restarts = ([s for has_end, s in gaps if has_end is ended] for ended in (True, False))
    return {
        count(len(times), "evaluation"): sum(times),
        count(len(run.saves), "checkpoint"): sum(save.wait_s + save.join_s for save in run.saves),
        "waiting for other ranks after checkpoints": sum(save.others_s for save in run.saves),
        count(len(restarts), "restart") + " after a failure": sum(restarts),
        count(len(pauses), "pause") + " between starts": sum(pauses),
    }


def _first_and_later(run: Run) -> tuple[list[Interval], list[Interval]]:
    """Timed intervals: the first of each start, and the others."""
    pairs = itertools.pairwise([Interval(0, 0, start=-1), *run.intervals])
    timed = [(a.start == b.start, b) for a, b in pairs if b.step_s is not None]
    return [b for is_later, b in timed if not is_later], [b for is_later, b in timed if is_later]


def _median_s(run: Run) -> float | None:
    _, later = _first_and_later(run)
    return median(i.step_s or 0.0 for i in later) if later else None


def _add_steps(parts: Counter[str], run: Run, usual_s: float) -> None:
    """Adds the logged steps of equal settings, whose median is `usual_s`."""
    first, later = _first_and_later(run)
    for rows in (first, later):
        counted_s = min(seconds_of(rows), usual_s * sum(i.steps for i in rows))
        more_s = seconds_of(rows) - counted_s
        parts.update({STEPS: counted_s, START: more_s if rows is first else 0.0})
        if rows is later and more_s:
            parts.update(_slower_s(run, later, more_s))


def _slower_s(run: Run, intervals: Sequence[Interval], seconds: float) -> dict[str, float]:
    """Seconds above the median step, by how far each part of a step exceeds its own median."""
    actual, usual, names = mean(intervals), typical(intervals), named_parts(run.ranks)
    grown = {words: max(0.0, getattr(actual, name) - getattr(usual, name))
             for name, words in names.items()}  # fmt: skip
    total = sum(grown.values())
    if not total:  # a log need not have the parts
        return {"slower steps": seconds}
    return {f"slower steps: {words}": seconds * more / total for words, more in grown.items()}


def _add_starts(parts: Counter[str], run: Run, usual_s: float) -> None:
    """Adds what only the times of records show: beginnings of starts, and steps without a line."""
    ends = (*run.pauses, (run.ended_s or 0.0, 0.0, 0))
    times = [(e.time_s or 0.0, (e.seconds or 0.0) + (e.keep_s or 0.0)) for e in run.evaluations]
    times += [(of.time_s or 0.0, of.wait_s + of.join_s + of.others_s) for of in run.saves]
    for number, (start, (end_s, _, lost)) in enumerate(zip(run.starts, ends, strict=True)):
        began_s, later = start.time_s or 0.0, run.starts[number + 1 : number + 2]
        aside = [(time_s, s) for time_s, s in times if began_s <= time_s <= end_s]
        rows = [i for i in run.intervals if i.start == number]
        steps = [start.first_step - 1, *(i.step for i in rows)]
        left_out_s = [usual_s * (b.step - a - b.steps) for a, b in zip(steps, rows, strict=False)]
        parts.update({LEFT_OUT: sum(left_out_s)})
        times_s = [i.time_s or 0.0 for i in rows]
        last_s = [began_s, *times_s][-1]
        after_s = max(0.0, end_s - last_s - sum(s for time_s, s in aside if time_s > last_s))
        if rows:
            known_s = seconds_of(rows[:1]) + sum(left_out_s[:1])
            known_s += sum(s for time_s, s in aside if time_s <= times_s[0])
            parts.update({START: max(0.0, times_s[0] - began_s - known_s)})
        if not later:
            parts.update({TAIL if rows else START: after_s})
        for following in later:
            counted_s = min(after_s, usual_s * (following.first_step - 1 - steps[-1]))
            again_s = after_s - counted_s
            if not (rows and lost):  # its tracing took time, too, and its lines are gone
                again_s = min(again_s, usual_s * lost)
            parts.update({STEPS: counted_s, AGAIN: again_s, START: after_s - counted_s - again_s})
