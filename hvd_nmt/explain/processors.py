"""What the GPUs and CPUs of a run did while its steps ran."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hvd_nmt.records.record import HostSamples, Run, Sample
from hvd_nmt.telemetry.gpu import spinning


@dataclass(frozen=True)
class GpuUse:
    """What a GPU did while steps ran: means over its samples, None where it does not tell."""

    name: str
    power_w: float | None
    of_limit_percent: float | None
    """power over the power limit"""
    memory_activity_percent: float | None
    utilisation_percent: float | None
    spinning_percent: float | None
    """share of the samples in which it looked busy and computed next to nothing"""
    energy_j: float | None = None
    """joules drawn over the whole record, not only in steps, by the GPU's own counter"""
    throttled: tuple[tuple[str, float], ...] = ()
    """reasons that held its clocks down, each with its share of the samples"""


def gpu_use(run: Run) -> tuple[GpuUse, ...]:
    """Each GPU of each host, in the hosts' order; empty without GPU samples."""
    uses: list[GpuUse] = []
    for host in run.telemetry:
        working = [sample for interval in run.intervals for sample in host.during(interval)]
        indices = sorted({gpu["index"] for s in host.samples for gpu in s.get("gpus", [])})
        uses += [_use(host, index, working) for index in indices]
    return tuple(uses)


def mean_use(uses: Sequence[GpuUse]) -> GpuUse:
    """The mean of several GPUs, of each value over those that tell it."""
    names = ("power_w", "of_limit_percent", "memory_activity_percent", "utilisation_percent",
             "spinning_percent")  # fmt: skip
    means: dict[str, Any] = {
        name: _known_mean(getattr(use, name) for use in uses) for name in names
    }
    return GpuUse("mean", **means)


def _known_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _use(host: HostSamples, index: int, working: Sequence[Sample]) -> GpuUse:
    known = _gpu(host.header, index)
    rows = [gpu for sample in working if (gpu := _gpu(sample, index))]

    def mean(field: str) -> float | None:
        return _known_mean(row.get(field) for row in rows)

    power_w, limit_w = mean("power_w"), mean("power_limit_w") or known.get("power_limit_w")
    spins = _known_mean(map(spinning, rows))
    reasons = [row["throttle_reasons"] for row in rows if row.get("throttle_reasons") is not None]
    counts = Counter(reason for listed in reasons for reason in listed)
    counted_j = ([_gpu(s, index).get("energy_j") for s in pair] for pair in host.neighbours())
    drawn_j = [b - a for a, b in counted_j if a is not None and b is not None]
    return GpuUse(
        f"{host.host}:{index} {known.get('name', 'GPU')}", power_w,
        100 * power_w / limit_w if power_w and limit_w else None,
        mean("memory_activity_percent"), mean("utilisation_percent"),
        None if spins is None else 100 * spins, sum(drawn_j) if drawn_j else None,
        tuple((reason, n / len(reasons)) for reason, n in counts.most_common()),
    )  # fmt: skip


def _gpu(line: Sample, index: int) -> Sample:
    return next((gpu for gpu in line.get("gpus", []) if gpu["index"] == index), {})


def cpu_percents(run: Run) -> tuple[float | None, float | None]:
    """How busy the CPUs of all hosts were while steps ran, and the part of other programs.

    Both are means in percent of all processors; None if unknown.
    """
    inside = (host.during(interval) for host in run.telemetry for interval in run.intervals)
    samples = list(itertools.chain.from_iterable(inside))
    others = (
        max(0.0, sample["cpu_percent"] - sample["own_cpu_percent"])
        for sample in samples
        if None not in (sample.get("cpu_percent"), sample.get("own_cpu_percent"))
    )
    return _known_mean(sample.get("cpu_percent") for sample in samples), _known_mean(others)
