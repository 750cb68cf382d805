"""What the network cards of the hosts carried while steps ran.

A card's counter begins anew with each start of the sampler, so only growth within a start counts.
"""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from hvd_nmt.records.record import HostSamples, Interval, Run

Sample = dict[str, Any]


@dataclass(frozen=True)
class Traffic:
    """What a host sent over one of its network cards."""

    interface: str
    bytes_per_step: float
    link_MB_per_s: float | None
    """what the card says that its link allows, MB/s (1e6 bytes); None where it does not tell"""


def sent_per_step(run: Run, intervals: Sequence[Interval]) -> Traffic | None:
    """What the host in the middle sends in a step, over its busiest card that is no loopback.

    None where no host counted bytes while the steps ran.
    """
    clock = _StepClock(intervals)
    found = [sent for host in run.telemetry if (sent := _host_traffic(host, clock))]
    found.sort(key=lambda sent: sent.bytes_per_step)
    return found[len(found) // 2] if found else None


def rates(run: Run) -> list[tuple[Interval, float]]:
    """Intervals with the rate at which a host sent meanwhile: MB/s of 1e6 bytes, mean of hosts."""
    series = [rates for host in run.telemetry if (rates := _sent_rates(host))]
    found = []
    for interval in run.intervals:
        begin_s, end_s = span_s(interval) or (math.inf, -math.inf)
        inside = [
            rates[bisect_left(rates, (begin_s,)) : bisect_right(rates, (end_s, math.inf))]
            for rates in series
        ]
        means = [fmean(rate for _, rate in part) for part in inside if part]
        if means:
            found.append((interval, fmean(means)))
    return found


def main_interface(host: HostSamples) -> str | None:
    """The network card, loopback apart, that sent most; None where none sent anything."""
    sent = sum((_sent_between(*pair) for pair in same_start(host.samples)), Counter[str]())
    return max(sent, key=lambda name: sent[name], default=None)


def same_start(samples: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Neighbouring samples between which the sampler was not started anew."""
    return [
        (before, after)
        for before, after in itertools.pairwise(samples)
        if before.get("start") == after.get("start")
    ]


def span_s(interval: Interval) -> tuple[float, float] | None:
    """Unix times between which the steps of an interval ran; None where it has no clock."""
    if interval.time_s is None or interval.step_s is None:
        return None
    return interval.time_s - interval.steps * interval.step_s, interval.time_s


def _host_traffic(host: HostSamples, clock: "_StepClock") -> Traffic | None:
    pairs = same_start(host.samples)
    sent, steps, newest = Counter[str](), 0.0, Sample()
    for (before, after), between in zip(pairs, clock.steps_between(pairs), strict=True):
        if between > 0 and (grown := _sent_between(before, after)):
            sent.update(grown)
            steps, newest = steps + between, after
    if not sent:
        return None
    name = max(sent, key=lambda card: sent[card])
    link = newest["nics"].get(name, {}).get("link_mbit_per_s")
    return Traffic(name, sent[name] / steps, link / 8 if link else None)


class _StepClock:
    """Steps done by a moment, for moments within the starts of a run."""

    def __init__(self, intervals: Sequence[Interval]) -> None:
        self._times_s, self._steps = [0.0], [0.0]
        self._starts: dict[int, list[float]] = {}
        for interval in intervals:
            begin_s, end_s = span_s(interval) or (0.0, 0.0)
            begin_s = max(begin_s, self._times_s[-1])
            if end_s > self._times_s[-1]:  # else it has no clock, or that was set back
                self._times_s += [begin_s, end_s]
                self._steps += [self._steps[-1], self._steps[-1] + interval.steps]
                self._starts.setdefault(interval.start, [begin_s, end_s])[1] = end_s

    def steps_between(self, pairs: Sequence[tuple[Sample, Sample]]) -> list[float]:
        """Steps done between two samples, pair by pair; 0 where both are not within one start."""
        times_Px2 = np.array([[s["time_s"] for s in pair] for pair in pairs]).reshape(-1, 2)
        inside_P = np.zeros(len(pairs), bool)
        for first_s, last_s in self._starts.values():  # a clock that was set back gives less than 0
            inside_P |= (times_Px2[:, 0] >= first_s) & (times_Px2[:, 1] <= last_s)
        done_Px2 = np.interp(times_Px2, self._times_s, self._steps)
        return list(np.where(inside_P, done_Px2[:, 1] - done_Px2[:, 0], 0.0).tolist())


def _sent_between(before: Sample, after: Sample) -> Counter[str]:
    """Bytes that each card but the loopback sent between two samples of a start."""
    cards = before.get("nics", {})
    grown = {
        name: nic["sent_bytes_total"] - cards[name]["sent_bytes_total"]
        for name, nic in after.get("nics", {}).items()
        if name in cards and not nic["is_loopback"]
    }
    return Counter({name: n_bytes for name, n_bytes in grown.items() if n_bytes >= 0})


def _sent_rates(host: HostSamples) -> list[tuple[float, float]]:
    name = main_interface(host)
    readings = ((s["time_s"], s.get("nics", {}).get(name, {})) for s in host.samples)
    rates = ((time_s, nic.get("sent_MB_per_s")) for time_s, nic in readings)
    return [(time_s, rate) for time_s, rate in rates if rate is not None]
