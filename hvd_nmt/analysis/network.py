"""What bound the steps of a run, and what would make them shorter.

The model of a step: input, computing, waiting for the slowest rank, exposed communication. Bytes
follow from the ring; the link's speed from what was seen on the network card while it was the
bottleneck, or from what the card says of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, median_low

from hvd_nmt.analysis.record import HostSamples, Interval, Run

COMPUTE, NETWORK = "compute-bound", "network-bound"
INPUT, STRAGGLER = "input-bound", "straggler-bound"
UNKNOWN = "unknown"

TELLING_SHARE = 0.2
"""a wait below this share of the step binds nothing: removing it would gain less than that"""
HIDDEN_SHARE = 0.2
"""of the computing, the share in which the first gradients travel already; seen on CPUs between two
hosts, where a transfer of 0.3 s showed as 0.19 s and one of 1.2 s as 1.06 s in steps of 0.5 s"""



def ring_bytes(gradient_bytes: float, ranks: int) -> float:
    """Bytes each rank sends in one ring all-reduce: 2 (N-1)/N x the gradient.

    Where a host holds neighbours of the ring, this is also what the host sends over its network.

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms".
    """
    return 2 * (ranks - 1) / ranks * gradient_bytes


@dataclass(frozen=True)
class Advice:
    """One thing that would help, and what it would bring."""

    what: str
    predicted_step_s: float
    """wall time of a step that does the same work as now"""
    why: str


@dataclass(frozen=True)
class Verdict:
    """What bound a run, with the numbers it rests on."""

    kind: str
    """compute-bound, network-bound, input-bound, straggler-bound or unknown"""
    sentence: str
    shares: dict[str, float]
    """of the step's time: input, compute, straggler, communication; {} if unknown"""
    step_s: float | None
    """median wall time of a step"""
    per_interval: tuple[str, ...]
    """the kind of each interval of the run"""
    advice: tuple[Advice, ...] = ()
    """best first"""
    predicted_bytes: float | None = None
    """sent by each host in a step, by the ring law; None on one host"""
    seen_bytes: float | None = None
    """sent by a host in a step, as its network card counted: median of the hosts"""
    interface: str | None = None
    """the card that carried them"""
    link_MB_per_s: float | None = None
    """what the link allows: where the network was the bottleneck, the bytes seen over the time they
    travelled (the exposed part, and `HIDDEN_SHARE` of the computing); else the card's own word"""


def verdict(run: Run) -> Verdict:
    """Judge a run from its intervals and its hosts' telemetry."""
    settled = _settled(run)
    kinds = tuple(
        classify(interval) if _is_split(interval) else UNKNOWN for interval in run.intervals
    )
    if not settled:
        return Verdict(UNKNOWN, _why_unknown(run), {}, _median_step_s(run), kinds)
    typical = mean_interval(settled)
    traffic, predicted = _Traffic(), None
    if len(set(run.hosts)) > 1:  # ranks of one host send nothing over its network
        traffic = _traffic(run, settled)
        predicted = ring_bytes(run.gradient_bytes, run.ranks) if run.gradient_bytes else None
    kind = classify(typical)
    link = traffic.link_MB_per_s
    if kind == NETWORK and traffic.seen_bytes and typical.communication_s:
        travelling_s = typical.communication_s + HIDDEN_SHARE * (typical.compute_s or 0.0)
        link = traffic.seen_bytes / travelling_s / 1e6
    return Verdict(
        kind,
        _sentence(kind, typical, predicted, traffic, link, run),
        shares(typical),
        typical.step_s,
        kinds,
        tuple(_advice(kind, typical, run)),
        predicted,
        traffic.seen_bytes,
        traffic.interface,
        link,
    )


def step_at(run: Run, link_MB_per_s: float) -> float | None:
    """Wall time in seconds that a step of this run would take with another link between the hosts.

    Args:
        run: gives the parts of a step that are no network, and the bytes.
        link_MB_per_s: speed of the other link, each way, MB/s (1e6 bytes).

    Returns:
        None where the run does not tell. `HIDDEN_SHARE` of the computing hides the transfer; the
        rest is exposed, because the largest gradient, of the embedding, is ready last.
    """
    settled = _settled(run)
    if not settled or not run.gradient_bytes:
        return None
    typical = mean_interval(settled)
    others_s = (typical.step_s or 0.0) - (typical.communication_s or 0.0)
    transfer_s = ring_bytes(run.gradient_bytes, run.ranks) / (link_MB_per_s * 1e6)
    return others_s + max(0.0, transfer_s - HIDDEN_SHARE * (typical.compute_s or 0.0))


def classify(interval: Interval) -> str:
    """What binds the steps of an interval whose parts are known: the largest wait that tells.

    A rank that waits for its input makes the others wait for it. That wait is the input's fault
    and not that of a slow rank, when without the input the ranks would have been ready together.
    """
    step_s = interval.step_s or 0.0
    if step_s <= 0:
        return UNKNOWN
    slowest, input_s = _slowest(interval)
    waits = {
        NETWORK: interval.communication_s or 0.0,
        INPUT: max(interval.input_wait_s or 0.0, input_s),
        STRAGGLER: slowest,
    }
    kind = max(waits, key=lambda name: waits[name])
    return kind if waits[kind] / step_s > TELLING_SHARE else COMPUTE


def _slowest(interval: Interval) -> tuple[float, float]:
    """Seconds by which the slowest rank is behind a typical one, and the part its input caused."""
    ready = interval.rank_ready_s
    waits = interval.rank_input_wait_s or (0.0,) * len(ready)
    if len(ready) < 2:
        return interval.straggler_wait_s or 0.0, 0.0
    computing = [a - b for a, b in zip(ready, waits, strict=True)]
    slow = max(computing) - median_low(computing)  # with two ranks, behind the faster one
    slowest = max(range(len(ready)), key=lambda rank: ready[rank])
    return slow, waits[slowest]


def shares(interval: Interval) -> dict[str, float]:
    """Parts of a step's time, in the order in which they happen; they sum to 1."""
    step_s = interval.step_s or 1.0
    return {
        "input": (interval.input_wait_s or 0.0) / step_s,
        "compute": (interval.compute_s or 0.0) / step_s,
        "straggler": (interval.straggler_wait_s or 0.0) / step_s,
        "communication": (interval.communication_s or 0.0) / step_s,
    }


def mean_interval(intervals: Sequence[Interval]) -> Interval:
    """The typical interval: the median of each part; its step is their sum."""

    def middle(name: str) -> float:
        return median(getattr(interval, name) or 0.0 for interval in intervals)

    def of_ranks(name: str) -> tuple[float, ...]:
        rows = [getattr(interval, name) for interval in intervals if getattr(interval, name)]
        return tuple(median(column) for column in zip(*rows, strict=False)) if rows else ()

    parts = {name: middle(name) for name in
             ("input_wait_s", "compute_s", "straggler_wait_s", "communication_s")}  # fmt: skip
    return Interval(
        step=intervals[-1].step, steps=sum(interval.steps for interval in intervals), time_s=None,
        step_s=sum(parts.values()), **parts,
        rank_ready_s=of_ranks("rank_ready_s"), rank_input_wait_s=of_ranks("rank_input_wait_s"),
        tokens_per_s=middle("tokens_per_s"),
    )  # fmt: skip


def _settled(run: Run) -> list[Interval]:
    """Intervals whose parts are known, without the first: the tracing of the graph is in it."""
    known = [interval for interval in run.intervals if _is_split(interval)]
    return known[1:] or known


def _is_split(interval: Interval) -> bool:
    return None not in (interval.step_s, interval.compute_s, interval.communication_s)


def _median_step_s(run: Run) -> float | None:
    times = [interval.step_s for interval in run.intervals if interval.step_s]
    return median(times) if times else None


def _why_unknown(run: Run) -> str:
    if not run.intervals:
        return "Nobody can tell yet: no step was recorded."
    return (
        f"The record of {run.name} has the time of its steps but not what they waited for, so what "
        "bound them can only be guessed; train with hvd_nmt to have it measured."
    )


@dataclass(frozen=True)
class _Traffic:
    """What the network cards counted while the steps ran."""

    interface: str | None = None
    seen_bytes: float | None = None
    """sent by a host in a step"""
    link_MB_per_s: float | None = None
    """the card's own word"""


def _traffic(run: Run, intervals: Sequence[Interval]) -> _Traffic:
    """Of the host in the middle; each host's busiest card that is no loopback."""
    found = [of for of in (_host_traffic(host, intervals) for host in run.telemetry) if of]
    found.sort(key=lambda of: of.seen_bytes or 0.0)
    return found[len(found) // 2] if found else _Traffic()


def _host_traffic(host: HostSamples, intervals: Sequence[Interval]) -> _Traffic | None:
    times = [interval.time_s for interval in intervals if interval.time_s is not None]
    if not times or not host.samples:
        return None
    first = intervals[0]
    begin_s = times[0] - first.steps * (first.step_s or 0.0)
    inside = [sample for sample in host.samples if begin_s <= sample["time_s"] <= times[-1]]
    if len(inside) < 2:
        return None
    sent = {
        name: inside[-1]["nics"][name]["sent_bytes_total"] - nic["sent_bytes_total"]
        for name, nic in inside[0]["nics"].items()
        if not nic["is_loopback"] and name in inside[-1]["nics"]
    }
    if not sent:
        return None
    name = max(sent, key=lambda nic: sent[nic])
    share = (inside[-1]["time_s"] - inside[0]["time_s"]) / (times[-1] - begin_s)
    steps = sum(interval.steps for interval in intervals) * share
    link = inside[-1]["nics"][name]["link_mbit_per_s"]
    return _Traffic(
        name, sent[name] / steps if steps else None, link / 8 if link else None
    )


def _sentence(
    kind: str, typical: Interval, predicted: float | None, traffic: _Traffic,
    link: float | None, run: Run,
) -> str:
    step_s = typical.step_s or 0.0
    if kind == NETWORK:
        text = (
            f"Network-bound: {typical.communication_s:.2f} of {step_s:.2f} s of a step is exposed "
            "communication"
        )
        if predicted:
            text += f"; {predicted / 1e6:.1f} MB per host and step by the ring law"
        if traffic.seen_bytes:
            text += f", {traffic.seen_bytes / 1e6:.1f} MB seen on {traffic.interface}"
        if link:
            text += f", at about {link:.1f} MB/s while they travel"
        return text + "."
    if kind == INPUT:
        return (
            f"Input-bound: ranks wait {max(typical.input_wait_s or 0.0, _slowest(typical)[1]):.2f} "
            f"of {step_s:.2f} s of a step for a batch."
        )
    if kind == STRAGGLER:
        ready = typical.rank_ready_s
        rank = max(range(len(ready)), key=lambda of: ready[of]) if ready else 0
        host = f" on {run.hosts[rank]}" if rank < len(run.hosts) else ""
        return (
            f"Straggler-bound: rank {rank}{host} has its gradients {_slowest(typical)[0]:.2f} s "
            f"after the others, in a step of {step_s:.2f} s."
        )
    return (
        f"Compute-bound: {typical.compute_s:.2f} of {step_s:.2f} s of a step is computing, "
        f"{typical.communication_s:.2f} s exposed communication, {typical.straggler_wait_s:.2f} s "
        f"waiting for whichever rank is last, {typical.input_wait_s:.2f} s waiting for input."
    )


def _advice(kind: str, typical: Interval, run: Run) -> list[Advice]:
    """What would help, each with the step time it predicts for the same work."""
    step_s, communication_s = typical.step_s or 0.0, typical.communication_s or 0.0
    found = []
    if run.ranks > 1:
        others_s = step_s - communication_s
        found += [
            Advice("gradients as float16 on the wire", others_s + communication_s / 2,
                   "half the bytes; the exposed part shrinks with them"),
            Advice("accumulate 4 batches per update", others_s + communication_s / 4,
                   "one all-reduce for four batches; time per batch"),
            Advice("4 times as many tokens per step", others_s + communication_s / 4,
                   "the same gradient for four times the work; time per as many tokens as now"),
            Advice("a network 10 times as fast", others_s + communication_s / 10,
                   "the same bytes in a tenth of the time"),
        ]  # fmt: skip
    slow_s, slow_input_s = _slowest(typical)
    found += [
        Advice("input that is ready in time",
               step_s - max(typical.input_wait_s or 0.0, slow_input_s),
               "data on a local disk, more cores for reading"),
        Advice("all ranks as fast as the typical one", step_s - slow_s,
               "look for another process, a hot or power-limited GPU, a slower host"),
    ]  # fmt: skip
    found = [one for one in found if one.predicted_step_s < 0.95 * step_s]
    return sorted(found, key=lambda one: one.predicted_step_s)
