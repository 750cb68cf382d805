"""What travels between the hosts of a run: bytes predicted, and the step it makes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hvd_nmt.config.exchange import PLAIN, Exchange
from hvd_nmt.explain.exchange_cost import Step, sent_bytes_per_step, travelling_s
from hvd_nmt.explain.intervals import mean
from hvd_nmt.records.record import Interval, Run


def crosses_network(run: Run, interval: Interval) -> bool:
    """Whether what a step waits for travels between hosts; sums within a host do not."""
    if len(_ranks_by_host(run, interval)) < 2:
        return False
    if not run.start_of(interval).exchange.islands or interval.exchange_s is None:
        return True
    return interval.exchange_s >= (interval.communication_s or 0.0) / 2


def waited_s(run: Run, interval: Interval) -> float:
    """Seconds of a step of exposed transfer between hosts, or between ranks where there is one."""
    if run.start_of(interval).exchange.islands and interval.exchange_s is not None:
        return interval.exchange_s
    return interval.communication_s or 0.0


def step_of(run: Run, interval: Interval, exposed_s: float) -> Step:
    """The model of a mean step; more or fewer bytes would change `exposed_s` of it."""
    exchange, compute_s = run.start_of(interval).exchange, interval.compute_s or 0.0
    return Step(
        (interval.step_s or 0.0) - exposed_s, compute_s,
        travelling_s(exchange, exposed_s, compute_s),
        ranks_by_host=_ranks_by_host(run, interval), exchange=exchange,
    )  # fmt: skip


def predicted_bytes(run: Run, intervals: Sequence[Interval]) -> float | None:
    """Bytes that a host sends in a step, mean of one or more intervals with several hosts.

    None where the gradients are not known.
    """
    if not run.gradient_bytes:
        return None
    each = [
        sent_bytes_per_step(run.start_of(i).exchange, run.gradient_bytes, _ranks_by_host(run, i))
        for i in intervals
    ]
    return float(np.average(each, weights=[i.steps for i in intervals]))


def link_MB_per_s(run: Run, interval: Interval, bytes_per_step: float) -> float:
    """Speed of a link, each way, MB/s (1e6 bytes), from a mean step that waited for it.

    It is the bytes of one exchange over the seconds that it travels, the part that computing hides
    included. `bytes_per_step`: sent by a host.
    """
    step = step_of(run, interval, waited_s(run, interval))
    return bytes_per_step * step.exchange.sync_every / step.transfer_s / 1e6


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
        steps = sorted(self.losses)
        step = round(steps[-1] / self.times_as_fast) if steps else 0
        if not steps or not steps[0] <= step < steps[-1]:
            return None
        return step, float(np.interp(step, steps, [self.losses[one] for one in steps]))


def against_plain(run: Run, intervals: Sequence[Interval]) -> AgainstPlain | None:
    """The newest exchange beside a plain all-reduce, from intervals with their parts.

    None for a plain run, or where the all-reduce was not measured.
    """
    newest = run.start_of(intervals[-1])
    if newest.exchange == PLAIN or not newest.all_reduce_s:
        return None
    step = mean([i for i in intervals if run.start_of(i) == newest])
    step_s = step.step_s or 0.0
    others_s = step_s - (step.communication_s or 0.0)
    plain = Step(others_s, step.compute_s or 0.0, newest.all_reduce_s)
    losses = {one.step: one.loss for one in run.evaluations if one.loss is not None}
    return AgainstPlain(newest.exchange, step_s, plain.total_s, newest.all_reduce_s, losses)


def _ranks_by_host(run: Run, interval: Interval) -> tuple[int, ...]:
    return tuple(Counter(run.hosts_of(interval)).values())
