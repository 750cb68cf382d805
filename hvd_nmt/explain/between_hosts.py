"""What travels between the hosts of a run: bytes predicted and counted, and the step they make."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from hvd_nmt.config.exchange import PLAIN
from hvd_nmt.explain.exchange_cost import Step, latency_s, ring_bytes, sent_bytes_per_step
from hvd_nmt.explain.intervals import last_settings, settled
from hvd_nmt.records.record import HostSamples, Interval, Run, Sample

_MOST_TALK = 2e6
"""most bytes a second of what Horovod's ranks ask each other; 0.1 to 0.5 MB/s were measured between
two hosts with one and two ranks each"""
_HEADERS = 0.05
"""share of TCP's headers in the bytes: 66 in each segment of 1,514"""


@dataclass(frozen=True)
class Traffic:
    """What a host sent over one of its network cards."""

    host: str
    interface: str
    bytes_per_step: float
    link_MB_per_s: float | None
    """speed of its link as the card reports it, MB/s (1e6 bytes); None: not reported"""


@dataclass(frozen=True)
class Network:
    """What travels between the hosts of a run in a step; a field is None where it is unknown."""

    predicted_bytes: float | None = None
    """bytes that each host sends in a step, by the law of the exchange"""
    sent: Traffic | None = None
    """traffic of the host in the middle, by the counter of its card"""
    others_s: float = 0.0
    """seconds of a step that other programs cost the host that sent most; 0: none sent much"""
    others_send: bool = False
    """whether the host in the middle sent more than training and its protocols explain"""
    link_MB_per_s: float | None = None
    """speed of the link while bytes travelled, MB/s (1e6 bytes)"""
    round_trip_s: float | None = None
    """seconds of a packet and its answer, where most of an exchange waits for such round trips"""

    @property
    def seen_bytes(self) -> float | None:
        """Bytes that the host in the middle sent in a step."""
        return self.sent.bytes_per_step if self.sent else None


def network(run: Run, intervals: Sequence[Interval], step: Interval) -> Network:
    """What is known of intervals with equal settings, whose mean step is `step`."""
    if len(set(run.hosts)) < 2:
        return Network()
    predicted, by_host = predicted_bytes(run, intervals), traffic(run, intervals)
    trip_s = _limiting_round_trip_s(run, step, intervals, predicted or 0.0)
    if not by_host:
        return Network(predicted, round_trip_s=trip_s)
    sent, most, model = by_host[len(by_host) // 2], by_host[-1], step_of(run, step)
    others_s = 0.0
    if predicted and _others_send(predicted, most, step):
        others_s = waited_s(run, step) * (1 - predicted / most.bytes_per_step)
    return Network(
        predicted, sent, others_s, _others_send(predicted, sent, step),
        model.link_MB_per_s(sent.bytes_per_step) if model.transfer_s else None, trip_s,
    )  # fmt: skip


def waited_s(run: Run, interval: Interval) -> float:
    """Seconds of a step of exposed transfer between hosts, or between ranks where there is one.

    Several ranks on a host that trains alone also sum their gradients there, in each step.
    """
    is_alone = max(_ranks_by_host(run, interval), default=1) == 1
    if is_alone or not run.start_of(interval).exchange.trains_alone or interval.exchange_s is None:
        return interval.communication_s or 0.0
    return interval.exchange_s


def _others_send(predicted: float | None, sent: Traffic, step: Interval) -> bool:
    """Whether a host sent more in a step than training and its protocols explain."""
    if not predicted or not step.step_s:
        return False
    explained = _HEADERS * predicted + _MOST_TALK * step.step_s
    return sent.bytes_per_step - predicted >= explained


def _limiting_round_trip_s(
    run: Run, step: Interval, intervals: Sequence[Interval], bytes_per_step: float
) -> float | None:
    """Seconds of a round trip on the longest way, if most of the mean step's wait is such trips."""
    medians_s = []
    for host in run.telemetry:
        samples = (sample for interval in intervals for sample in host.during(interval))
        known = [ms for sample in samples if (ms := sample.get("round_trip_ms")) is not None]
        medians_s += [median(known) / 1000] if known else []
    trip_s = max(medians_s, default=0.0)
    exchange, ranks = run.start_of(step).exchange, run.hosts_of(step)
    members = len(ranks if exchange == PLAIN else set(ranks))
    n_bytes = bytes_per_step * exchange.sync_every
    trips_s = latency_s(trip_s, n_bytes, members) / exchange.sync_every
    return trip_s if trip_s and trips_s >= waited_s(run, step) / 2 else None


def step_of(run: Run, interval: Interval, exposed_s: float | None = None) -> Step:
    """The model of a mean step; `exposed_s`: what other bytes would change, all that it waited."""
    exchange = run.start_of(interval).exchange
    exposed_s = waited_s(run, interval) if exposed_s is None else exposed_s
    return Step(
        (interval.step_s or 0.0) - exposed_s, interval.compute_s or 0.0,
        exposed_s * exchange.sync_every,
        ranks_by_host=_ranks_by_host(run, interval), exchange=exchange,
    )  # fmt: skip


def predicted_bytes(run: Run, intervals: Sequence[Interval]) -> float | None:
    """Bytes that a host sends in a step, mean of one or more intervals with several hosts.

    With those that make a checkpoint's state equal; None where the gradients are not known.
    """
    if not run.gradient_bytes:
        return None
    steps = [i.steps for i in intervals]
    bytes_of = [
        sent_bytes_per_step(run.start_of(i).exchange, run.gradient_bytes, _ranks_by_host(run, i))
        for i in intervals
    ]
    inside = range(intervals[0].step, intervals[-1].step)
    joins = sum(save.step in inside and save.join_s > 0 for save in run.saves)
    moments = ring_bytes(2 * run.gradient_bytes, len(_ranks_by_host(run, intervals[-1])))
    if not run.start_of(intervals[-1]).exchange.trains_alone:
        joins = 0
    return float(np.average(bytes_of, weights=steps)) + joins * moments / sum(steps)


def _ranks_by_host(run: Run, interval: Interval) -> tuple[int, ...]:
    return tuple(Counter(run.hosts_of(interval)).values())


def traffic(run: Run, intervals: Sequence[Interval]) -> list[Traffic]:
    """What each host sends in a step, over its busiest card that is no loopback; the least first.

    Hosts that counted nothing while the steps ran are not in it.
    """
    by_host = [sent for host in run.telemetry if (sent := _traffic(host, intervals))]
    return sorted(by_host, key=lambda sent: sent.bytes_per_step)


def _traffic(host: HostSamples, intervals: Sequence[Interval]) -> Traffic | None:
    sent, steps, newest = Counter[str](), 0.0, Sample()
    pairs = host.neighbours()
    for (before, after), between in zip(pairs, _steps_between(pairs, intervals), strict=True):
        if between > 0 and (grown := _sent_between(before, after)):
            sent.update(grown)
            steps, newest = steps + between, after
    if not sent:
        return None
    card, n_bytes = sent.most_common(1)[0]
    link = newest["nics"].get(card, {}).get("link_mbit_per_s")
    return Traffic(host.host, card, n_bytes / steps, link / 8 if link else None)


def _steps_between(
    pairs: Sequence[tuple[Sample, Sample]], intervals: Sequence[Interval]
) -> list[float]:
    """Steps done between two samples, pair by pair; 0 where both are not within one start."""
    times_s, steps = [0.0], [0.0]
    starts: dict[int, list[float]] = {}
    for interval in intervals:
        begin_s, end_s = interval.span_s or (0.0, 0.0)
        begin_s = max(begin_s, times_s[-1])
        if end_s > times_s[-1]:  # else it has no clock, or that was set back
            times_s += [begin_s, end_s]
            steps += [steps[-1], steps[-1] + interval.steps]
            starts.setdefault(interval.start, [begin_s, end_s])[1] = end_s
    times_Px2 = np.array([[s["time_s"] for s in pair] for pair in pairs]).reshape(-1, 2)
    inside_P = np.zeros(len(pairs), bool)
    for first_s, last_s in starts.values():  # a clock that was set back gives less than 0
        inside_P |= (times_Px2[:, 0] >= first_s) & (times_Px2[:, 1] <= last_s)
    done_P = np.diff(np.interp(times_Px2, times_s, steps))[:, 0]
    return list(np.where(inside_P, done_P, 0.0).tolist())


def _sent_between(before: Sample, after: Sample) -> Counter[str]:
    """Bytes that each card but the loopback sent between two samples of a start."""
    cards = before.get("nics", {})
    grown = {
        name: nic["sent_bytes_total"] - cards[name]["sent_bytes_total"]
        for name, nic in after.get("nics", {}).items()
        if name in cards and not nic["is_loopback"]
    }
    return Counter({name: n_bytes for name, n_bytes in grown.items() if n_bytes >= 0})


def main_interface(host: HostSamples) -> str | None:
    """The network card, loopback apart, that sent most; None where none sent anything."""
    sent = sum(itertools.starmap(_sent_between, host.neighbours()), Counter[str]())
    return max(sent, key=lambda name: sent[name], default=None)


def rates(run: Run) -> list[tuple[Interval, float]]:
    """Settled intervals of the newest settings, with the MB/s of the host that sent most."""
    rows, cards = [], [(host, main_interface(host)) for host in run.telemetry]
    for interval in settled(last_settings(run).intervals):
        means = []
        for host, card in cards:
            nics = [sample.get("nics", {}).get(card, {}) for sample in host.during(interval)]
            sent = [nic["sent_MB_per_s"] for nic in nics if nic.get("sent_MB_per_s") is not None]
            means += [fmean(sent)] if sent else []
        if means:
            rows.append((interval, max(means)))
    return rows
