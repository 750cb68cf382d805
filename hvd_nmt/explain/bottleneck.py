"""What bound the steps of a run, by where their time went, and what would make them shorter."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import fmean, median, median_low, stdev

import numpy as np

from hvd_nmt.config.exchange import PLAIN
from hvd_nmt.explain import between_hosts, intervals, processors
from hvd_nmt.explain.between_hosts import Network
from hvd_nmt.explain.exchange_cost import Advice, Step, worth_saying
from hvd_nmt.explain.intervals import Stall, mean
from hvd_nmt.records.record import Interval, Run

COMPUTE, NETWORK = "compute-bound", "network-bound"
INPUT, STRAGGLER = "input-bound", "straggler-bound"
LOCAL = "communication-bound"
"""bound by sums among ranks of one host, whose bytes cross no network"""
PROCESSORS = "processor-bound"
"""exchanges take long though the link could carry far more: no processor has time to send"""
SHARED = "held up by other programs"
"""nothing is waited for, but other programs have much of the processors, which are full"""
MIXED = "near the limit"
"""a wait so near `BINDING_SHARE` that chance decides whether it binds"""
PAUSED = "held up: a rank was kept from running"
UNKNOWN = "unknown"

BINDING_SHARE = 0.2
"""a wait below this share of the step binds nothing: removing it would gain less than that"""
_LEAST_MARGIN = 0.02
"""least half width of the 95 % interval of a wait's share"""
_OPEN_LINK = 10
"""times what travels in a step: exchanges do not wait for a link that could carry so much"""
_STARVED = 50
"""largest speed of a card over that of exchanges that lack processors; else the link limits"""
_BUSY_PERCENT = 90.0
"""percent of the processors from which on they are full"""
_QUICKEST = 0.1  # share of the intervals that show what the bytes alone take


@dataclass(frozen=True)
class Lag:
    """How much longer the slowest computes, input apart, than those it is compared with."""

    seconds: float
    """seconds of a step by which it is later than the others"""
    who: str = ""
    """rank, or host whose ranks are slow together; "" if it is alone"""
    others: str = ""
    """ranks that it is compared with"""
    compute_s: float = 0.0
    """seconds of computing of a step"""
    others_compute_s: float = 0.0
    """seconds of computing of a step of the others"""


@dataclass(frozen=True)
class Phase:
    """Steps of a run with one bottleneck, and their mean step."""

    kind: str
    intervals: Sequence[Interval]
    step: Interval
    lag: Lag
    """lag in computing; where pauses are the wait, the pauses of the ranks that had most"""
    input_s: float
    """seconds of a step that the input costs: the mean wait, or that of the rank that is last"""
    wait: str
    """kind of bottleneck that its largest wait is"""
    share: float
    """share of a step that this wait takes"""
    host_input_s: tuple[tuple[str, float], ...] = ()
    """host and mean wait for input of the slowest and of the fastest host, where they differ"""
    busy_percent: float | None = None
    """percent of the processors that was busy"""
    others_percent: float | None = None
    """percent of the processors that other programs had"""
    network: Network = field(default_factory=Network)
    """bytes and link between the hosts, where the wait is for them"""

    @property
    def first_step(self) -> int:
        """Its first step."""
        return self.intervals[0].step - self.intervals[0].steps + 1

    @property
    def last_step(self) -> int:
        """Its last step."""
        return self.intervals[-1].step

    @property
    def seconds(self) -> float:
        """Time of all its steps."""
        return (self.step.step_s or 0.0) * self.step.steps


@dataclass(frozen=True)
class Verdict:
    """What bound a run, with the numbers it rests on."""

    kind: str
    """kind of bottleneck, one of the above, of all steps but those of stalls"""
    step_s: float | None
    """mean wall time of a step; the median where its parts are unknown"""
    shares: dict[str, float] = field(default_factory=dict)
    """shares of the time of all steps, by the words of `intervals.named_parts`; {} if unknown"""
    exchange_s: float | None = None
    """seconds of a mean step of exposed exchanges of weights; None where there were none"""
    phases: tuple[Phase, ...] = ()
    """phases, several where a part of the steps changed; () if unknown"""
    stalls: tuple[Stall, ...] = ()
    """single slow intervals, which are in no phase"""
    slow_phase: Phase | None = None
    """phase that took most time, of those that are not compute-bound if there are any"""
    advice: tuple[Advice, ...] = ()
    """changes that would make the steps of the slow phase shorter, best first"""
    against_plain: tuple[Step, Step] | None = None
    """a step under the newest exchange, and with a plain all-reduce; None for a plain run"""
    network: Network = field(default_factory=Network)
    """bytes and link between the hosts, over all steps"""


def verdict(run: Run) -> Verdict:
    """Judge a run under its newest settings, from its intervals and its hosts' telemetry."""
    course = intervals.course(run)
    if course is None:
        times = [i.step_s for i in intervals.last_settings(run).intervals if i.step_s]
        return Verdict(UNKNOWN, median(times) if times else None)
    run = course.run
    network = between_hosts.network(run, course.settled, course.step)
    phases: list[Phase] = []
    for part in course.phases:
        phase = _phase(part, run)
        # Longer or shorter, and no wait; or paused in other parts of a step.
        if phases and phases[-1].kind == phase.kind and phase.kind in (COMPUTE, PAUSED):
            phase = _phase([*phases.pop().intervals, *part], run)
        phases.append(phase)
    stalls = tuple(_with_culprit(stall, run) for stall in course.stalls)
    waiting = [phase for phase in phases if phase.kind != COMPUTE]
    slow = max(waiting or phases, key=attrgetter("seconds"))
    kind = (phases[0] if len(phases) == 1 else _phase(course.even, run)).kind
    return Verdict(
        kind, course.step.step_s, course.shares, course.step.exchange_s, tuple(phases), stalls,
        slow, tuple(_advice(slow, run)), _against_plain(phases, run), network,
    )  # fmt: skip


def _against_plain(phases: Sequence[Phase], run: Run) -> tuple[Step, Step] | None:
    """A mean step of the newest start, and the same with its plain all-reduce; None: not measured.

    What was measured before the start holds until the end of its first phase.
    """
    newest = phases[-1].intervals[-1].start
    first = next(phase for phase in phases if phase.intervals[-1].start == newest)
    step = mean([interval for interval in first.intervals if interval.start == newest])
    start = run.start_of(step)
    if start.exchange == PLAIN or not start.all_reduce_s:
        return None
    others_s = (step.step_s or 0.0) - (step.communication_s or 0.0)
    plain = Step(others_s, step.compute_s or 0.0, start.all_reduce_s)
    return between_hosts.step_of(run, step), plain


def _waits(interval: Interval, run: Run) -> dict[str, float]:
    """Seconds of a step, whose parts are known, by what it waits for.

    It waits for the network if most of the wait is for what travels between hosts. That a rank is
    late is the fault of its input if, without the input, the ranks would have been ready together.
    A pause shows as another wait: it counts from half of that, and the input, on.
    """
    communication_s = interval.communication_s or 0.0
    crosses = between_hosts.waited_s(run, interval) >= communication_s / 2
    kind = NETWORK if crosses and len(set(run.hosts)) > 1 else LOCAL
    input_s, paused_s = _input_s(interval), max(interval.rank_paused_s, default=0.0)
    return {
        kind: communication_s,
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
    """Some intervals as one phase, whose kind is that of the largest wait of their mean step."""
    step = mean(part)
    step_s, waits = step.step_s or 1.0, _waits(step, run)
    kind = wait = max(waits, key=lambda name: waits[name] * (2 if name == PAUSED else 1))
    shares = [_waits(i, run).get(wait, 0.0) / (i.step_s or 1.0) for i in part]
    margin = 2 * stdev(shares) / len(shares) ** 0.5 if len(shares) > 1 else 0.0
    share = waits[wait] / step_s
    busy, others = processors.cpu_percents(replace(run, intervals=tuple(part)))
    network = between_hosts.network(run, part, step) if wait == NETWORK else Network()
    sent, link, is_full = network.sent, network.link_MB_per_s, (busy or 0.0) >= _BUSY_PERCENT
    if abs(share - BINDING_SHARE) <= max(margin, _LEAST_MARGIN):
        kind = MIXED
    elif share < BINDING_SHARE:
        kind = COMPUTE
    elif sent and sent.link_MB_per_s and is_full and network.round_trip_s is None:
        is_open = sent.bytes_per_step / step_s * _OPEN_LINK < sent.link_MB_per_s * 1e6
        is_slow = link is not None and link * _STARVED < sent.link_MB_per_s
        kind = PROCESSORS if is_open and not is_slow else NETWORK
    computes = kind in (COMPUTE, MIXED, STRAGGLER) and waits[wait] < (step.compute_s or 0.0)
    if is_full and (others or 0.0) >= 100 * BINDING_SHARE and computes:
        kind = SHARED  # which also makes one rank or the other late
    hosts = run.hosts_of(step)
    ends = _slowest_and_fastest(step.rank_input_wait_s, hosts)
    differ = ends[0][1] - ends[1][1] > BINDING_SHARE * step_s
    return Phase(
        kind, part, step, _paused(step, hosts) if wait == PAUSED else _lag(step, hosts),
        _input_s(step), wait, share, ends if differ else (), busy, others, network,
    )  # fmt: skip


def _paused(step: Interval, hosts: Sequence[str]) -> Lag:
    """The ranks that were paused at least half as long as the one that was most, and that one."""
    longest_s = max(step.rank_paused_s, default=0.0)
    ranks = [rank for rank, paused_s in enumerate(step.rank_paused_s) if paused_s > longest_s / 2]
    on = ", ".join(dict.fromkeys(host for rank, host in enumerate(hosts) if rank in ranks))
    noun = "ranks" if len(ranks) > 1 else "rank"
    who = f"{noun} {', '.join(map(str, ranks))}"
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


def _advice(phase: Phase, run: Run) -> list[Advice]:
    """What would help in a phase, each with the step time it predicts for the same work.

    All its intervals have the same bytes, so fewer bytes or a faster link can save no more
    communication than the quickest intervals have.
    """
    step, lag = phase.step, phase.lag
    step_s = step.step_s or 0.0
    advice = [
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
        advice.append(Advice("no other program on the processors", own_s,
                            "end it, or run on processors that are free"))  # fmt: skip
    if phase.kind == NETWORK and phase.network.others_s:
        advice.append(Advice("no other program on the network cards",
                            step_s - phase.network.others_s,
                            "stop it, or move it to another network"))  # fmt: skip
    if run.ranks > 1:
        waited_s = [between_hosts.waited_s(run, i) for i in phase.intervals]
        steady_s = min(float(np.quantile(waited_s, _QUICKEST)), between_hosts.waited_s(run, step))
        model = between_hosts.step_of(run, step, steady_s)
        if phase.network.round_trip_s is not None:  # no faster with fewer bytes
            model = replace(model, latency_s=model.transfer_s)
        advice += model.advice()
    return worth_saying(advice, step_s)
