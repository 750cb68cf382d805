"""How long a run and its steps took."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles, stdev

from hvd_nmt.explain.estimates import student_t
from hvd_nmt.explain.intervals import last_settings, settled
from hvd_nmt.records.record import Launch, Run


@dataclass(frozen=True)
class StepTimes:
    """The wall time of a step in seconds, without the first interval of each start."""

    mean_s: float
    """mean over all steps"""
    margin_s: float | None
    """half width of the mean's 95 % interval, from the spread of the intervals; None below 4"""
    median_s: float
    """median over the intervals, as the next two"""
    low_s: float
    """5th percentile"""
    high_s: float
    """95th percentile"""
    intervals: int
    steps: int
    first_s: tuple[float, ...]
    """seconds of a step in the intervals that do not count, because they hold the tracing"""


def step_times(run: Run) -> StepTimes | None:
    """Mean and spread of the step time under the newest settings; None if no step was timed."""
    timed = [i for i in last_settings(run).intervals if i.step_s is not None and i.steps > 0]
    if not timed:
        return None
    counted = settled(timed)
    values, steps = [i.step_s or 0.0 for i in counted], [i.steps for i in counted]
    spread = quantiles(values, n=20, method="inclusive") if len(values) > 1 else values
    kept, margin_s = {i.step for i in counted}, None
    if len(values) >= 4:
        margin_s = student_t(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return StepTimes(
        fmean(values, steps), margin_s, median(values), spread[0], spread[-1], len(values),
        sum(steps), tuple(i.step_s or 0.0 for i in timed if i.step not in kept),
    )  # fmt: skip


def steps_done(run: Run) -> int:
    """Optimizer steps done. A log need not have a line for the last one of a finished run."""
    if run.early_end is not None:
        return run.early_end.step
    return max(run.steps_done, run.max_steps or 0) if run.finished else run.steps_done


def training_s(run: Run) -> float | None:
    """Seconds spent in steps; None if no step was timed."""
    times = [i.step_s * i.steps for i in run.intervals if i.step_s is not None]
    return sum(times) if times else None


def mean_rate(run: Run, field: str) -> float | None:
    """Mean of a field that is a rate, over the time of the steps of `step_times`; None: unknown."""
    part = last_settings(run).intervals
    known = settled([i for i in part if getattr(i, field) is not None and i.step_s])
    seconds = [i.steps * (i.step_s or 0.0) for i in known]
    return fmean([getattr(i, field) for i in known], seconds) if known else None


def last_record_s(run: Run) -> float | None:
    """Unix time of the last sign of life: a logged value or a host's sample."""
    first = [host for host in run.telemetry if host.host in run.hosts[:1]]  # others: other clocks
    times = [run.ended_s, *(host.samples[-1]["time_s"] for host in first if host.samples)]
    return max((time_s for time_s in times if time_s is not None), default=None)


def wall_s(run: Run) -> float | None:
    """Seconds from the start of the run to its last sign of life; None without a clock."""
    last_s = last_record_s(run)
    return None if run.started_s is None or last_s is None else max(0.0, last_s - run.started_s)


def lost_steps(launches: Sequence[Launch]) -> int:
    """Steps that starts by `hvd_nmt.launch` made again, by what they resumed from."""
    resumed = [(launch.resumed_step, launch.last_step) for launch in launches]
    began = [(first, last or first) for first, last in resumed if first is not None]
    return sum(max(0, last - first) for (_, last), (first, _) in itertools.pairwise(began))
