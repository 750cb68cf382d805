"""What each way to exchange between hosts costs in bytes and seconds, and which one suffices.

Everything follows from one plain all-reduce and the computing of a step, both measured: the other
ways send other numbers of bytes over the same link. What crosses no network is taken to be free,
and so are the exchanges of all weights at checkpoints and evaluations, which are rare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from hvd_nmt.common.gradient import ring_bytes
from hvd_nmt.config import TrainingConfig
from hvd_nmt.config.exchange import MOST_PARTS, Exchange, is_decided
from hvd_nmt.config.limits import AUTO

HIDDEN_SHARE = 0.2
"""of the computing, the share in which the first gradients travel already; seen on CPUs between two
hosts, where a transfer of 0.3 s showed as 0.19 s and one of 1.2 s as 1.06 s in steps of 0.5 s"""
PLAIN_UP_TO = 0.3
"""all-reduce over computing up to which nothing is changed: little more than what hides anyway"""
GRADIENTS_UP_TO = 1.0
"""all-reduce over computing up to which fewer bytes a step suffice; above, only fewer exchanges"""
EXPOSED_SHARE = 0.08
"""of the computing, what an exchange of weights may add to a step on average"""
STREAM_HIDDEN = 0.25
"""of the computing of a step, the share behind which a streamed fragment of the weights hides. Seen
on CPUs between two hosts, in steps of 0.4 s: a quarter of it cost nothing, half of it 0.1 s"""
LEAST_SYNC_EVERY = 4
"""steps between two exchanges that are worth training apart: with fewer, hosts learn no faster"""
MOST_SYNC_EVERY = 500
"""steps between two exchanges beyond which nobody has shown that hosts still learn as one.
Source: DiLoCo, arXiv 2311.08105."""

PLAIN = Exchange()
"""one all-reduce of float32 gradients over all ranks in each step"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A step as measured with plain exchanges, from which the others are predicted."""

    ranks_by_host: tuple[int, ...]
    """number of ranks on each host"""
    gradient_bytes: int
    """gradients of a step in float32, which are as many bytes as the trained weights"""
    all_reduce_s: float
    """one plain all-reduce of all gradients over all ranks, hidden or not"""
    latency_s: float = 0.0
    """seconds of it whatever the number of bytes: an all-reduce of one number"""
    compute_s: float
    """computing of a step"""

    @property
    def ratio(self) -> float:
        """The plain all-reduce over the computing of a step."""
        return self.all_reduce_s / self.compute_s if self.compute_s > 0 else math.inf

    def transfer_s(self, exchange: Exchange) -> float:
        """Seconds of one exchange: of the gradients, of the weights, or of a streamed fragment."""
        plain = Transfer(PLAIN, self.all_reduce_s, self.latency_s)
        return plain.under(exchange, self.ranks_by_host).seconds

    def exposed_s(self, exchange: Exchange) -> float:
        """Seconds that exchanges add to a step on average."""
        return exposed_s(exchange, self.transfer_s(exchange), self.compute_s)

    def step_s(self, exchange: Exchange) -> float:
        """Wall time of a step on average, were it only computing and exchanges."""
        return self.compute_s + self.exposed_s(exchange)


def choose(training: TrainingConfig, measured: Measured) -> Exchange:
    """The mildest exchange that suffices on this link.

    Args:
        training: what it fixes stays so, where there is more than one host; "auto" is decided here.
        measured: link and computing.
    """
    plain = Exchange(outer_rate=training.outer_rate, outer_momentum=training.outer_momentum)
    if len(measured.ranks_by_host) < 2:
        return plain
    islands = _decided(training.islands, "hosts", measured.ratio > GRADIENTS_UP_TO)
    fewer_bytes = islands or measured.ratio > PLAIN_UP_TO
    several_ranks = max(measured.ranks_by_host) > 1
    exchange = replace(
        plain,
        wire="float16" if _decided(training.wire, "float16", fewer_bytes) else "float32",
        hierarchical=islands
        or _decided(training.hierarchical, "on", fewer_bytes and several_ranks),
        islands=islands,
    )
    if not islands:
        return exchange
    once = Transfer(exchange, measured.transfer_s(exchange), measured.latency_s)
    return with_sync_every(once, measured.compute_s, training)


def sent_bytes_per_step(
    exchange: Exchange, gradient_bytes: float, ranks_by_host: Sequence[int]
) -> float:
    """Bytes that a host sends over its network in a step, mean of hosts and steps; 0 with one host.

    Args:
        exchange: what is sent, and in how many steps.
        gradient_bytes: gradients of a step in float32, or the trained weights in float32.
        ranks_by_host: number of ranks on each host.
    """
    sent = fmean(sent_bytes(exchange, gradient_bytes, ranks_by_host))
    return sent / steps_per_transfer(exchange)


def sent_bytes(
    exchange: Exchange, gradient_bytes: float, ranks_by_host: Sequence[int]
) -> list[float]:
    """Bytes that each host sends over its network in one exchange, or for one streamed fragment.

    Args:
        exchange: what is sent.
        gradient_bytes: gradients of a step in float32, or the trained weights in float32.
        ranks_by_host: number of ranks on each host.
    """
    hosts, ranks = len(ranks_by_host), sum(ranks_by_host)
    if hosts < 2:
        return [0.0] * hosts
    travelling = gradient_bytes / 2 if exchange.wire == "float16" else gradient_bytes
    if exchange.islands:
        each = ring_bytes(travelling, hosts)
        return [each / exchange.parts] * hosts
    if exchange.hierarchical:
        return [ring_bytes(travelling, hosts)] * hosts
    if exchange.wire == "float32":
        return [ring_bytes(travelling, ranks)] * hosts
    # A piece from each of its ranks to each other rank, then the sums around a ring of all ranks.
    return [(local * (ranks - local) + ranks - 1) / ranks * travelling for local in ranks_by_host]


def steps_per_transfer(exchange: Exchange) -> float:
    """Steps from one transfer to the next: all weights at once travel seldom."""
    return exchange.sync_every / exchange.parts


def exposed_s(exchange: Exchange, transfer_s: float, compute_s: float) -> float:
    """Seconds that transfers add to a step on average.

    Args:
        exchange: what travels.
        transfer_s: seconds of one transfer.
        compute_s: seconds of computing in a step.
    """
    return max(0.0, transfer_s - _hidden_s(exchange, compute_s)) / steps_per_transfer(exchange)


def travelling_s(exchange: Exchange, exposed_s: float, compute_s: float) -> float:
    """Seconds of a transfer that added so many seconds, above 0, to a step; as `exposed_s`."""
    return exposed_s * steps_per_transfer(exchange) + _hidden_s(exchange, compute_s)


def _hidden_s(exchange: Exchange, compute_s: float) -> float:
    """Seconds of a transfer behind the computing: all weights at once hide behind nothing."""
    if not exchange.islands:
        return HIDDEN_SHARE * compute_s
    return STREAM_HIDDEN * compute_s if exchange.streaming else 0.0


@dataclass(frozen=True)
class Transfer:
    """One transfer of an exchange, of known length."""

    exchange: Exchange
    seconds: float
    latency_s: float = 0.0
    """seconds of it whatever the number of bytes"""

    def under(self, exchange: Exchange, ranks_by_host: Sequence[int]) -> Transfer:
        """One of another exchange over the same link; the same within one host."""
        before, after = (
            max(sent_bytes(each, 1.0, ranks_by_host)) for each in (self.exchange, exchange)
        )
        share = after / before if before else 1.0
        latency_s = min(self.latency_s, self.seconds)
        return Transfer(exchange, latency_s + (self.seconds - latency_s) * share, latency_s)


def with_sync_every(once: Transfer, compute_s: float, training: TrainingConfig) -> Exchange:
    """Islands with the least number of steps between exchanges that makes these cheap enough.

    Args:
        once: an exchange of all weights at once.
        compute_s: seconds of computing in a step.
        training: what it fixes of `sync_every` and `streaming` stays so.
    """
    # A fragment pays the whole latency in each step: where that alone does not hide, all weights
    # at once and seldom are cheaper.
    free_s = STREAM_HIDDEN * compute_s - once.latency_s
    streaming = _decided(training.streaming, "on", free_s > 0)
    if training.sync_every != AUTO:
        sync_every = int(training.sync_every)
        return replace(once.exchange, sync_every=sync_every, streaming=streaming)
    allowed_s = EXPOSED_SHARE * compute_s
    late_s, parts = once.seconds, 1
    wanted = math.inf
    if streaming:
        bytes_s = once.seconds - once.latency_s
        wanted = bytes_s / free_s if free_s > 0 else math.inf
        late_s, parts = bytes_s / MOST_PARTS - free_s, MOST_PARTS
    if wanted > MOST_PARTS:
        wanted = max(parts, parts * late_s / allowed_s) if allowed_s > 0 else math.inf
    least = min(wanted, MOST_SYNC_EVERY) - 1e-9  # 4.000000001 by rounding are 4
    sync_every = max(LEAST_SYNC_EVERY, math.ceil(least))
    return replace(once.exchange, sync_every=sync_every, streaming=streaming)


def name_of(exchange: Exchange) -> str:
    """In words: islands, sync every 8, streamed, float16."""
    if not exchange.islands:
        inside_first = ("summed within each host first",) if exchange.hierarchical else ()
        return ", ".join((f"{exchange.wire} gradients in each step", *inside_first))
    streamed = ("streamed",) if exchange.streaming else ()
    return ", ".join(("islands", f"sync every {exchange.sync_every:,}", *streamed, exchange.wire))


def reason(training: TrainingConfig, measured: Measured, exchange: Exchange) -> str:
    """One line for the plan: what was measured, and what follows from it.

    Args:
        training: tells whether anything was left to the program.
        measured: link and computing.
        exchange: what was chosen for them.
    """
    if len(measured.ranks_by_host) < 2:
        return f"one host: {name_of(exchange)}"
    ratio = measured.ratio
    times = f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"
    who = "as configured" if is_decided(training) else "auto"
    return f"the all-reduce takes {times} times the computing: {name_of(exchange)} ({who})"


def _decided(asked: str, yes: str, otherwise: bool) -> bool:
    return otherwise if asked == AUTO else asked == yes
