"""A step as far as its length depends on what travels, and what would make it shorter.

This one model is behind every prediction: of the report, of another link, of the doctor. An
all-reduce takes a latency, which no link shortens, and the time of its bytes. The first gradients
travel while the last are computed, so a step waits for the transfer less a share of its computing;
the largest gradient, of the shared matrix, comes last and hides behind nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hvd_nmt.common.units import percent
from hvd_nmt.config.exchange import PLAIN, Exchange
from hvd_nmt.explain.exchange_cost import (
    ISLANDS_PRICE,
    exposed_s,
    name_of,
    sent_bytes_per_step,
    transfer_s,
    ways,
)

WORTH_SAYING = 0.95
"""advice that leaves more than this share of the step time is not given"""
SYNC_EVERY = 32
"""steps between two exchanges of islands, as `TrainingConfig` has it"""
_MORE = 4
"""by which number tokens, or steps between exchanges, are multiplied in an advice"""


@dataclass(frozen=True)
class Advice:
    """One thing that would help, and what it would bring."""

    what: str
    predicted_step_s: float
    """wall time of a step that does the same work as now"""
    why: str


@dataclass(frozen=True)
class Step:
    """A step as far as its length depends on what travels between ranks; seconds."""

    others_s: float
    """seconds that are no communication: computing, waiting for input and for the slowest rank"""
    compute_s: float
    """seconds of computing, a part of `others_s`"""
    transfer_s: float
    """seconds of one exchange, hidden or not: of all gradients, or of all weights"""
    latency_s: float = 0.0
    """seconds of the transfer, whatever the number of bytes: an all-reduce of one number"""
    ranks_by_host: Sequence[int] = (1, 1)
    """number of ranks on each host"""
    exchange: Exchange = PLAIN
    """what travels between the hosts"""

    @property
    def crosses_network(self) -> bool:
        """False: all ranks are on one host."""
        return len(self.ranks_by_host) > 1

    @property
    def exposed_s(self) -> float:
        """The part of the transfer that the step waits for."""
        return exposed_s(self.exchange, self.transfer_s, self.compute_s)

    @property
    def total_s(self) -> float:
        """Wall time."""
        return self.others_s + self.exposed_s

    def under(self, exchange: Exchange) -> Step:
        """The same step with another exchange over the same link."""
        seconds = transfer_s(
            self.transfer_s, self.latency_s, self.exchange, exchange, self.ranks_by_host
        )
        return replace(self, exchange=exchange, transfer_s=seconds)

    def advice(self) -> list[Advice]:
        """What would shorten the communication and is worth saying; best first."""
        more_tokens_s = exposed_s(self.exchange, self.transfer_s, _MORE * self.compute_s) / _MORE
        found = [
            Advice(f"{_MORE} times as many tokens per step", self.others_s + more_tokens_s,
                   "--training.tokens-per-step, in slices where memory is short "
                   "(--training.micro-batches): one exchange for four times the work; time per as "
                   "many tokens as now"),
        ]  # fmt: skip
        if self.crosses_network:
            ways = self._seldom() if self.exchange.islands else self._fewer_bytes()
            found += [*ways, Advice("a network 10 times as fast", self._with_bytes(1 / 10),
                                    "the same bytes in a tenth of the time")]  # fmt: skip
        found = [one for one in found if one.predicted_step_s < WORTH_SAYING * self.total_s]
        return sorted(found, key=lambda one: one.predicted_step_s)

    def _fewer_bytes(self) -> list[Advice]:
        """Other exchanges than one of float32 gradients."""
        _, gradients, islands = ways(SYNC_EVERY)
        now, then = (
            sent_bytes_per_step(each, 1.0, self.ranks_by_host)
            for each in (self.exchange, gradients)
        )
        return [
            Advice("gradients as float16, summed within each host first",
                   self.under(gradients).total_s,
                   f"--training.exchange float16: {percent(then / now)} of the bytes"),
            Advice(name_of(islands), self.under(islands).total_s,
                   f"--training.exchange islands; {ISLANDS_PRICE}"),
        ]  # fmt: skip

    def _seldom(self) -> list[Advice]:
        """Fewer exchanges of weights."""
        later = replace(self.exchange, sync_every=_MORE * self.exchange.sync_every)
        return [
            Advice(f"weights exchanged every {later.sync_every:,} steps", self.under(later).total_s,
                   f"--training.sync-every {later.sync_every}: a quarter of the bytes")
        ]  # fmt: skip

    def _with_bytes(self, share: float) -> float:
        """Wall time if the bytes took that share of their time; the latency stays."""
        seconds = self.latency_s + max(0.0, self.transfer_s - self.latency_s) * share
        return replace(self, transfer_s=seconds).total_s
