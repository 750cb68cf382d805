"""How long gradients travel, how much of it a step sees, and what would make that less.

The one model of a step behind every prediction: of the report, of another link, of the doctor. An
all-reduce takes a latency, which no link shortens, and the time of its bytes. The first gradients
travel while the last are still computed, so a step sees the transfer less `HIDDEN_SHARE` of its
computing; the largest gradient, of the shared matrix, is ready last and hides behind nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

HIDDEN_SHARE = 0.2
"""of the computing, the share in which the first gradients travel already; seen on CPUs between two
hosts, where a transfer of 0.3 s showed as 0.19 s and one of 1.2 s as 1.06 s in steps of 0.5 s"""
WORTH_SAYING = 0.95
"""advice that leaves more than this share of the step time is not given"""
_NO_OPTION = "train has no option for it yet"


@dataclass(frozen=True)
class Advice:
    """One thing that would help, and what it would bring."""

    what: str
    predicted_step_s: float
    """wall time of a step that does the same work as now"""
    why: str


@dataclass(frozen=True)
class Step:
    """A step as far as its length depends on the transfer of the gradients; seconds."""

    others_s: float
    """seconds that are no communication: computing, waiting for input and for the slowest rank"""
    compute_s: float
    """seconds of computing, a part of `others_s`"""
    transfer_s: float
    """seconds of one all-reduce of all gradients, hidden or not"""
    latency_s: float = 0.0
    """seconds of the transfer, whatever the number of bytes: an all-reduce of one number"""
    crosses_network: bool = True
    """False: all ranks are on one host"""

    @property
    def exposed_s(self) -> float:
        """The part of the transfer that the step waits for."""
        return _exposed_s(self.transfer_s, self.compute_s)

    @property
    def total_s(self) -> float:
        """Wall time."""
        return self.others_s + self.exposed_s

    def advice(self) -> list[Advice]:
        """What would shorten the communication and is worth saying; best first."""
        found = [
            Advice("gradients as float16 on the wire", self._with_bytes(1 / 2),
                   f"half the bytes; {_NO_OPTION}"),
            Advice("accumulate 4 batches per update", self.others_s + self.exposed_s / 4,
                   f"one all-reduce for four batches; time per batch; {_NO_OPTION}"),
            Advice("4 times as many tokens per step",
                   self.others_s + _exposed_s(self.transfer_s, 4 * self.compute_s) / 4,
                   "--training.tokens-per-step: the same gradient for four times the work; time "
                   "per as many tokens as now"),
        ]  # fmt: skip
        if self.crosses_network:
            found.append(Advice("a network 10 times as fast", self._with_bytes(1 / 10),
                                "the same bytes in a tenth of the time"))  # fmt: skip
        found = [one for one in found if one.predicted_step_s < WORTH_SAYING * self.total_s]
        return sorted(found, key=lambda one: one.predicted_step_s)

    def _with_bytes(self, share: float) -> float:
        """Wall time if the bytes took that share of their time; the latency stays."""
        transfer_s = self.latency_s + max(0.0, self.transfer_s - self.latency_s) * share
        return self.others_s + _exposed_s(transfer_s, self.compute_s)


def travelling_s(exposed_s: float, compute_s: float) -> float:
    """Seconds that gradients travelled whose transfer was exposed for so long, above 0."""
    return exposed_s + HIDDEN_SHARE * compute_s


def _exposed_s(transfer_s: float, compute_s: float) -> float:
    return max(0.0, transfer_s - HIDDEN_SHARE * compute_s)
