"""Who was the first to fail, and what follows: a function of what all hosts report.

Ranks that end because another did are never blamed: their last section is LOST, or C++ aborted
them.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvd_nmt.common import signals
from hvd_nmt.common.errors import ClusterError, Preempted
from hvd_nmt.common.heartbeat import LOST
from hvd_nmt.common.units import duration

State = Mapping[str, Any]
SSH_FAILED = 255
_KILLED = signals.EXIT_CODE_BASE + signal.SIGKILL
_LATE_S = 60.0
"""seconds in which a rank that others wait for may start"""
OWN_END_S, LOST_END_S, LOST_HOST_S = 5.0, 2.0, 4.0
"""seconds for ranks to end by themselves after another ended with an error, or was killed, or a
host was lost: one may be writing a checkpoint"""


@dataclass(frozen=True)
class RankExit:
    """How a rank ended."""

    rank: int
    where: str
    """the rank and its host, in words"""
    code: int
    """exit code as in `subprocess`: below 0 it is that of a signal"""
    section: str
    """last section of its heartbeat"""
    asked: int = 0
    """number of the signal that asked it to stop, 0: none has"""
    of_memory: bool = False
    """whether it printed that memory was full"""

    @property
    def exit_code(self) -> int:
        """The exit code as in shells."""
        return self.code if self.code >= 0 else signals.EXIT_CODE_BASE - self.code

    @property
    def follows(self) -> bool:
        """Whether it ended because another rank did."""
        aborted = self.code == -signal.SIGABRT and not self.of_memory
        return self.section == LOST or aborted


@dataclass(frozen=True)
class Blame:
    """What is said and done when a start has failed."""

    sentence: str
    """who was the first to fail; "" where the ranks have printed it"""
    exit_code: int
    patience_s: float = 0.0
    """seconds for the other ranks to end by themselves"""
    asks: bool = False
    """whether they are asked to save and end"""


def find(
    ends: Sequence[RankExit], states: Sequence[State], lost_hosts: Mapping[str, str]
) -> Blame | None:
    """The first to fail; None: what is known are consequences, and more may come.

    Args:
        ends: ranks that have ended, in their order.
        states: what each living rank does (`RankProcess.state`), since when (`began_s`), `where`.
        lost_hosts: host -> why it is lost.
    """
    for end in ends:
        if not end.follows and end.code not in (0, Preempted.exit_code):
            return _blame_for(end)
    for host, why in lost_hosts.items():
        sentence = f"{host} is lost: {why}; its ranks end by themselves if they still run."
        return Blame(sentence, SSH_FAILED, LOST_HOST_S, asks=True)
    if stuck := _stuck(states):
        return Blame(f"{stuck['where']} {_what_is_stuck(stuck)}; it is killed.", _KILLED)
    if any(end.code == Preempted.exit_code for end in ends):
        return Blame("", Preempted.exit_code, signals.grace_s())
    return None


def asked(ends: Sequence[RankExit]) -> str:
    """Which rank a signal asked to stop, so that all saved and ended; "": none is known of."""
    for end in ends:
        if end.asked and end.code == Preempted.exit_code:
            return f"{end.where} was asked to stop by {signals.signal_name(end.asked)}: all saved."
    return ""


def without_cause(ends: Sequence[RankExit], states: Sequence[State]) -> Blame:
    """What to blame where the first to fail is not known after a while."""
    for state in states:
        if not state["section"] and state["seconds"] > _LATE_S:
            return Blame(
                f"{state['where']} did not join the others: it is still starting after "
                f"{duration(state['seconds'])}; check that host (a slow disk, a folder that "
                "hangs).", ClusterError.exit_code,
            )  # fmt: skip
    early = [end for end in ends if end.code == 0]
    sentence = (
        "the ranks lost their connections, but all ranks and hosts are there: check the network, "
        "and the messages above."
    )
    if early and len(early) < len(ends):
        sentence = f"{early[0].where} ended with code 0 before the others."
    elif ends[0].code == -signal.SIGABRT:
        return _blame_for(ends[0])
    return Blame(sentence, ClusterError.exit_code)


def _stuck(states: Sequence[State]) -> State | None:
    """The rank that the others wait for, if any is stuck."""
    stopped = [state for state in states if state["stopped"]]
    stuck = [state for state in states if state["stuck"]]
    busy = [state for state in states if not state["waits"]]
    stuck_and_busy = [state for state in stuck if state in busy]
    # The one that ranks wait for came least far, so if it waits, too, it came there first.
    suspects = stopped or (stuck and (stuck_and_busy or busy or stuck))
    return min(suspects, key=lambda state: state["began_s"], default=None)


def _blame_for(end: RankExit) -> Blame:
    during = f" (section {end.section!r})" if end.section else ""
    if end.code < 0:
        name = signals.signal_name(-end.code)
        maybe = "; perhaps memory was full" if end.code == -signal.SIGKILL or end.of_memory else ""
        sentence = f"{end.where} was killed by {name}{during}{maybe}."
        return Blame(sentence, end.exit_code, LOST_END_S)
    return Blame(f"{end.where} ended with code {end.code}{during}.", end.code, OWN_END_S)


def _what_is_stuck(state: State) -> str:
    during = f"in the section {state['section']!r}" if state["section"] else "during its imports"
    seconds = duration(state["seconds"])
    if state["stopped"]:
        return f"is stopped (SIGSTOP) {during} and has done nothing for {seconds}"
    stacks = ", its threads are listed above" if state["section"] else ""
    return f"hangs {during} for {seconds}{stacks}"
