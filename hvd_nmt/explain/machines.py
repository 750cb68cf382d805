"""What the machines did while the run ran: step times, GPUs, energy, rates of the network cards."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist, correlation, fmean, median, quantiles, stdev
from typing import Any

from hvd_nmt.records.record import HostSamples, Interval, Run
from hvd_nmt.telemetry.gpu import spinning

_GAP = 5.0
"""a pause between two samples of more than so many intervals is no measurement of that time"""


@dataclass(frozen=True)
class StepTimes:
    """The wall time of a step in seconds, without the first interval, which holds the start-up."""

    mean_s: float
    """over all steps"""
    margin_s: float | None
    """half width of the mean's 95 % interval, from the spread of the intervals; None below 4"""
    median_s: float
    """of the intervals"""
    low_s: float
    """of the intervals: 5 % are faster"""
    high_s: float
    """of the intervals: 5 % are slower"""
    intervals: int
    steps: int
    first_s: float | None
    """of the first interval, if it was left out"""


def step_times(run: Run) -> StepTimes | None:
    """Mean and spread of the step time; None if no step was timed."""
    timed = [i for i in run.intervals if i.step_s is not None and i.steps > 0]
    if not timed:
        return None
    first, settled = (timed[0], timed[1:]) if len(timed) > 1 else (None, timed)
    values = [i.step_s or 0.0 for i in settled]
    steps = sum(i.steps for i in settled)
    spread = quantiles(values, n=20, method="inclusive") if len(values) > 1 else values
    return StepTimes(
        mean_s=sum((i.step_s or 0.0) * i.steps for i in settled) / steps,
        margin_s=_margin(values),
        median_s=median(values),
        low_s=spread[0],
        high_s=spread[-1],
        intervals=len(values),
        steps=steps,
        first_s=first.step_s if first else None,
    )


def steps_done(run: Run) -> int:
    """Optimizer steps done. A log need not have a line for the last one of a finished run."""
    return max(run.steps_done, run.max_steps or 0) if run.finished else run.steps_done


def training_s(run: Run) -> float | None:
    """Seconds spent in steps; None if no step was timed."""
    times = [i.step_s * i.steps for i in run.intervals if i.step_s is not None]
    return sum(times) if times else None


def tokens_per_s(run: Run) -> float | None:
    """Mean rate of source and target tokens without the first interval; None if unknown."""
    known = [i for i in run.intervals if i.tokens_per_s is not None and i.step_s]
    known = known[1:] or known
    seconds = sum(i.steps * (i.step_s or 0.0) for i in known)
    tokens = sum(i.steps * (i.step_s or 0.0) * (i.tokens_per_s or 0.0) for i in known)
    return tokens / seconds if seconds else None


def last_record_s(run: Run) -> float | None:
    """Unix time of the last sign of life: a logged value or a host's sample."""
    times = [run.ended_s, *(of.samples[-1]["time_s"] for of in run.telemetry if of.samples)]
    return max((time_s for time_s in times if time_s is not None), default=None)


def wall_s(run: Run) -> float | None:
    """Seconds from the start of the run to its last sign of life; None without a clock."""
    last_s = last_record_s(run)
    return None if run.started_s is None or last_s is None else max(0.0, last_s - run.started_s)


@dataclass(frozen=True)
class GpuUse:
    """What a GPU did while steps ran: means over its samples, None where it does not tell."""

    host: str
    index: int
    name: str
    utilisation_percent: float | None
    memory_activity_percent: float | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None
    """integral of the power over the whole record, not only over the steps"""
    measured_s: float
    """seconds that the integral covers"""
    spinning: float | None = None
    """share of the samples in which it looked busy and computed next to nothing"""
    throttled: tuple[tuple[str, float], ...] = ()
    """why its clocks were held down, and in which share of the samples"""


def gpu_use(run: Run) -> tuple[GpuUse, ...]:
    """Each GPU of each host, in the hosts' order; empty without GPU samples."""
    return tuple(
        _use(of, index, list(in_steps(run, of.samples)))
        for of in run.telemetry
        for index in sorted({g["index"] for s in of.samples for g in s.get("gpus", [])})
    )


def in_steps(run: Run, samples: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The samples taken while training steps ran: not at the start, not in an evaluation."""
    spans = [span for span in map(_span, run.intervals) if span]
    position = 0
    for sample in samples:
        while position < len(spans) and spans[position][1] < sample["time_s"]:
            position += 1
        if position < len(spans) and spans[position][0] <= sample["time_s"]:
            yield sample


def cpu_percent(run: Run) -> float | None:
    """Mean CPU use of all hosts while steps ran; None if unknown."""
    values = [
        sample["cpu_percent"]
        for of in run.telemetry
        for sample in in_steps(run, of.samples)
        if sample.get("cpu_percent") is not None
    ]
    return fmean(values) if values else None


def main_interface(of: HostSamples) -> str | None:
    """The network card, loopback apart, that sent most; None where none sent anything."""
    sent: dict[str, float] = {}
    for sample in of.samples:
        for name, nic in sample.get("nics", {}).items():
            if not nic.get("is_loopback"):
                sent[name] = max(sent.get(name, 0.0), nic.get("sent_bytes_total") or 0.0)
    name = max(sent, key=lambda nic: sent[nic], default=None)
    return name if name and sent[name] > 0 else None


def traffic(run: Run) -> list[tuple[Interval, float]]:
    """Intervals with the rate at which a host sent meanwhile: MB/s, mean of the hosts."""
    found = []
    series = [rates for of in run.telemetry if (rates := _sent_rates(of))]
    positions = [0] * len(series)
    for interval in run.intervals:
        span = _span(interval)
        if span is None:
            continue
        means = []
        for number, rates in enumerate(series):
            inside = []
            while positions[number] < len(rates) and rates[positions[number]][0] <= span[1]:
                time_s, rate = rates[positions[number]]
                if time_s >= span[0]:
                    inside.append(rate)
                positions[number] += 1
            if inside:
                means.append(fmean(inside))
        if means:
            found.append((interval, fmean(means)))
    return found


@dataclass(frozen=True)
class Correlation:
    """Pearson's r with its 95 % interval by Fisher's transformation."""

    r: float
    low: float
    high: float
    n: int


def pearson(pairs: Sequence[tuple[float, float]]) -> Correlation | None:
    """Correlation of pairs; None for fewer than 4 or where one side does not vary."""
    n = len(pairs)
    if n < 4:
        return None
    x, y = zip(*pairs, strict=True)
    if min(x) == max(x) or min(y) == max(y):
        return None
    r = max(-1.0, min(1.0, correlation(x, y)))
    z = math.atanh(max(-0.999999, min(0.999999, r)))
    half = 1.96 / math.sqrt(n - 3)
    return Correlation(r, math.tanh(z - half), math.tanh(z + half), n)


def _sent_rates(of: HostSamples) -> list[tuple[float, float]]:
    name = main_interface(of)
    readings = ((s["time_s"], s.get("nics", {}).get(name, {})) for s in of.samples)
    rates = ((time_s, nic.get("sent_MB_per_s")) for time_s, nic in readings)
    return [(time_s, rate) for time_s, rate in rates if rate is not None]


def _span(interval: Interval) -> tuple[float, float] | None:
    if interval.time_s is None or interval.step_s is None:
        return None
    return interval.time_s - interval.steps * interval.step_s, interval.time_s


def _use(of: HostSamples, index: int, working: Sequence[dict[str, Any]]) -> GpuUse:
    known = {gpu["index"]: gpu for gpu in of.header.get("gpus", [])}.get(index, {})
    rows = [gpu for s in working for gpu in s.get("gpus", []) if gpu["index"] == index]

    def mean(field: str) -> float | None:
        values = [row[field] for row in rows if row.get(field) is not None]
        return fmean(values) if values else None

    points = [
        (sample["time_s"], gpu["power_w"])
        for sample in of.samples
        for gpu in sample.get("gpus", [])
        if gpu["index"] == index and gpu.get("power_w") is not None
    ]
    energy_j, measured_s = _integral(points, _GAP * (of.header.get("interval_s") or 1.0))
    return GpuUse(
        of.host, index, str(known.get("name", "GPU")),
        mean("utilisation_percent"), mean("memory_activity_percent"), mean("power_w"),
        mean("power_limit_w") or known.get("power_limit_w"),
        energy_j if measured_s else None, measured_s, *_states(rows),
    )  # fmt: skip


def _states(
    rows: Sequence[dict[str, Any]],
) -> tuple[float | None, tuple[tuple[str, float], ...]]:
    told = [state for state in map(spinning, rows) if state is not None]
    reasons = [row["throttle_reasons"] for row in rows if row.get("throttle_reasons") is not None]
    counts = Counter(reason for listed in reasons for reason in listed)
    throttled = tuple((reason, n / len(reasons)) for reason, n in counts.most_common())
    return (sum(told) / len(told) if told else None), throttled


def _integral(points: Sequence[tuple[float, float]], longest_s: float) -> tuple[float, float]:
    """Trapezoids over (seconds, value), and the seconds they cover; gaps are left out."""
    area = covered_s = 0.0
    for (from_s, a), (to_s, b) in itertools.pairwise(points):
        if 0 < to_s - from_s <= longest_s:
            area += (a + b) / 2 * (to_s - from_s)
            covered_s += to_s - from_s
    return area, covered_s


def _margin(values: Sequence[float]) -> float | None:
    """Half width of the mean's 95 % interval, with Student's t to 1 %.

    Source: Abramowitz and Stegun 1964, 26.7.5, the expansion in 1/degrees.
    """
    if len(values) < 4:
        return None
    z, degrees = NormalDist().inv_cdf(0.975), len(values) - 1
    t = (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
    return t * stdev(values) / math.sqrt(len(values))
