"""What bound the steps of a run, by where their time went, and what would make them shorter."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import fmean, median, median_low, stdev

import numpy as np

from hvd_nmt.explain import between_hosts, intervals, machines
from hvd_nmt.explain.exchange_cost import Advice, Step, worth_saying
from hvd_nmt.explain.intervals import Stall, mean, named_parts, phases
from hvd_nmt.records.record import Interval, Run

COMPUTE, NETWORK = "compute-bound", "network-bound"
INPUT, STRAGGLER = "input-bound", "straggler-bound"
LOCAL = "communication-bound"
"""what is network-bound between hosts, among ranks of one host, whose bytes cross no network"""
PROCESSORS = "processor-bound"
"""exchanges take long though the link could carry far more: nobody has time to send"""
SHARED = "held up by other programs"
"""nothing is waited for, but other programs have much of the processors, which are full"""
MIXED = "near the limit"
"""a wait so near `BINDING_SHARE` that nobody can tell whether it binds"""
PAUSED = "held up: a rank was kept from running"
UNKNOWN = "unknown"

BINDING_SHARE = 0.2
"""a wait below this share of the step binds nothing: removing it would gain less than that"""
_LEAST_MARGIN = 0.02
"""of the share of a wait: half the width of its 95 % interval is at least this"""
_OPEN_LINK = 10
"""times what travels in a step, that a link could carry: it is not what exchanges wait for"""
_STARVED = 50
"""times faster is a card than what exchanges without processors still carry; slower is the link"""
_BUSY_PERCENT = 90.0
"""of the processors: from here on they are full"""
_QUICKEST = 0.1  # share of the intervals that show what the bytes alone take


@dataclass(frozen=True)
class Lag:
    """How much longer the slowest computes, input apart, than those it is compared with."""

    seconds: float
    who: str = ""
    """the rank, or the host whose ranks are slow together; "" if it is alone"""
    others: str = ""
    compute_s: float = 0.0
    others_compute_s: float = 0.0


@dataclass(frozen=True)
class Phase:
    """Steps of a run with one bottleneck, and their mean step."""

    kind: str
    first_step: int
    last_step: int
    step: Interval
    lag: Lag
    """of one that computes; where pauses are the wait, the ranks that had most"""
    input_s: float
    """seconds of a step that the input costs: the mean wait, or that of the rank that is last"""
    wait: str
    """the kind that its largest wait would make it"""
    share: float
    """of a step, that this wait takes"""
    host_input_s: tuple[tuple[str, float], ...] = ()
    """host and mean wait for input of the slowest and of the fastest host, where they differ"""
    busy_percent: float | None = None
    """how busy the processors were"""
    others_percent: float | None = None
    """of the processors, that other programs had"""
    link_MB_per_s: float | None = None
    """what the link carried while bytes travelled; None where no card counted them"""
    most_bytes: float | None = None
    """sent in a step by the host that sent most; None likewise"""
    round_trip_s: float | None = None
    """of a packet between hosts, where most of an exchange waits for such round trips; else None"""

    @property
    def seconds(self) -> float:
        """Time of all its steps."""
        return (self.step.step_s or 0.0) * self.step.steps


@dataclass(frozen=True)
class Verdict:
    """What bound a run, with the numbers it rests on."""

    kind: str
    """one of the above; of all steps but those of stalls"""
    step_s: float | None
    """mean wall time of a step; the median where its parts are unknown"""
    shares: dict[str, float] = field(default_factory=dict)
    """shares of the time of all steps, by the words of `intervals.named_parts`; {} if unknown"""
    exchange_s: float | None = None
    """seconds of a mean step of exposed exchanges of weights; None where there were none"""
    phases: tuple[Phase, ...] = ()
    """more than one where a part of the steps changed; () if unknown"""
    stalls: tuple[Stall, ...] = ()
    """which are in no phase"""
    slow_phase: Phase | None = None
    """of the phases that are not compute-bound, the one that took most time"""
    advice: tuple[Advice, ...] = ()
    """what would make the steps of the slow phase shorter, best first"""
    against_plain: tuple[Step, Step] | None = None
    """a step under the newest exchange, and with a plain all-reduce; None for a plain run"""
    predicted_bytes: float | None = None
    """sent by each host in a step, by the law of the exchange in effect; None on one host"""
    seen_bytes: float | None = None
    """sent by a host in a step, as its network card (`interface`) counted: median of the hosts"""
    interface: str | None = None
    card_MB_per_s: float | None = None
    """what the link allows by the card's own word"""


def verdict(run: Run) -> Verdict:
    """Judge a run under its newest settings, from its intervals and its hosts' telemetry."""
    run = intervals.last_settings(run)
    parted = [i for i in run.intervals if None not in (i.step_s, i.compute_s, i.communication_s)]
    counted = intervals.settled(parted)
    if not counted:
        times = [interval.step_s for interval in run.intervals if interval.step_s]
        return Verdict(UNKNOWN, median(times) if times else None)
    whole = mean(counted)
    stalled = [_with_culprit(stall, run) for stall in intervals.stalls(counted, run.ranks)]
    long = [stall.interval for stall in stalled]
    pairs = itertools.pairwise([counted[0], *counted])  # the pauses of a stall count one step later
    even = [replace(b, rank_paused_s=()) if a in long else b for a, b in pairs if b not in long]
    crossing = [i for i in counted if len(set(run.hosts_of(i))) > 1]
    sent = between_hosts.middle(between_hosts.traffic(run, crossing))
    found: list[Phase] = []
    for part in phases(even):
        phase = _phase(part, run)
        # Longer or shorter, and no wait; or paused in other parts of a step.
        if found and found[-1].kind == phase.kind and phase.kind in (COMPUTE, PAUSED):
            first = found.pop().first_step
            phase = _phase([i for i in even if first <= i.step <= phase.last_step], run)
        found.append(phase)
    waiting = [phase for phase in found if phase.kind != COMPUTE]
    slow = max(waiting or found, key=attrgetter("seconds"))
    newest = [i for i in even if i.start == even[-1].start]
    last = next(phase.last_step for phase in found if newest[0].step <= phase.last_step)
    measured = [i for i in newest if i.step <= last]  # until a phase ends its all-reduce holds
    return Verdict(
        (found[0] if len(found) == 1 else _phase(even, run)).kind, whole.step_s,
        {words: (getattr(whole, name) or 0.0) / (whole.step_s or 1.0)
         for name, words in named_parts(run.ranks).items()},
        whole.exchange_s, tuple(found), tuple(stalled), slow, tuple(_advice(slow, even, run)),
        between_hosts.against_plain(run, measured),
        between_hosts.predicted_bytes(run, crossing) if crossing else None,
        sent.bytes_per_step if sent else None, sent.interface if sent else None,
        sent.link_MB_per_s if sent else None,
    )  # fmt: skip


def _waits(interval: Interval, run: Run) -> dict[str, float]:
    """Seconds of a step, whose parts are known, by what it waits for.

    That a rank is late is the fault of its input if, without the input, the ranks would have been
    ready together. A pause shows as another wait: it counts from half of that, and the input, on.
    """
    kind = NETWORK if between_hosts.crosses_network(run, interval) else LOCAL
    input_s, paused_s = _input_s(interval), max(interval.rank_paused_s, default=0.0)
    return {
        kind: interval.communication_s or 0.0,
        INPUT: input_s,
        STRAGGLER: _lag(interval, run.hosts_of(interval)).seconds,
        PAUSED: paused_s if paused_s >= input_s else 0.0,
    }


def _with_culprit(stall: Stall, run: Run) -> Stall:
    """The same with the rank or host that was late or paused, if that is most of it."""
    of = stall.interval
    hosts, later = run.hosts_of(of), next((i for i in run.intervals if i.step > of.step), of)
    lag = _lag(of, hosts)
    paused = max(_paused(of, hosts), _paused(later, hosts), key=attrgetter("seconds"))
    for late, part in ((paused, f"pauses of {paused.who}"), (lag, f"waiting for {lag.who}")):
        if late.seconds * of.steps > stall.seconds / 2:
            return replace(stall, part=part)
    return stall


def _phase(part: Sequence[Interval], run: Run) -> Phase:
    """Some intervals of one kind: that of the largest wait of their mean step, if it tells."""
    step = mean(part)
    step_s, waits = step.step_s or 1.0, _waits(step, run)
    kind = wait = max(waits, key=lambda name: waits[name] * (2 if name == PAUSED else 1))
    shares = [_waits(i, run).get(wait, 0.0) / (i.step_s or 1.0) for i in part]
    margin = 2 * stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else 0.0
    own, share = replace(run, intervals=tuple(part)), waits[wait] / step_s
    busy, others = machines.cpu_percent(own), machines.others_percent(own)
    by_host = between_hosts.traffic(run, part) if wait == NETWORK else []
    sent, link = between_hosts.middle(by_host), None
    if sent:
        link = between_hosts.link_MB_per_s(run, step, sent.bytes_per_step)
    trip_s = between_hosts.limiting_round_trip_s(run, step, part) if wait == NETWORK else None
    is_full = (busy or 0.0) >= _BUSY_PERCENT
    if abs(share - BINDING_SHARE) <= max(margin, _LEAST_MARGIN):
        kind = MIXED
    elif share < BINDING_SHARE:
        kind = COMPUTE
    elif sent and sent.link_MB_per_s and is_full and trip_s is None:
        is_open = sent.bytes_per_step / step_s * _OPEN_LINK < sent.link_MB_per_s * 1e6
        is_slow = link is not None and link * _STARVED < sent.link_MB_per_s
        kind = PROCESSORS if is_open and not is_slow else NETWORK
    computes = kind in (COMPUTE, MIXED, STRAGGLER) and waits[wait] < (step.compute_s or 0.0)
    if is_full and (others or 0.0) >= 100 * BINDING_SHARE and computes:
        kind = SHARED  # which also makes one rank or the other late
    hosts, first = run.hosts_of(step), part[0]
    ends = _slowest_and_fastest(step.rank_input_wait_s, hosts)
    differ = ends[0][1] - ends[1][1] > BINDING_SHARE * step_s
    return Phase(
        kind, first.step - first.steps + 1, part[-1].step, step,
        _paused(step, hosts) if wait == PAUSED else _lag(step, hosts), _input_s(step), wait, share,
        ends if differ else (), busy, others, link,
        by_host[-1].bytes_per_step if by_host else None, trip_s,
    )  # fmt: skip


def _paused(step: Interval, hosts: Sequence[str]) -> Lag:
    """The ranks that were paused at least half as long as the one that was most, and that one."""
    longest_s = max(step.rank_paused_s, default=0.0)
    ranks = [rank for rank, paused_s in enumerate(step.rank_paused_s) if paused_s > longest_s / 2]
    on = ", ".join(dict.fromkeys(host for rank, host in enumerate(hosts) if rank in ranks))
    who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return Lag(longest_s, f"{who} on {on}" if on else who)


def _lag(step: Interval, hosts: Sequence[str]) -> Lag:
    """The slowest rank against a typical one, or its host against the fastest if that is more."""
    ready = step.rank_ready_s
    waits = step.rank_input_wait_s or (0.0,) * len(ready)
    if len(ready) < 2:
        return Lag(0.0)
    computing = [a - b for a, b in zip(ready, waits, strict=True)]
    rank, usual_s = computing.index(max(computing)), median_low(computing)  # of two, the faster
    where = f" on {hosts[rank]}" if rank < len(hosts) else ""
    lag = Lag(computing[rank] - usual_s, f"rank {rank}{where}", "the others",
               computing[rank], usual_s)  # fmt: skip
    (slow, slow_s), (fast, fast_s) = _slowest_and_fastest(computing, hosts)
    if slow == fast or slow_s - fast_s < 1.01 * lag.seconds:
        return lag
    return Lag(slow_s - fast_s, f"each rank on {slow}", f"those on {fast}", slow_s, fast_s)


def _slowest_and_fastest(
    seconds: Sequence[float], hosts: Sequence[str]
) -> tuple[tuple[str, float], tuple[str, float]]:
    """Hosts with the mean over their ranks; twice the same where the hosts are not known."""
    ranks_of: dict[str, list[float]] = {}
    if len(hosts) == len(seconds):
        for host, rank_s in zip(hosts, seconds, strict=True):
            ranks_of.setdefault(host, []).append(rank_s)
    means = {host: fmean(ranks_s) for host, ranks_s in ranks_of.items()} or {"": 0.0}
    slow, fast = (end(means, key=means.__getitem__) for end in (max, min))
    return (slow, means[slow]), (fast, means[fast])


def _input_s(step: Interval) -> float:
    ready, waits = step.rank_ready_s, step.rank_input_wait_s
    last_s = waits[ready.index(max(ready))] if len(ready) > 1 and waits else 0.0
    return max(step.input_wait_s or 0.0, last_s)


def _advice(phase: Phase, counted: Sequence[Interval], run: Run) -> list[Advice]:
    """What would help in a phase, each with the step time it predicts for the same work.

    All its intervals have the same bytes, so fewer bytes or a faster link can save no more
    communication than the quickest intervals have.
    """
    step, lag = phase.step, phase.lag
    step_s = step.step_s or 0.0
    found = [
        Advice("input that is ready in time", step_s - phase.input_s,
               "data on a local disk, more cores for reading"),
        Advice(f"all ranks as fast as {lag.others}", step_s - lag.seconds,
               "look for another process, a hot or power-limited GPU, a slower host")
        if lag.others else
        Advice(f"no pauses of {lag.who}", step_s - lag.seconds,
               "see what stops it: a signal, the CPU quota of a container, a virtual machine"),
    ]  # fmt: skip
    if phase.kind == SHARED and phase.others_percent and phase.busy_percent:
        own_s = step_s * (1 - phase.others_percent / phase.busy_percent)
        found.append(Advice("no other program on the processors", own_s,
                            "end it, or run on processors that are free"))  # fmt: skip
    part = [i for i in counted if phase.first_step <= i.step <= phase.last_step]
    needed, most = between_hosts.predicted_bytes(run, part), phase.most_bytes
    others_send = phase.kind == NETWORK and between_hosts.others_send(needed, most, step_s)
    if others_send and needed and most:
        freed_s = between_hosts.waited_s(run, step) * (1 - needed / most)
        found.append(Advice("no other program on the network cards", step_s - freed_s,
                            "stop it, or move it to another network"))  # fmt: skip
    found = worth_saying(found, step_s)
    if run.ranks > 1:
        waited_s = [between_hosts.waited_s(run, i) for i in part]
        steady_s = min(float(np.quantile(waited_s, _QUICKEST)), between_hosts.waited_s(run, step))
        model = between_hosts.step_of(run, step, steady_s)
        if phase.round_trip_s is not None:  # no faster with fewer bytes
            model = replace(model, latency_s=model.transfer_s)
        found += model.advice()
    return sorted(found, key=lambda one: one.predicted_step_s)
