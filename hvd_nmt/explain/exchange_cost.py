"""What each way to exchange between hosts costs in bytes and seconds.

Everything follows from one float32 all-reduce and the computing of a step, both measured. What
crosses no network is taken to be free; so are the rare exchanges at checkpoints and evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence

from hvd_nmt.common.gradient import ring_bytes
from hvd_nmt.common.units import step_duration
from hvd_nmt.config.exchange import PLAIN, Exchange

HIDDEN_SHARE = 0.2
"""of the computing, the share in which the first gradients travel already; seen on CPUs between two
hosts, where a transfer of 0.3 s showed as 0.19 s and one of 1.2 s as 1.06 s in steps of 0.5 s"""
ISLANDS_PRICE = (
    "islands make other updates, which in the run of docs/slow-links.md ended at a validation loss "
    "of 0.2593 in place of 0.2020"
)


def sent_bytes_per_step(
    exchange: Exchange, gradient_bytes: float, ranks_by_host: Sequence[int]
) -> float:
    """Bytes that a host sends over its network in a step, mean of steps; 0 with one host.

    `gradient_bytes`: the gradients, or the trained weights, in float32.
    """
    return sent_bytes(exchange, gradient_bytes, ranks_by_host) / exchange.sync_every


def sent_bytes(exchange: Exchange, gradient_bytes: float, ranks_by_host: Sequence[int]) -> float:
    """Bytes that each host sends over its network in one exchange; see `sent_bytes_per_step`."""
    hosts = len(ranks_by_host)
    if hosts < 2:
        return 0.0
    if exchange.kind == "float32":
        return ring_bytes(gradient_bytes, sum(ranks_by_host))
    return ring_bytes(gradient_bytes / 2, hosts)


def exposed_s(exchange: Exchange, transfer_s: float, compute_s: float) -> float:
    """Seconds that transfers of `transfer_s` each add to a step on average."""
    return max(0.0, transfer_s - _hidden_s(exchange, compute_s)) / exchange.sync_every


def travelling_s(exchange: Exchange, exposed_s: float, compute_s: float) -> float:
    """Seconds of a transfer that added so many seconds, above 0, to a step; as `exposed_s`."""
    return exposed_s * exchange.sync_every + _hidden_s(exchange, compute_s)


def _hidden_s(exchange: Exchange, compute_s: float) -> float:
    """Seconds of a transfer behind the computing: all weights at once hide behind nothing."""
    return 0.0 if exchange.islands else HIDDEN_SHARE * compute_s


def transfer_s(
    seconds: float, latency_s: float, before: Exchange, after: Exchange,
    ranks_by_host: Sequence[int],
) -> float:  # fmt: skip
    """Seconds of one transfer of another exchange over the same link; the same within one host.

    Of `seconds` before, `latency_s` pass whatever the bytes: an all-reduce of one number.
    """
    was, is_ = (sent_bytes(each, 1.0, ranks_by_host) for each in (before, after))
    latency_s = min(latency_s, seconds)
    return latency_s + (seconds - latency_s) * (is_ / was if was else 1.0)


def ways(sync_every: int) -> list[Exchange]:
    """The three ways, mildest first; islands exchange every so many steps."""
    return [PLAIN, Exchange("float16"), Exchange("islands", sync_every)]


def link_sentence(
    ranks_by_host: Sequence[int], all_reduce_s: float, latency_s: float, compute_s: float,
    sync_every: int,
) -> str:  # fmt: skip
    """What the link between two or more hosts costs, and what each way to use it would give.

    `all_reduce_s`: of all float32 gradients over all ranks, hidden or not. `latency_s`: of one
    number. `compute_s`: of a step. `sync_every`: steps between two exchanges of islands.
    """
    steps = []
    for way in ways(sync_every):
        once_s = transfer_s(all_reduce_s, latency_s, PLAIN, way, ranks_by_host)
        step_s = compute_s + exposed_s(way, once_s, compute_s)
        steps.append(f"{name_of(way)} {step_duration(step_s)}")
    return (
        f"sums of float32 gradients take {step_duration(all_reduce_s)}, the computing of a step "
        f"{step_duration(compute_s)}; a step with training.exchange {', '.join(steps)}; "
        f"{ISLANDS_PRICE}"
    )


def name_of(exchange: Exchange) -> str:
    """In words: islands (sync every 32)."""
    if exchange.islands:
        return f"islands (sync every {exchange.sync_every:,})"
    return exchange.kind
