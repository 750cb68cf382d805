"""One start of the ranks: from what agents are told until nothing is left of it."""

from __future__ import annotations

import os
import queue
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

import psutil
from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.runner.http.http_server import RendezvousServer

from hvd_nmt.common import signals
from hvd_nmt.common.errors import ClusterError, Preempted
from hvd_nmt.common.rank_environment import START_ID, TERMINAL, passed, rank_environment
from hvd_nmt.common.units import duration
from hvd_nmt.diagnosis.hosts import Host
from hvd_nmt.diagnosis.link import SILENCE_S, Link, LinkError, Links, Message
from hvd_nmt.launching import culprit, rank_output
from hvd_nmt.launching.culprit import End, Verdict
from hvd_nmt.launching.rank_output import Output
from hvd_nmt.launching.stop_signals import StopSignals
from hvd_nmt.training import heartbeat

_NOT_STARTED = 127
_TICK_S = 1.0
_SILENT_S = 30.0
"""without a word of a host, after which that is said"""
_SETTLE_S, _SETTLE_LATE_S = 0.5, 30.0
"""from a failure to the verdict: others may have failed before; late, where the launcher stood"""
_CAUSE_S = 5.0
"""where what failed first is a consequence: for its cause"""
_ANSWER_S = 10.0
_FLUSH_S = 5.0
_GONE_S = 25.0
"""beyond their patience, for the agents to say that nothing is left"""


@dataclass(frozen=True)
class Outcome:
    """How a start ended, and what the hosts say after it."""

    exit_code: int
    sentence: str
    """why, "" where nobody has to know"""
    killed: dict[str, int] = field(default_factory=dict)
    """host -> processes that had not ended by themselves, if any"""
    left: dict[str, int] = field(default_factory=dict)
    """host -> processes that even SIGKILL did not end in time, if any"""
    silent: tuple[str, ...] = ()
    """hosts without an answer"""
    saved_step: int | None = None
    """step of the newest complete checkpoint"""
    reached: dict[str, Any] = field(default_factory=dict)
    """see `records.reached`"""


@dataclass(frozen=True)
class Where:
    """On what, and of which run."""

    hosts: tuple[Host, ...]
    nic: str
    launch_id: str
    start_id: str
    run_dir: Path | None
    next_start_id: str
    """"": there are no spares for the next start"""


@final
class Rendezvous:
    """Horovod's server, at which ranks find each other."""

    def __init__(self) -> None:
        self._server = RendezvousServer()
        self._port: int | None = None

    def variables(self, hosts: Sequence[Host], nic: str) -> dict[str, list[dict[str, str]]]:
        """Host -> the variables of each of its ranks, for a start."""
        if self._port is None:
            self._port = self._server.start()
        infos = [HostInfo(host.name, host.slots) for host in hosts]
        slots = get_host_assignments(infos, sum(host.slots for host in hosts))
        self._server.init(slots)
        common = {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": _address(nic),
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self._port),
            "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": nic, "NCCL_SOCKET_IFNAME": nic,
        }  # fmt: skip
        found: dict[str, list[dict[str, str]]] = {host.name: [] for host in hosts}
        for slot in slots:
            found[slot.hostname].append(create_slot_env_vars(slot) | common)
        return found


@final
class Start:
    """One start."""

    def __init__(
        self,
        words: Sequence[str],
        where: Where,
        links: Links,
        events: queue.SimpleQueue[tuple[Link | None, Message | None]],
        shown: Output,
        stop: StopSignals,
    ) -> None:
        self._words, self._where, self._links = list(words), where, links
        self._events, self._shown, self._stop = events, shown, stop
        self._open: dict[str, Link] = {}
        self._hosts: dict[int, str] = {}
        self._ends: list[End] = []
        self._stuck, self._all_answered = False, True
        self._lost_hosts: dict[str, str] = {}
        self._silent: set[str] = set()
        """hosts of which it was said"""
        self._ticked_s = time.monotonic()
        self._stood_s = float("-inf")
        """when this process last stood still for long"""
        stop.wake = partial(events.put, (None, None))

    def run(self, rendezvous: Rendezvous) -> Outcome:
        """Start the ranks, and wait until nothing is left of them."""
        verdict = self._begin(rendezvous)
        while verdict is None and len(self._ends) < len(self._hosts) and not self._stop.requested:
            self._next()
            if self._has_failed:
                verdict = self._judge()
        if self._stop.requested and verdict is None:
            return self._end(Verdict("", 0, signals.grace_s(), asks=True))
        return self._end(verdict or Verdict("", 0, signals.grace_s()))

    @property
    def _has_failed(self) -> bool:
        return self._stuck or bool(self._lost_hosts) or any(end.code for end in self._ends)

    def _begin(self, rendezvous: Rendezvous) -> Verdict | None:
        """Have all agents start their ranks."""
        where, number = self._where, 0
        ranks: dict[str, list[tuple[int, dict[str, str]]]] = {}
        for host, found in rendezvous.variables(where.hosts, where.nic).items():
            ranks[host] = list(enumerate(found, number))
            self._hosts |= dict.fromkeys(range(number, number + len(found)), host)
            number += len(found)
        self._shown.begin(self._hosts)
        own = rank_environment(number)
        theirs = passed(os.environ)
        variables = {name: text for name, text in own.items() if theirs.get(name) != text}
        variables |= {START_ID: where.start_id, "PYTHONUNBUFFERED": "1"}
        variables |= {TERMINAL: "1"} if rank_output.is_terminal() else {}
        answers: dict[str, Future[Message]] = {}
        for placed in where.hosts:
            try:
                link = self._open[placed.name] = self._links.to(placed)
            except LinkError as error:
                self._lost_hosts[placed.name] = str(error)
                continue
            answers[placed.name] = link.request(
                "start",
                words=self._words,
                variables=variables,
                ranks=ranks[placed.name],
                next={START_ID: where.next_start_id} if where.next_start_id else {},
                imports_s=None if where.run_dir is None else heartbeat.LONGEST_S,
            )
        until_s = time.monotonic() + self._links.timeout_s
        for name, answer in answers.items():
            try:
                reply = answer.result(max(0.0, until_s - time.monotonic()))
            except (LinkError, TimeoutError) as error:
                self._lost_hosts[name] = str(error) or "its agent does not answer"
                continue
            if "error" in reply:
                code = ClusterError.exit_code if reply["passes"] else _NOT_STARTED
                return Verdict(f"{name}: {reply['error']}", code)
        self._ticked_s = time.monotonic()
        return self._judge() if self._lost_hosts else None

    def _next(self, timeout_s: float = _TICK_S) -> None:
        """Take note of what is told, and keep in touch."""
        try:
            link, message = self._events.get(timeout=timeout_s)
        except queue.Empty:
            link, message = None, None
        if link is not None and self._open.get(link.host.name) is link:
            self._note(link, message)
        now_s = time.monotonic()
        if now_s > self._ticked_s + 10 * _TICK_S:
            self._stood_s = now_s
        self._ticked_s = now_s
        for name, link in self._open.items():
            self._see_silence(name, link, now_s)

    def _see_silence(self, name: str, link: Link, now_s: float) -> None:
        silent_s = now_s - max(link.heard_s, self._stood_s)
        if silent_s > _SILENT_S and name not in self._silent and link.is_open:
            self._silent.add(name)
            self._shown.say(
                f"{name} does not answer for {duration(silent_s)}: the run goes on when it does; "
                f"after {duration(SILENCE_S)} it counts as lost."
            )
        elif silent_s < _SILENT_S and name in self._silent:
            self._silent.discard(name)
            self._shown.say(f"{name} answers again.")
        if silent_s > SILENCE_S:
            self._lost_hosts.setdefault(name, "it does not answer")

    def _note(self, link: Link, message: Message | None) -> None:
        name = link.host.name
        if message is None:
            self._lost_hosts.setdefault(name, link.why_ended)
        elif message.get("start_id") != self._where.start_id:
            return
        elif message["tell"] == "ended":
            number = message["rank"]
            self._ends.append(End(number, name, message["code"], message["section"]))
        elif message["tell"] == "stuck":
            self._stuck = True

    def _judge(self) -> Verdict | None:
        """Who was the first; None: nobody failed after all."""
        stood = time.monotonic() - self._stood_s < _SETTLE_LATE_S
        self._wait(_SETTLE_LATE_S if stood else _SETTLE_S)
        if self._stop.requested:
            return None
        if verdict := self._found({}):
            return verdict
        until_s = time.monotonic() + _CAUSE_S
        while True:
            states = self._states()
            if verdict := self._found(states):
                return verdict
            gone_on = not any(state["stuck"] for state in states.values())
            if gone_on and self._all_answered and not any(end.code for end in self._ends):
                self._stuck = False
                return None
            if self._stop.requested:
                return None
            if time.monotonic() > until_s and any(end.code for end in self._ends):
                return culprit.without_cause(self._ends, states, self._hosts)
            self._wait(_SETTLE_S)

    def _found(self, states: dict[int, Any]) -> Verdict | None:
        return culprit.find(self._ends, states, self._hosts, self._lost_hosts, signals.grace_s())

    def _wait(self, seconds: float) -> None:
        """Take note of what comes meanwhile."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and not self._stop.requested:
            self._next(min(left_s, _TICK_S))

    def _states(self) -> dict[int, Any]:
        """What all ranks do; a host that does not say it is lost where others have failed."""
        answers = {name: link.request("states") for name, link in self._open.items()}
        until_s = time.monotonic() + _ANSWER_S
        states: dict[int, Any] = {}
        self._all_answered = True
        for name, answer in answers.items():
            try:
                reply = answer.result(max(0.0, until_s - time.monotonic()))
            except LinkError as error:
                self._lost_hosts.setdefault(name, str(error))
            except TimeoutError:
                self._all_answered = False
                if any(end.code for end in self._ends):
                    self._lost_hosts.setdefault(name, "it does not answer")
            else:
                for rank, state in reply["states"].items():
                    began_s = reply["heard_s"] - state["seconds"]  # on this host's clock
                    states[int(rank)] = state | {"began_s": began_s}
        return states

    def _end(self, verdict: Verdict) -> Outcome:
        """Have all agents end what is left; the start is over when they say so."""
        answers = self._ask_to_end(verdict.patience_s, verdict.asks)
        self._shown.flush(self._gives_up(_FLUSH_S))
        own_error = 0 < verdict.exit_code < culprit.OF_A_SIGNAL
        if verdict.sentence and not (own_error and self._shown.sentence):
            self._shown.say(verdict.sentence)
        until_s = time.monotonic() + verdict.patience_s + _GONE_S
        hurried = False
        while not all(answer.done() for answer in answers.values()):
            if time.monotonic() > until_s:
                break
            if self._stop.at_once and not hurried:
                hurried, until_s = True, time.monotonic() + _GONE_S
                answers = self._ask_to_end(0.0, asks=False)
            elif self._stop.requested and not verdict.asks and verdict.patience_s:
                return self._end(Verdict("", verdict.exit_code, signals.grace_s(), asks=True))
            self._next(0.2)
        while not self._events.empty():
            self._next(0.0)
        self._shown.flush(self._gives_up(_FLUSH_S))
        replies: dict[str, Message] = {
            name: answer.result() for name, answer in answers.items()
            if answer.done() and answer.exception() is None
        }  # fmt: skip
        steps = [found["saved_step"] for found in replies.values()]
        reached = [found["reached"] for found in replies.values() if found["reached"]]
        code = verdict.exit_code or self._exit_code()
        if not code and len(self._ends) < len(self._hosts):
            code = (Preempted if self._stop.requested else ClusterError).exit_code
        own = self._shown.sentence if 0 < code < culprit.OF_A_SIGNAL else ""
        sentence = own or verdict.sentence
        return Outcome(
            code, sentence,
            killed={name: found["killed"] for name, found in replies.items() if found["killed"]},
            left={name: found["left"] for name, found in replies.items() if found["left"]},
            silent=tuple(name for name in self._open if name not in replies),
            saved_step=max((step for step in steps if step is not None), default=None),
            reached=reached[0] if reached else {},
        )  # fmt: skip

    def _gives_up(self, seconds: float) -> Callable[[], bool]:
        """Whether nobody waits any more for whoever reads what is printed."""
        until_s = time.monotonic() + seconds
        return lambda: self._stop.requested or time.monotonic() > until_s

    def _exit_code(self) -> int:
        """The first code of a rank that is not 0."""
        return next((end.exit_code for end in self._ends if end.code), 0)

    def _ask_to_end(self, patience_s: float, asks: bool) -> dict[str, Future[Message]]:
        where = self._where
        run_dir = None if where.run_dir is None else os.fspath(where.run_dir)
        return {
            name: link.request(
                "end", patience_s=patience_s, asks=asks, launch_id=where.launch_id,
                start_id=where.start_id, run_dir=run_dir,
            )
            for name, link in self._open.items()
        }  # fmt: skip


def _address(nic: str) -> str:
    """Of this machine, on a network card."""
    for entry in psutil.net_if_addrs().get(nic, []):
        if entry.family == socket.AF_INET:
            return str(entry.address)
    return socket.gethostbyname(socket.gethostname())
