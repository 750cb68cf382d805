"""What bound the steps of a run, and what would make them shorter.

The model of a step: input, computing, waiting for the slowest rank, exposed communication. Bytes
follow from the ring; the link's speed from what was seen on the network card while it was the
bottleneck, or from what the card says of itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

from hvd_nmt.common.gradient import ring_bytes
from hvd_nmt.common.units import data_size
from hvd_nmt.explain.step_model import WORTH_SAYING, Advice, Step, travelling_s
from hvd_nmt.records.record import HostSamples, Interval, Run

COMPUTE, NETWORK = "compute-bound", "network-bound"
INPUT, STRAGGLER = "input-bound", "straggler-bound"
LOCAL = "communication-bound"
"""what is network-bound between hosts, among ranks of one host, whose bytes cross no network"""
UNKNOWN = "unknown"

TELLING_SHARE = 0.2
"""a wait below this share of the step binds nothing: removing it would gain less than that"""


@dataclass(frozen=True)
class Verdict:
    """What bound a run, with the numbers it rests on."""

    kind: str
    """compute-bound, network-bound (communication-bound on one host), input-bound, straggler-bound
    or unknown"""
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
    travelled (`transfer.travelling_s`); else the card's own word"""


def verdict(run: Run) -> Verdict:
    """Judge a run from its intervals and its hosts' telemetry."""
    settled = _settled(run)
    kinds = tuple(
        _kind(interval, run) if _is_split(interval) else UNKNOWN for interval in run.intervals
    )
    if not settled:
        return Verdict(UNKNOWN, _why_unknown(run), {}, _median_step_s(run), kinds)
    typical = mean_interval(settled)
    traffic, predicted = _Traffic(), None
    if _crosses_network(run):
        traffic = _traffic(run, settled)
        predicted = ring_bytes(run.gradient_bytes, run.ranks) if run.gradient_bytes else None
    kind = _kind(typical, run)
    link = traffic.link_MB_per_s
    if kind == NETWORK and traffic.seen_bytes and typical.communication_s:
        seconds = travelling_s(typical.communication_s, typical.compute_s or 0.0)
        link = traffic.seen_bytes / seconds / 1e6
    return Verdict(
        kind,
        _sentence(kind, typical, predicted, traffic, link, run),
        shares(typical),
        typical.step_s,
        kinds,
        tuple(_advice(typical, run)),
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
        None where the run does not tell.
    """
    settled = _settled(run)
    if not settled or not run.gradient_bytes:
        return None
    now = _step(mean_interval(settled), run)
    transfer_s = ring_bytes(run.gradient_bytes, run.ranks) / (link_MB_per_s * 1e6)
    return replace(now, transfer_s=transfer_s).total_s


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


def _kind(interval: Interval, run: Run) -> str:
    kind = classify(interval)
    return LOCAL if kind == NETWORK and not _crosses_network(run) else kind


def _crosses_network(run: Run) -> bool:
    """Ranks of one host send nothing over its network."""
    return len(set(run.hosts)) > 1


def _step(typical: Interval, run: Run) -> Step:
    """What the model of a step needs; the latency is not recorded."""
    exposed_s, compute_s = typical.communication_s or 0.0, typical.compute_s or 0.0
    return Step(
        (typical.step_s or 0.0) - exposed_s, compute_s, travelling_s(exposed_s, compute_s),
        crosses_network=_crosses_network(run),
    )  # fmt: skip


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
    if _median_step_s(run) is None:
        return f"The record of {run.name} has no step times, so what bound them cannot be told."
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
    return _Traffic(name, sent[name] / steps if steps else None, link / 8 if link else None)


def _sentence(
    kind: str,
    typical: Interval,
    predicted: float | None,
    traffic: _Traffic,
    link: float | None,
    run: Run,
) -> str:
    step_s = typical.step_s or 0.0
    if kind == NETWORK:
        text = (
            f"Network-bound: {typical.communication_s:.2f} of {step_s:.2f} s of a step is exposed "
            "communication"
        )
        if predicted:
            text += f"; {data_size(predicted)} per host and step by the ring law"
        if traffic.seen_bytes:
            text += f", {data_size(traffic.seen_bytes)} seen on {traffic.interface}"
        if link:
            text += f", at about {link:.1f} MB/s while they travel"
        return text + "."
    if kind == LOCAL:
        return (
            f"Communication-bound: {typical.communication_s:.2f} of {step_s:.2f} s of a step is "
            "exposed communication between the ranks of one host; it crosses no network."
        )
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


def _advice(typical: Interval, run: Run) -> list[Advice]:
    """What would help, each with the step time it predicts for the same work."""
    step_s = typical.step_s or 0.0
    slow_s, slow_input_s = _slowest(typical)
    found = [
        Advice("input that is ready in time",
               step_s - max(typical.input_wait_s or 0.0, slow_input_s),
               "data on a local disk, more cores for reading"),
        Advice("all ranks as fast as the typical one", step_s - slow_s,
               "look for another process, a hot or power-limited GPU, a slower host"),
    ]  # fmt: skip
    found = [one for one in found if one.predicted_step_s < WORTH_SAYING * step_s]
    if run.ranks > 1:
        found += _step(typical, run).advice()
    return sorted(found, key=lambda one: one.predicted_step_s)
