"""One start of the ranks: from the order to the agents until nothing is left of it."""

import contextlib
import dataclasses
import os
import queue
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import final

from hvd_nmt.common import heartbeat, signals
from hvd_nmt.common.errors import ClusterError, Preempted
from hvd_nmt.common.rank_environment import RESCUES, TERMINAL, passed, rank_environment
from hvd_nmt.common.units import count, duration
from hvd_nmt.hosts.channel import Message
from hvd_nmt.hosts.connection import Connection, Connections
from hvd_nmt.hosts.host_list import Host
from hvd_nmt.hosts.transport import SILENCE_S
from hvd_nmt.launching import culprit
from hvd_nmt.launching.culprit import Blame, RankExit
from hvd_nmt.launching.job import Job
from hvd_nmt.launching.rank_output import RankOutput
from hvd_nmt.launching.rendezvous import Rendezvous
from hvd_nmt.launching.stop_signals import StopSignals

_NOT_STARTED = 127
_TICK_S = 1.0
_SILENT_S = 30.0
"""seconds of a host's silence until a line reports it"""
_SETTLE_S, _SETTLE_STUCK_S = 0.5, 1.5
"""seconds from a failure to the blame: others may have failed before, what is stuck may resume"""
_CAUSE_S = 5.0
"""seconds to wait for the cause where only consequences are known"""
_FRESH_S, _LOST_S = 3.0, 10.0
"""seconds of a host's silence until its ranks may do something else, and, if ranks have failed,
until it is lost"""
_FLUSH_S = 5.0
"""seconds for a reader to read what is printed"""
_GONE_S = 25.0
"""seconds beyond their patience for the agents to report that nothing is left"""
_RESCUE_S = 15.0
"""seconds of patience with ranks that save what they have, when another is lost"""

Events = queue.SimpleQueue[tuple[Connection, Message | None]]


@dataclass(frozen=True)
class AttemptOutcome:
    """How a start ended."""

    exit_code: int
    sentence: str
    """the reason; "" if there is none to give"""
    saved_step: int = -1
    """step of the newest complete checkpoint; -1: none is known of"""
    reached: dict[str, int] = field(default_factory=dict)
    """see `checkpoints.run_files.reached`"""


@final
@dataclass
class Attempt:
    """What is started where, and what is known of it."""

    job: Job
    hosts: tuple[Host, ...]
    """hosts with their ranks, in order"""
    nic: str
    start_id: str
    next_start_id: str
    """id of the start that spares are for; "": no spares"""
    connections: Connections
    events: Events
    output: RankOutput
    stop: StopSignals

    def __post_init__(self) -> None:
        self._open: dict[str, Connection] = {}
        self._host_of: dict[int, str] = {}
        self._ends: list[RankExit] = []
        self._states: dict[str, dict[int, culprit.State]] = {}
        """host -> rank -> what it did last"""
        self._lost_hosts: dict[str, str] = {}
        """host -> reason"""
        self._reported_silent: set[str] = set()

    def run(self, rendezvous: Rendezvous) -> AttemptOutcome:
        """Start the ranks, and wait until nothing is left of them."""
        blame = self._start(rendezvous) or self._judge()
        while blame is None and len(self._ends) < len(self._host_of) and not self.stop.requested:
            self._handle_event(_TICK_S)
            blame = self._judge()
        asks = blame is None and self.stop.requested
        blame = blame or Blame("", 0, signals.grace_s(), asks)
        has_failed = blame.exit_code not in (0, Preempted.exit_code)
        if self.job.rescues and has_failed and blame.patience_s:
            blame = dataclasses.replace(blame, patience_s=max(blame.patience_s, _RESCUE_S))
        return self._end(blame)

    def _start(self, rendezvous: Rendezvous) -> Blame | None:
        """Have each agent start its ranks; the reason if one cannot."""
        config, ranks = self.job.config, sum(host.slots for host in self.hosts)
        variables = {"PYTHONUNBUFFERED": "1"} | ({TERMINAL: "1"} if os.isatty(1) else {})
        variables |= {RESCUES: "1"} if self.job.rescues else {}
        # The agent has the others.
        variables |= dict(rank_environment(ranks).items() - passed(os.environ).items())
        reports = config is not None and config.training.stuck_after_s != 0
        answers = dict[str, Future[Message]]()
        variables_of = rendezvous.variables(self.hosts, self.nic)
        for host in self.hosts:
            placed = list(enumerate(variables_of[host.name], len(self._host_of)))
            self._host_of |= {rank: host.name for rank, _ in placed}
            connection = self._open[host.name] = self.connections.to(host)
            answers[host.name] = connection.request(
                "start", words=self.job.command, ranks=placed, variables=variables,
                start_id=self.start_id, next_start_id=self.next_start_id,
                imports_s=heartbeat.LONGEST_S if reports else None,
            )  # fmt: skip
        self.output.begin(self._host_of)
        wait(answers.values(), self.connections.timeout_s)
        for name, answer in answers.items():
            try:
                reply = answer.result(0)
            except (ConnectionError, TimeoutError) as error:
                self._lost_hosts[name] = str(error) or "its agent does not answer"
                continue
            if "error" in reply:
                code = ClusterError.exit_code if reply["passes"] else _NOT_STARTED
                return Blame(f"{name}: {reply['error']}", code)
        return None

    def _handle_event(self, timeout_s: float) -> None:
        """Wait for an event and take note of it, and of hosts that are silent."""
        with contextlib.suppress(queue.Empty):
            connection, message = self.events.get(timeout=timeout_s)
            if self._open.get(connection.host.name) is connection:
                self._note(connection, message)
        for name, connection in self._open.items():
            self._note_silence(name, connection, time.monotonic() - connection.received_s)

    def _note_silence(self, name: str, connection: Connection, silent_s: float) -> None:
        if silent_s > _SILENT_S and name not in self._reported_silent and connection.is_open:
            self._reported_silent.add(name)
            self.output.say(
                f"{name} has not answered for {duration(silent_s)}: the run waits. After "
                f"{duration(SILENCE_S)} the host counts as lost."
            )
        elif silent_s < _SILENT_S and name in self._reported_silent:
            self._reported_silent.discard(name)
            self.output.say(f"{name} answers again.")
        if silent_s > SILENCE_S or (silent_s > _LOST_S and self._has_failed):
            self._lost_hosts.setdefault(name, "it does not answer")

    def _note(self, connection: Connection, message: Message | None) -> None:
        name = connection.host.name
        if message is None:
            self._lost_hosts.setdefault(name, connection.why_ended)
        elif message["start_id"] != self.start_id:
            return
        elif message["tell"] == "ended":
            rank, *values = (message[key] for key in ("rank", "code", "section", "asked"))
            self._ends.append(RankExit(rank, f"rank {rank} on {name}", *values))
        else:
            self._states[name] = {
                int(rank): {
                    **state, "where": f"rank {rank} on {name}",
                    "began_s": connection.received_s - state["seconds"],
                }
                for rank, state in message["states"].items()
            }  # fmt: skip

    @property
    def _has_ended(self) -> bool:
        return any(end.code for end in self._ends)

    @property
    def _living(self) -> list[culprit.State]:
        """What each rank does that has not ended."""
        ended = {end.rank for end in self._ends}
        states = (item for of_host in self._states.values() for item in of_host.items())
        return [state for rank, state in states if rank not in ended]

    @property
    def _has_failed(self) -> bool:
        is_stuck = any(state["stuck"] for state in self._living)
        return self._has_ended or bool(self._lost_hosts) or is_stuck

    def _judge(self) -> Blame | None:
        """The first to fail; None: no one has."""
        if not self._has_failed:
            return None
        only_stuck = not (self._has_ended or self._lost_hosts)
        self._wait(_SETTLE_STUCK_S if only_stuck else _SETTLE_S)
        until_s = time.monotonic() + _CAUSE_S
        while self._has_failed and not self.stop.requested:
            now_s = time.monotonic()
            is_fresh = all(now_s - link.received_s < _FRESH_S for link in self._open.values())
            states = self._living if is_fresh else []
            full = self.output.of_memory
            ends = [dataclasses.replace(end, of_memory=end.rank in full) for end in self._ends]
            blame = culprit.find(ends, states, self._lost_hosts)
            if blame is None and now_s > until_s and is_fresh:
                blame = culprit.without_cause(ends, states)
            if blame is not None:
                return blame
            self._wait(_SETTLE_S)
        return None

    def _wait(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and not self.stop.requested:
            self._handle_event(min(left_s, _TICK_S))

    def _end(self, blame: Blame) -> AttemptOutcome:
        """Have all agents end what is left; the start is over when they report that."""
        answers = self._ask_to_end(blame.patience_s, blame.asks)
        self.output.flush(_FLUSH_S)
        is_error = 0 < blame.exit_code < signals.EXIT_CODE_BASE
        if blame.sentence and not (is_error and self.output.sentence):
            self.output.say(blame.sentence)
        until_s = time.monotonic() + blame.patience_s + _GONE_S
        hurried = False
        while not all(answer.done() for answer in answers.values()):
            if time.monotonic() > until_s:
                break
            if self.stop.at_once and not hurried:
                hurried, until_s = True, time.monotonic() + _GONE_S
                answers = self._ask_to_end(0.0, asks=False)
            self._handle_event(0.1)
        while not self.events.empty():
            self._handle_event(0.0)
        self.output.flush(_FLUSH_S)
        return self._outcome(blame, {
            name: answer.result() for name, answer in answers.items()
            if answer.done() and answer.exception() is None
        })  # fmt: skip

    def _ask_to_end(self, patience_s: float, asks: bool) -> dict[str, Future[Message]]:
        run_dir = self.job.config and os.fspath(self.job.config.run_dir)
        return {
            name: connection.request("end", patience_s=patience_s, asks=asks, run_dir=run_dir)
            for name, connection in self._open.items()
        }

    def _outcome(self, blame: Blame, replies: dict[str, Message]) -> AttemptOutcome:
        for name in self._open.keys() - replies.keys():
            self.connections.drop(name)
        for name, reply in replies.items():
            if reply["left"]:
                still = count(reply["left"], "process", "processes")
                self.output.say(f"warning: {name}: {still} of the start cannot be killed.")
        code = blame.exit_code or next((end.exit_code for end in self._ends if end.code), 0)
        if not code and len(self._ends) < len(self._host_of):
            code = (Preempted if self.stop.requested else ClusterError).exit_code
        sentence = self.output.sentence if 0 < code < signals.EXIT_CODE_BASE else ""
        if not (blame.sentence or self.stop.requested) and (asked := culprit.asked(self._ends)):
            self.output.say(sentence := asked)
        steps = [reply.get("saved_step") for reply in replies.values()]
        saved_step = max((step for step in steps if step is not None), default=-1)
        reached = [reply["reached"] for reply in replies.values() if reply.get("reached")]
        return AttemptOutcome(
            code, sentence or blame.sentence, saved_step, reached[0] if reached else {}
        )
