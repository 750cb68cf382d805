"""Who was the first to fail, and what follows: a function of what all hosts told.

Ranks that end because another did are never named: they say so (LOST), or C++ aborted them.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_nmt.common import signals
from hvd_nmt.common.errors import ClusterError, Preempted
from hvd_nmt.common.heartbeat import LOST
from hvd_nmt.common.units import duration

OF_A_SIGNAL, _OF_SSH = 128, 255
_KILLED = OF_A_SIGNAL + signal.SIGKILL
_LATE_S = 60.0
"""in its start-up, after which a rank that others wait for is late"""
OWN_END_S, LOST_END_S, LOST_HOST_S = 5.0, 2.0, 4.0
"""for ranks to end by themselves after another ended with an error of its own, or was killed, or a
host was lost: one may be writing a checkpoint"""


@dataclass(frozen=True)
class RankExit:
    """How a rank ended; in the order in which they did."""

    rank: int
    host: str
    code: int
    """as of `subprocess`: below 0 it is that of a signal"""
    section: str
    """what it did last"""
    asked: int = 0
    """number of the signal that asked it to stop, 0: none has"""
    of_memory: bool = False
    """whether it said that memory was full"""

    @property
    def exit_code(self) -> int:
        """As shells say it."""
        return self.code if self.code >= 0 else OF_A_SIGNAL - self.code

    @property
    def follows(self) -> bool:
        """Whether it ended because another rank did."""
        aborted = self.code == -signal.SIGABRT and not self.of_memory
        return self.section == LOST or aborted


@dataclass(frozen=True)
class Blame:
    """What is said and done when a start has failed."""

    sentence: str
    """who was the first; "" where the ranks have said it themselves"""
    exit_code: int
    patience_s: float = 0.0
    """for the other ranks to end by themselves"""
    asks: bool = False
    """whether they are asked to save and end"""


def find(
    ends: Sequence[RankExit],
    states: Mapping[int, Mapping[str, Any]],
    hosts: Mapping[int, str],
    lost_hosts: Mapping[str, str],
) -> Blame | None:
    """The first to fail; None: what is known are consequences, and more may come.

    Args:
        ends: of ranks, in their order.
        states: rank -> what it does (`agent`) and since when (`began_s`), of those that live.
        hosts: rank -> its host.
        lost_hosts: host -> why it is lost.
    """
    for end in ends:
        if not end.follows and end.code not in (0, Preempted.exit_code):
            return _of_end(end)
    for host, why in lost_hosts.items():
        sentence = f"{host} is lost: {why}; its ranks end by themselves if they still run."
        return Blame(sentence, _OF_SSH, LOST_HOST_S, asks=True)
    rank = _stuck_rank(states)
    if rank is not None:
        return Blame(f"{_stuck(rank, hosts[rank], states[rank])}; it is killed.", _KILLED)
    if any(end.code == Preempted.exit_code for end in ends):
        return Blame("", Preempted.exit_code, signals.grace_s())
    return None


def asked(ends: Sequence[RankExit]) -> str:
    """Which rank a signal asked to stop, so that all saved and ended; "": none is known of."""
    for end in ends:
        if end.asked and end.code == Preempted.exit_code:
            where = f"rank {end.rank} on {end.host}"
            return f"{where} was asked to stop by {signals.signal_name(end.asked)}: all saved."
    return ""


def without_cause(
    ends: Sequence[RankExit], states: Mapping[int, Mapping[str, Any]], hosts: Mapping[int, str]
) -> Blame:
    """The verdict where nobody is known to be the first, after a while."""
    for rank, state in states.items():
        if not state["section"] and state["seconds"] > _LATE_S:
            return Blame(
                f"rank {rank} on {hosts[rank]} did not join the others: it is still starting after "
                f"{duration(state['seconds'])}; check that host (a slow disk, a folder that "
                "hangs).", ClusterError.exit_code,
            )  # fmt: skip
    early = [end for end in ends if end.code == 0]
    if early and len(early) < len(ends):
        said = f"rank {early[0].rank} on {early[0].host} ended with code 0 before the others."
        return Blame(said, ClusterError.exit_code)
    if ends[0].code == -signal.SIGABRT:
        return _of_end(ends[0])
    sentence = (
        "the ranks lost their connections, but all ranks and hosts are there: check the network, "
        "and the messages above."
    )
    return Blame(sentence, ClusterError.exit_code)


def _stuck_rank(states: Mapping[int, Mapping[str, Any]]) -> int | None:
    """The one that the others wait for, if any is stuck."""
    stopped, stuck, busy = (
        {rank for rank, state in states.items() if state[what] == value}
        for what, value in (("stopped", True), ("stuck", True), ("waits", False))
    )
    # Of those that wait, the one that is waited for came least far, so it came there first.
    suspects = stopped or (stuck and (stuck & busy or busy or stuck))
    return min(suspects, key=lambda rank: states[rank]["began_s"], default=None)


def _of_end(end: RankExit) -> Blame:
    where = f"rank {end.rank} on {end.host}"
    during = f" (section {end.section!r})" if end.section else ""
    if end.code < 0:
        name = signals.signal_name(-end.code)
        maybe = "; perhaps memory was full" if end.code == -signal.SIGKILL or end.of_memory else ""
        said = f"{where} was killed by {name}{during}{maybe}."
        return Blame(said, end.exit_code, LOST_END_S)
    return Blame(f"{where} ended with code {end.code}{during}.", end.code, OWN_END_S)


def _stuck(rank: int, host: str, state: Mapping[str, Any]) -> str:
    where = f"rank {rank} on {host}"
    during = f"in the section {state['section']!r}" if state["section"] else "during its imports"
    seconds = duration(state["seconds"])
    if state["stopped"]:
        return f"{where} is stopped (SIGSTOP) {during} and has done nothing for {seconds}"
    stacks = ", its threads are listed above" if state["section"] else ""
    return f"{where} hangs {during} for {seconds}{stacks}"
