"""What travels between the hosts of a run: bytes predicted, and the step it makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hvd_nmt.common.gradient import ring_bytes
from hvd_nmt.config.exchange import PLAIN, Exchange
from hvd_nmt.explain import exchange_cost
from hvd_nmt.explain.intervals import mean
from hvd_nmt.explain.step_model import Step
from hvd_nmt.records.record import Interval, Run


@dataclass(frozen=True)
class AgainstPlain:
    """A step of a run beside the same step with a plain all-reduce."""

    exchange: Exchange
    step_s: float
    """mean wall time of the steps that were done under this exchange"""
    plain_step_s: float
    """predicted wall time with the plain all-reduce that was measured"""
    all_reduce_s: float
    """seconds of that all-reduce"""
    losses: Mapping[int, float] = field(default_factory=dict)
    """validation loss of the run by step"""

    @property
    def times_as_fast(self) -> float:
        """The predicted step time over the measured one."""
        return self.plain_step_s / self.step_s

    def after_as_long(self) -> tuple[int, float] | None:
        """Where plain training would be when the run was evaluated last: its step, and a loss.

        The loss is what the run had after as many steps; islands may learn less in a step. None
        where the run was not evaluated before and after that step.
        """
        if not self.losses:
            return None
        step = round(max(self.losses) / self.times_as_fast)
        if not min(self.losses) <= step < max(self.losses):
            return None
        steps = sorted(self.losses)
        return step, float(np.interp(step, steps, [self.losses[one] for one in steps]))


def ranks_by_host(run: Run, interval: Interval) -> tuple[int, ...]:
    """Number of ranks on each host, in the order of the hosts."""
    return tuple(Counter(run.hosts_of(interval)).values())


def exchange_of(run: Run, interval: Interval) -> Exchange:
    """What travelled between the hosts in an interval, or in a stretch of which it is the mean."""
    return run.start_of(interval).exchange


def crosses_network(run: Run, interval: Interval) -> bool:
    """Whether what a step waits for travels between hosts; sums within a host do not."""
    if len(ranks_by_host(run, interval)) < 2:
        return False
    if not exchange_of(run, interval).islands or interval.exchange_s is None:
        return True
    return interval.exchange_s >= (interval.communication_s or 0.0) / 2


def waited_s(run: Run, interval: Interval) -> float:
    """Seconds of a step of exposed transfer between hosts, or between ranks where there is one."""
    if exchange_of(run, interval).islands and interval.exchange_s is not None:
        return interval.exchange_s
    return interval.communication_s or 0.0


def step_of(run: Run, interval: Interval, exposed_s: float) -> Step:
    """The model of a mean step; more or fewer bytes would change `exposed_s` of it."""
    exchange, compute_s = exchange_of(run, interval), interval.compute_s or 0.0
    transfer_s = exchange_cost.travelling_s(exchange, exposed_s, compute_s)
    return Step(
        (interval.step_s or 0.0) - exposed_s, compute_s, transfer_s,
        ranks_by_host=ranks_by_host(run, interval), exchange=exchange,
    )  # fmt: skip


def predicted_bytes(run: Run, intervals: Sequence[Interval]) -> float | None:
    """Bytes that a host sends in a step, mean of one or more intervals with several hosts.

    None where the gradients are not known.
    """
    if not run.gradient_bytes:
        return None
    each = [
        exchange_cost.sent_bytes_per_step(
            exchange_of(run, i), run.gradient_bytes, ranks_by_host(run, i)
        )
        for i in intervals
    ]
    return float(np.average(each, weights=[i.steps for i in intervals]))


def link_MB_per_s(run: Run, interval: Interval, bytes_per_step: float) -> float:
    """Speed of a link, each way, MB/s (1e6 bytes), from a mean step that waited for it.

    It is the bytes of one exchange, which comes every `sync_every` steps, over the seconds that it
    travels, the part that computing hides included. `bytes_per_step`: sent by a host.
    """
    exchange = exchange_of(run, interval)
    seconds = exchange_cost.travelling_s(
        exchange, waited_s(run, interval), interval.compute_s or 0.0
    )
    return bytes_per_step * exchange.sync_every / seconds / 1e6


def step_at(run: Run, interval: Interval, link_MB_per_s: float) -> float | None:
    """Wall time in seconds of a mean step with another link; None where its bytes are not known.

    `link_MB_per_s`: each way, MB/s (1e6 bytes).
    """
    if not run.gradient_bytes:
        return None
    now = step_of(run, interval, waited_s(run, interval))
    # Ranks of one host are asked about as if each were on its own.
    sent = ring_bytes(run.gradient_bytes, run.ranks)
    if now.crosses_network:
        sent = exchange_cost.sent_bytes(now.exchange, run.gradient_bytes, now.ranks_by_host)
    return replace(now, transfer_s=sent / (link_MB_per_s * 1e6)).total_s


def against_plain(run: Run, intervals: Sequence[Interval]) -> AgainstPlain | None:
    """The newest exchange beside a plain all-reduce, from intervals with their parts.

    None for a plain run, or where the all-reduce was not measured.
    """
    newest = run.start_of(intervals[-1])
    inside = [i for i in intervals if run.start_of(i) == newest]
    if newest.exchange == PLAIN or not newest.all_reduce_s:
        return None
    step = mean(inside)
    step_s, compute_s = step.step_s or 0.0, step.compute_s or 0.0
    others_s = step_s - (step.communication_s or 0.0)
    plain = Step(others_s, compute_s, newest.all_reduce_s)
    losses = {one.step: one.loss for one in run.evaluations if one.loss is not None}
    return AgainstPlain(newest.exchange, step_s, plain.total_s, newest.all_reduce_s, losses)
