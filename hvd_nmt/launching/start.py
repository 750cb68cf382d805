"""One start of the ranks: from what agents are told until nothing is left of it."""

import contextlib
import dataclasses
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, final

import psutil
from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

from hvd_nmt.common import heartbeat, signals
from hvd_nmt.common.errors import ClusterError, Preempted
from hvd_nmt.common.rank_environment import TERMINAL, passed, rank_environment
from hvd_nmt.common.units import count, duration
from hvd_nmt.hosts.channel import Message
from hvd_nmt.hosts.connection import Connection
from hvd_nmt.hosts.connections import Connections
from hvd_nmt.hosts.host_list import Host
from hvd_nmt.hosts.transport import SILENCE_S
from hvd_nmt.launching import culprit
from hvd_nmt.launching.culprit import Blame, RankExit
from hvd_nmt.launching.preflight import Job
from hvd_nmt.launching.rank_output import RankOutput

_NOT_STARTED = 127
_TICK_S = 1.0
_SILENT_S = 30.0
"""without a word of a host, after which that is said"""
_SETTLE_S, _SETTLE_STUCK_S = 0.5, 1.5
"""from a failure to the verdict: others may have failed before, what is stuck may go on"""
_CAUSE_S = 5.0
"""where what failed first is a consequence: for its cause"""
_FRESH_S, _ANSWER_S = 3.0, 10.0
"""of a host's silence: what its ranks do is then unknown; it is lost, if ranks have failed"""
_FLUSH_S = 5.0
"""for whoever reads what is printed"""
_GONE_S = 25.0
"""beyond their patience, for the agents to say that nothing is left"""

Events = queue.SimpleQueue[tuple[Connection, Message | None]]


@final
class StopSignals:
    """SIGTERM, SIGINT, SIGHUP: the ranks are to save; between two starts they interrupt."""

    def __init__(self) -> None:
        self.requested = False
        """whether one has come"""
        self.at_once = False
        """whether SIGINT has come a second time: whoever sent it does not want to wait"""
        self._interrupts = 0
        self._interrupting = False

    def listen(self) -> None:
        """From now on. Ctrl-Z does nothing: ranks would wait for a launcher that stands still."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) == signal.SIG_DFL:  # no nohup
                signal.signal(number, self._ask)
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """In the block they raise KeyboardInterrupt, at its beginning if one has come before."""
        self._interrupting = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._interrupting = False

    def _ask(self, number: int, frame: Any) -> None:
        self.requested = True
        self._interrupts += number == signal.SIGINT
        self.at_once = self._interrupts > 1
        if self._interrupting:
            self._interrupting = False
            raise KeyboardInterrupt


@dataclass(frozen=True)
class AttemptOutcome:
    """How a start ended."""

    exit_code: int
    sentence: str
    """why, "" where nobody has to know"""
    saved_step: int = -1
    """step of the newest complete checkpoint; -1: none is known of"""
    reached: dict[str, int] = field(default_factory=dict)
    """see `telemetry.jsonl.reached`"""


class _Requests(RendezvousHandler):
    """Those of ranks; others are refused, for Horovod would print what a stranger sends."""

    def parse_request(self) -> bool:
        """Whether a request is to be answered."""
        if not super().parse_request():
            return False
        if self.path.count("/") == 2 and self.path.isprintable():
            return True
        self.send_error(HTTPStatus.BAD_REQUEST)
        return False


class _Server(RendezvousHTTPServer):
    def handle_error(self, *connection: object) -> None:
        """Nothing: a stranger may end a connection at any time."""


@final
class Rendezvous:
    """Horovod's server, at which ranks find each other: on the card that they use, no other."""

    def __init__(self) -> None:
        self._address = ""

    def _listen(self, address: str) -> None:
        self._address = address
        self._server = _Server((address, 0), _Requests, 0)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def variables(self, hosts: Sequence[Host], nic: str) -> dict[str, list[dict[str, str]]]:
        """Host -> the variables of each of its ranks, for a start."""
        infos = [HostInfo(host.name, host.slots) for host in hosts]
        slots = get_host_assignments(infos, sum(host.slots for host in hosts))
        if (address := _address(nic)) != self._address:
            self._listen(address)
        self._server.init(slots)
        common = {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self._server.server_port),
            "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": nic, "NCCL_SOCKET_IFNAME": nic,
        }  # fmt: skip
        found: dict[str, list[dict[str, str]]] = {host.name: [] for host in hosts}
        for slot in slots:
            found[slot.hostname].append(create_slot_env_vars(slot) | common)
        return found


@final
@dataclass
class Attempt:
    """One start: what is started, on what, and who tells of it."""

    job: Job
    hosts: tuple[Host, ...]
    nic: str
    start_id: str
    next_start_id: str
    """for which there are spares"""
    connections: Connections
    events: Events
    shown: RankOutput
    stop: StopSignals

    def __post_init__(self) -> None:
        self._open: dict[str, Connection] = {}
        self._host_of: dict[int, str] = {}
        """of each rank"""
        self._ends: list[RankExit] = []
        self._states: dict[str, dict[int, dict[str, Any]]] = {}
        """host -> what its ranks did last"""
        self._lost_hosts: dict[str, str] = {}
        """host -> why"""
        self._silent: set[str] = set()
        """hosts of which it was said"""

    def run(self, rendezvous: Rendezvous) -> AttemptOutcome:
        """Start the ranks, and wait until nothing is left of them."""
        verdict = self._begin(rendezvous)
        while verdict is None and len(self._ends) < len(self._host_of) and not self.stop.requested:
            self._next(_TICK_S)
            verdict = self._judge()
        asks = verdict is None and self.stop.requested
        return self._end(verdict or Blame("", 0, signals.grace_s(), asks))

    def _begin(self, rendezvous: Rendezvous) -> Blame | None:
        answers, config = dict[str, Future[Message]](), self.job.config
        ranks = sum(host.slots for host in self.hosts)
        variables = {"PYTHONUNBUFFERED": "1"} | ({TERMINAL: "1"} if os.isatty(1) else {})
        # The agent has the others.
        variables |= dict(rank_environment(ranks).items() - passed(os.environ).items())
        variables_of = rendezvous.variables(self.hosts, self.nic)
        tells = config is not None and config.training.stuck_limit_s != 0
        for host in self.hosts:
            placed = list(enumerate(variables_of[host.name], len(self._host_of)))
            self._host_of |= {rank: host.name for rank, _ in placed}
            connection = self._open[host.name] = self.connections.to(host)
            answers[host.name] = connection.request(
                "start", words=self.job.words, ranks=placed, variables=variables,
                start_id=self.start_id,
                next_start_id=self.next_start_id if config and self.job.restarts_per_hour else "",
                imports_s=heartbeat.LONGEST_S if tells else None,  # until a rank says what it does
            )  # fmt: skip
        self.shown.begin(self._host_of)
        until_s = time.monotonic() + self.connections.timeout_s
        for name, answer in answers.items():
            try:
                reply = answer.result(max(0.0, until_s - time.monotonic()))
            except (ConnectionError, TimeoutError) as error:
                self._lost_hosts[name] = str(error) or "its agent does not answer"
                continue
            if "error" in reply:
                code = ClusterError.exit_code if reply["passes"] else _NOT_STARTED
                return Blame(f"{name}: {reply['error']}", code)
        return self._judge()

    def _next(self, timeout_s: float) -> None:
        """Take note of what is told, and keep in touch."""
        with contextlib.suppress(queue.Empty):
            connection, message = self.events.get(timeout=timeout_s)
            if self._open.get(connection.host.name) is connection:
                self._note(connection, message)
        for name, connection in self._open.items():
            self._see_silence(name, connection, time.monotonic() - connection.received_s)

    def _see_silence(self, name: str, connection: Connection, silent_s: float) -> None:
        if silent_s > _SILENT_S and name not in self._silent and connection.is_open:
            self._silent.add(name)
            self.shown.say(
                f"{name} has not answered for {duration(silent_s)}: the run waits. After "
                f"{duration(SILENCE_S)} the host counts as lost."
            )
        elif silent_s < _SILENT_S and name in self._silent:
            self._silent.discard(name)
            self.shown.say(f"{name} answers again.")
        if silent_s > SILENCE_S or (silent_s > _ANSWER_S and self._has_failed):
            self._lost_hosts.setdefault(name, "it does not answer")

    def _note(self, connection: Connection, message: Message | None) -> None:
        name = connection.host.name
        if message is None:
            self._lost_hosts.setdefault(name, connection.why_ended)
        elif message["start_id"] != self.start_id:
            return
        elif message["tell"] == "ended":
            number = message["rank"]
            self._ends.append(
                RankExit(number, name, message["code"], message["section"], message["asked"])
            )
        else:
            self._states[name] = {
                int(rank): state | {"began_s": connection.received_s - state["seconds"]}
                for rank, state in message["states"].items()
            }

    @property
    def _has_ended(self) -> bool:
        return any(end.code for end in self._ends)

    @property
    def _living(self) -> dict[int, dict[str, Any]]:
        ended = {end.rank for end in self._ends}
        return {
            rank: state for of_host in self._states.values() for rank, state in of_host.items()
            if rank not in ended
        }  # fmt: skip

    @property
    def _all_are_heard(self) -> bool:
        """Whether it is known of every host what its ranks do now."""
        now_s = time.monotonic()
        return all(now_s - connection.received_s < _FRESH_S for connection in self._open.values())

    @property
    def _has_failed(self) -> bool:
        is_stuck = any(state["stuck"] for state in self._living.values())
        return self._has_ended or bool(self._lost_hosts) or is_stuck

    def _judge(self) -> Blame | None:
        """Who was the first; None: nobody has failed."""
        if not self._has_failed:
            return None
        only_stuck = not (self._has_ended or self._lost_hosts)
        self._wait(_SETTLE_STUCK_S if only_stuck else _SETTLE_S)
        until_s = time.monotonic() + _CAUSE_S
        while self._has_failed and not self.stop.requested:
            states = self._living if self._all_are_heard else {}
            full = self.shown.of_memory
            ends = [dataclasses.replace(end, of_memory=end.rank in full) for end in self._ends]
            verdict = culprit.find(ends, states, self._host_of, self._lost_hosts)
            if verdict is None and time.monotonic() > until_s and self._all_are_heard:
                verdict = culprit.without_cause(self._ends, self._living, self._host_of)
            if verdict is not None:
                return verdict
            self._wait(_SETTLE_S)
        return None

    def _wait(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and not self.stop.requested:
            self._next(min(left_s, _TICK_S))

    def _end(self, verdict: Blame) -> AttemptOutcome:
        """Have all agents end what is left; the start is over when they say so."""
        answers = self._ask_to_end(verdict.patience_s, verdict.asks)
        self.shown.flush(_FLUSH_S)
        own_error = 0 < verdict.exit_code < culprit.OF_A_SIGNAL
        if verdict.sentence and not (own_error and self.shown.sentence):
            self.shown.say(verdict.sentence)
        until_s = time.monotonic() + verdict.patience_s + _GONE_S
        hurried = False
        while not all(answer.done() for answer in answers.values()):
            if time.monotonic() > until_s:
                break
            if self.stop.at_once and not hurried:
                hurried, until_s = True, time.monotonic() + _GONE_S
                answers = self._ask_to_end(0.0, asks=False)
            self._next(0.1)
        while not self.events.empty():
            self._next(0.0)
        self.shown.flush(_FLUSH_S)
        return self._outcome(verdict, {
            name: answer.result() for name, answer in answers.items()
            if answer.done() and answer.exception() is None
        })  # fmt: skip

    def _outcome(self, verdict: Blame, replies: dict[str, Message]) -> AttemptOutcome:
        for name in self._open.keys() - replies.keys():
            self.connections.drop(name)
        for name, reply in replies.items():
            if reply["left"]:
                still = count(reply["left"], "process", "processes")
                self.shown.say(f"warning: {name}: {still} of the start cannot be killed.")
        code = verdict.exit_code or next((end.exit_code for end in self._ends if end.code), 0)
        if not code and len(self._ends) < len(self._host_of):
            code = (Preempted if self.stop.requested else ClusterError).exit_code
        own = self.shown.sentence if 0 < code < culprit.OF_A_SIGNAL else ""
        if not (verdict.sentence or self.stop.requested) and (asked := culprit.asked(self._ends)):
            self.shown.say(own := asked)
        steps = [reply.get("saved_step") for reply in replies.values()]
        saved_step = max((step for step in steps if step is not None), default=-1)
        came = [reply["reached"] for reply in replies.values() if reply.get("reached")]
        return AttemptOutcome(code, own or verdict.sentence, saved_step, came[0] if came else {})

    def _ask_to_end(self, patience_s: float, asks: bool) -> dict[str, Future[Message]]:
        config = self.job.config
        run_dir = None if config is None else os.fspath(config.run_dir)
        return {
            name: connection.request("end", patience_s=patience_s, asks=asks, run_dir=run_dir)
            for name, connection in self._open.items()
        }


def _address(nic: str) -> str:
    """Of this machine, on a network card."""
    for entry in psutil.net_if_addrs().get(nic, []):
        if entry.family == socket.AF_INET:
            return str(entry.address)
    return socket.gethostbyname(socket.gethostname())
