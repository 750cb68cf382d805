"""What each way to exchange between hosts costs in bytes and seconds, and what would cost less.

Everything follows from one float32 all-reduce and the computing of a step, both measured. What
crosses no network is taken to be free; so are the rare exchanges at checkpoints and evaluations. No
transfer is taken to hide behind computing: up to `over_hosts.GROUP_BYTES` of gradients are one sum,
which begins with the last of them. 7.5 MB showed as 0.10, 0.66 and 1.37 s in a step where the link
alone takes 0.06, 0.60 and 1.20 s. More gradients hide a little.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hvd_nmt.common.units import percent, step_duration
from hvd_nmt.config import TrainingConfig
from hvd_nmt.config.exchange import PLAIN, Exchange

WORTH_SAYING = 0.95
"""advice that leaves more than this share of the step time is not given"""
PRICE_OF_TRAINING_ALONE = (
    "islands make other updates: in docs/guide/slow-link.md the loss was 0.45 to 28 % higher with "
    "Adam, 1.8 to 5.0 % with Muon, least with training.adam_beta1 0.8"
)
_ONE_WAY = 1.7
"""duration of an exchange in two parts over that of its bytes each way; 1.6 to 1.9 measured, at 60
and 30 Mbit/s. In Gloo's all-to-all and all-gather the one host sends when the other is done."""
_FIRST_WINDOW_BYTES = 14_600
"""bytes that TCP sends before the first answer of the other side: RFC 6928"""
_MORE = 4
"""factor of tokens, or of steps between exchanges, in an advice"""


def sent_bytes_per_step(
    exchange: Exchange, gradient_bytes: float, ranks_by_host: Sequence[int]
) -> float:
    """Bytes that a host sends over its network in a step, mean of steps; 0 with one host.

    `gradient_bytes`: the gradients, or the trained weights, in float32.
    """
    hosts = len(ranks_by_host)
    if hosts < 2:
        return 0.0
    if exchange.kind == "float32":
        return ring_bytes(gradient_bytes, sum(ranks_by_host))
    return ring_bytes(gradient_bytes / 2, hosts) / exchange.sync_every


def latency_s(round_trip_s: float, n_bytes: float, members: int = 2) -> float:
    """Seconds that an exchange of so many bytes waits for round trips, however fast the link is.

    One to agree on it, the rest of as many as a ring has members to go twice around; the same for
    the numbers that follow; and TCP, which begins slowly after a pause, sends twice as much with
    each: RFC 6928 and 5681. Of 44 ms each with two members, 7.5 MB took 0.63 s, calculated 0.58.
    """
    return round_trip_s * (2 * members + math.log2(1 + n_bytes / _FIRST_WINDOW_BYTES))


def ring_bytes(gradient_bytes: float, ranks: int) -> float:
    """Bytes each rank sends in one ring all-reduce: 2 (N-1)/N x the gradients.

    Where a host holds neighbours of the ring, this is also what the host sends over its network.
    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms".
    """
    return 2 * (ranks - 1) / ranks * gradient_bytes


def name_of(exchange: Exchange) -> str:
    """In words: islands (sync every 32)."""
    if exchange.trains_alone:
        return f"islands (sync every {exchange.sync_every:,})"
    return exchange.kind


def link_sentence(step: "Step", sync_every: int = TrainingConfig.sync_every) -> str:
    """What the link between two or more hosts costs, and what each way to use it would give.

    `sync_every`: steps between two exchanges of islands.
    """
    plain = replace(step.under(PLAIN), others_s=step.compute_s)
    ways = [PLAIN, Exchange("float16"), Exchange("islands", sync_every)]
    steps = [f"{name_of(way)} {step_duration(plain.under(way).total_s)}" for way in ways]
    return (
        f"sums of float32 gradients take {step_duration(plain.transfer_s)}, the computing of a "
        f"step {step_duration(step.compute_s)}; a step with training.exchange {', '.join(steps)}"
    )


@dataclass(frozen=True)
class Advice:
    """One thing that would help, and what it would bring."""

    what: str
    predicted_step_s: float
    """wall time of a step that does the same work as now"""
    why: str


def worth_saying(advice: Sequence[Advice], step_s: float) -> list[Advice]:
    """The advice that leaves at most `WORTH_SAYING` of the time of a step; best first."""
    worth = [one for one in advice if one.predicted_step_s < WORTH_SAYING * step_s]
    return sorted(worth, key=lambda one: one.predicted_step_s)


@dataclass(frozen=True)
class Step:
    """A step as far as its length depends on what travels between ranks: behind all predictions."""

    others_s: float
    """seconds that are no communication: computing, waiting for input and for the slowest rank"""
    compute_s: float
    """seconds of computing, a part of `others_s`"""
    transfer_s: float
    """seconds of one exchange: of all gradients, or of all weights"""
    latency_s: float = 0.0
    """seconds of the transfer with any number of bytes: those of an all-reduce of one number"""
    ranks_by_host: Sequence[int] = (1, 1)
    exchange: Exchange = PLAIN

    @property
    def crosses_network(self) -> bool:
        """False: all ranks are on one host."""
        return len(self.ranks_by_host) > 1

    @property
    def exposed_s(self) -> float:
        """The part of the transfers that a step waits for on average."""
        return self.transfer_s / self.exchange.sync_every

    @property
    def total_s(self) -> float:
        """Wall time."""
        return self.others_s + self.exposed_s

    def link_MB_per_s(self, bytes_per_step: float) -> float:
        """Speed of the link, each way, MB/s (1e6 bytes), that carries so many bytes in a step.

        It is the bytes of one exchange over the seconds that they travel one way.
        """
        travelling_s = self.transfer_s / _pace(self.exchange)
        return bytes_per_step * self.exchange.sync_every / travelling_s / 1e6

    def under(self, exchange: Exchange) -> "Step":
        """The same step with another exchange over the same link."""
        slower = _pace(exchange) / _pace(self.exchange) if self.crosses_network else 1.0
        return replace(self._with_bytes(slower * self._share_of_bytes(exchange)), exchange=exchange)

    def _share_of_bytes(self, exchange: Exchange) -> float:
        """Bytes of an exchange over those of this step's; 1 where nothing crosses a network."""
        was, will = (
            sent_bytes_per_step(way, 1.0, self.ranks_by_host) * way.sync_every
            for way in (self.exchange, exchange)
        )
        return will / was if was else 1.0

    def _with_bytes(self, share: float) -> "Step":
        """The step if the bytes took that share of their time; the latency stays."""
        bytes_s = max(0.0, self.transfer_s - self.latency_s)
        return replace(self, transfer_s=self.transfer_s - (1 - share) * bytes_s)

    def advice(self) -> list[Advice]:
        """What would shorten the communication and is worth saying; best first."""
        exchange = self.exchange
        advice = [
            Advice(f"{_MORE} times as many tokens per step",
                   self.others_s + self.exposed_s / _MORE,
                   "--training.tokens-per-step, in slices where memory is short "
                   "(--training.micro-batches): one exchange for four times the work; time per as "
                   "many tokens as now"),
        ]  # fmt: skip
        if self.crosses_network:
            advice.append(Advice("a network 10 times as fast", self._with_bytes(1 / 10).total_s,
                                "the same bytes in a tenth of the time"))  # fmt: skip
        if self.crosses_network and exchange.trains_alone:
            later = replace(exchange, sync_every=_MORE * exchange.sync_every)
            advice.append(Advice(
                f"weights exchanged every {later.sync_every:,} steps", self.under(later).total_s,
                f"--training.sync-every {later.sync_every}: a quarter of the bytes",
            ))  # fmt: skip
        elif self.crosses_network:
            gradients = Exchange("float16")
            islands = Exchange("islands", TrainingConfig.sync_every)
            advice += [
                Advice("gradients as float16, summed within each host first",
                       self.under(gradients).total_s, "--training.exchange float16: "
                       f"{percent(self._share_of_bytes(gradients))} of the bytes"),
                Advice(name_of(islands), self.under(islands).total_s,
                       f"--training.exchange islands; {PRICE_OF_TRAINING_ALONE}"),
            ]  # fmt: skip
        return worth_saying(advice, self.total_s)


def _pace(exchange: Exchange) -> float:
    """Seconds of an exchange over those that its bytes take each way."""
    return 1.0 if exchange == PLAIN else _ONE_WAY
