"""The agent of a host: the parent of the ranks that run there.

    python -m hvd_nmt.launching.agent     started by `diagnosis.link`, here or through ssh

Requests are JSON lines on standard input; those with an id are answered on standard output:

    facts     what `diagnosis.probe` says of this host
    start     start ranks, each with variables of its own
    states    what each rank does
    end       SIGTERM to the ranks if so asked, and after a patience SIGKILL to all that is left
    report    write the report of a run
    alive     the launcher is there, and says so at least every `limit_s`
    printed   so many characters of output were printed, and as many may follow

Unasked it tells what ranks print, how they end, which one is stuck, and that it is alive itself.
Without a launcher (end of input, or long silence) it asks the ranks to save, kills them after their
grace, and ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, final

import psutil

from hvd_nmt.checkpoints.manifest import newest_step
from hvd_nmt.common import signals
from hvd_nmt.common.rank_environment import START_ID
from hvd_nmt.common.version import code_hash
from hvd_nmt.diagnosis.link import Channel, Message
from hvd_nmt.launching.rank_process import Allowance, RankProcess, end_with_parent
from hvd_nmt.records.reached import reached
from hvd_nmt.telemetry import jsonl
from hvd_nmt.training import heartbeat

_LOOK_S, _LOOK_AT_END_S = 1.0, 0.2
_ALIVE_S = 5.0
_FROZEN_S, _AWAKE_S = 10.0, 60.0
"""between two looks: this host was suspended; after that, for ranks to come further"""
_GONE_S = 10.0
"""for killed processes to be gone"""
_LAST_WORDS_S = 2.0
"""for what ranks printed before their end to be read"""
_STACKS_S = 0.5
_SPARES_S = 5.0
"""that ranks have trained, until spares are started"""
_ROOM = 2.0
"""times the memory of the ranks, which must be free for spares"""
_STARTING = ("", heartbeat.START)
"""sections before training"""
_PR_SET_CHILD_SUBREAPER = 36
_PROBE = "hvd_nmt.diagnosis.probe"
_METRICS = "metrics.jsonl"
_REPORT = """
import pathlib, sys
from hvd_nmt import train
train.write_report(pathlib.Path(sys.argv[1]))
"""


@final
class Agent:
    """All that happens on this host; every method but those of threads runs in the main thread."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._allowance = Allowance()
        self._ranks: list[RankProcess] = []
        self._waiting: list[threading.Thread] = []
        """for the end of each rank"""
        self._helpers: set[int] = set()
        """process ids of children that are no ranks, spares too"""
        self._spares: dict[int, RankProcess] = {}
        """for the next start, by the number of the rank"""
        self._spares_code = ""
        """hash of the code that they have imported"""
        self._next_ranks: list[tuple[int, list[str], dict[str, str]]] = []
        """of which there are no spares yet"""
        self._trained_s: float | None = None
        """when all ranks were first seen to train"""
        self._ending: dict[str, Any] | None = None
        """what is asked and known while everything is being ended"""
        self._leaves = False
        self._told_s = self._heard_s = time.monotonic()
        self._looked_s, self._frozen_s = self._told_s, float("-inf")
        self._silence_s = float("inf")
        self._channel = Channel(incoming, outgoing, self._hear)

    def serve(self) -> None:
        """Until the launcher is gone and nothing is left of what was started."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._work.put(self._leave))
        while not (self._leaves and self._ending is None):
            with contextlib.suppress(queue.Empty):
                self._work.get(timeout=_LOOK_AT_END_S if self._ending else _LOOK_S)()
            self._look()
        self._channel.close()
        self._channel.join(_LAST_WORDS_S)

    def _hear(self, message: Message | None) -> None:
        """In the thread that reads."""
        if message is None:
            self._allowance.give(float("inf"))
            self._work.put(self._leave)
        elif message["do"] == "printed":
            self._allowance.give(message["size"])
        else:
            self._work.put(partial(self._do, message))

    def _do(self, message: Message) -> None:
        self._heard_s = time.monotonic()
        match message["do"]:
            case "facts":
                self._run(message, [sys.executable, "-m", _PROBE], json.dumps(message["request"]))
            case "start":
                self._reply(message, **self._start(message))
                for waiting in self._waiting:
                    waiting.start()
            case "states":
                states = {rank.number: rank.state() for rank in self._ranks if rank.lives}
                self._reply(message, states=states)
            case "end":
                self._end(message)
            case "report":
                self._run(message, [sys.executable, "-c", _REPORT, message["run_dir"]], "")
            case "alive":
                self._silence_s = message["limit_s"]

    def _reply(self, message: Message, **values: Any) -> None:
        self._channel.send({"id": message["id"], **values})

    def _run(self, message: Message, words: list[str], text: str) -> None:
        """Answer with what a command prints: JSON if facts are asked for."""
        try:
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                preexec_fn=end_with_parent,
            )  # fmt: skip
        except OSError as error:
            self._reply(message, error=str(error), said=str(error))
            return
        self._helpers.add(process.pid)

        def finish() -> None:
            try:
                out, errors = process.communicate(text.encode(), message["limit_s"])
            except subprocess.TimeoutExpired:
                process.kill()
                out, errors = b"", f"no answer within {message['limit_s']:g} s".encode()
                process.communicate()
            self._work.put(partial(self._helpers.discard, process.pid))
            said = errors.decode(errors="backslashreplace").strip()
            if message["do"] == "report":
                self._reply(message, said=said)
                return
            try:
                self._reply(message, facts=json.loads(out))
            except ValueError:
                last = said.splitlines()[-1] if said else f"exit code {process.returncode}"
                self._reply(message, error=last)

        threading.Thread(target=finish, daemon=True).start()

    def _start(self, message: Message) -> Message:
        self._ranks, self._waiting, self._next_ranks, self._trained_s = [], [], [], None
        start_id = message["variables"].get(START_ID)
        is_their_code = bool(self._spares) and code_hash() == self._spares_code
        for number, own in message["ranks"]:
            words, variables = message["words"], message["variables"] | own
            try:
                spare = self._taken_spare(number, words, variables) if is_their_code else None
                rank = spare or RankProcess(number, words, variables)
            except OSError as error:
                passes = error.errno in (errno.EAGAIN, errno.ENOMEM)
                return {"error": f"{words[0]}: {error.strerror}", "passes": passes}
            rank.imports_s = message["imports_s"] or math.inf
            if message["next"]:
                self._next_ranks.append((number, words, variables | message["next"]))
            self._ranks.append(rank)
            rank.read(self._allowance, partial(self._tell_output, number))
            self._waiting.append(
                threading.Thread(target=self._await, args=(rank, start_id), daemon=True)
            )
        for left in self._spares.values():  # of another start than this one
            left.discard()
            self._helpers.discard(left.process.pid)
        self._spares = {}
        return {}

    def _taken_spare(
        self, number: int, words: list[str], variables: dict[str, str]
    ) -> RankProcess | None:
        """The spare that is this rank, if there is one: it becomes it."""
        spare = self._spares.get(number)
        if spare is None or (spare.words, spare.variables) != (words, variables) or not spare.lives:
            return None
        del self._spares[number]
        self._helpers.discard(spare.process.pid)
        spare.need()
        return spare

    def _start_spares(self) -> None:
        """Once the ranks have trained for a while: their start needs the processors."""
        training = all(rank.state()["section"] not in _STARTING for rank in self._ranks)
        if self._trained_s is None and training:
            self._trained_s = time.monotonic()
        if self._trained_s is not None and time.monotonic() > self._trained_s + _SPARES_S:
            wanted, self._next_ranks = self._next_ranks, []
            with contextlib.suppress(psutil.Error, OSError):  # a rank ends, or nothing can start
                used = sum(psutil.Process(one.process.pid).memory_info().rss for one in self._ranks)
                if psutil.virtual_memory().available < _ROOM * used:
                    return
                self._spares_code = code_hash()
                for each in wanted:
                    spare = RankProcess(*each, is_spare=True)
                    self._helpers.add(spare.process.pid)
                    self._spares[spare.number] = spare

    def _tell_output(self, rank: int, stream: int, text: str) -> None:
        self._channel.send({"tell": "output", "rank": rank, "stream": stream, "text": text})

    def _await(self, rank: RankProcess, start_id: str) -> None:
        """In a thread: the end of a rank."""
        code = rank.process.wait()
        section = rank.state()["section"]
        message = {"tell": "ended", "rank": rank.number, "code": code, "section": section}
        self._channel.send(message | {"start_id": start_id})
        self._work.put(lambda: None)  # to look at once

    def _look(self) -> None:
        """At the ranks, at the clock, and at what is being ended."""
        now_s = time.monotonic()
        if self._ending is not None:
            self._go_on_ending(self._ending)
            self._looked_s = now_s
        elif now_s > self._looked_s + _LOOK_S:
            if now_s > self._looked_s + _FROZEN_S:
                self._frozen_s = self._heard_s = now_s
            self._looked_s = now_s
            if now_s > self._frozen_s + _AWAKE_S:
                self._look_for_stuck()
            if self._next_ranks:
                self._start_spares()
        if now_s > self._told_s + _ALIVE_S:
            self._told_s = now_s
            self._channel.send({"tell": "alive"})
        if now_s > self._heard_s + self._silence_s:
            self._allowance.give(float("inf"))
            self._leave()

    def _look_for_stuck(self) -> None:
        for rank in self._ranks:
            stuck = rank.lives and rank.state()["stuck"]
            if stuck and not rank.told_stuck:
                rank.ask_for_stacks()
                time.sleep(_STACKS_S)
                start_id = rank.variables.get(START_ID)
                self._channel.send({"tell": "stuck", "rank": rank.number, "start_id": start_id})
            rank.told_stuck = stuck

    def _leave(self) -> None:
        """The launcher is gone: end the ranks, and then this process."""
        if not self._leaves:
            self._leaves = True
            self._end({"patience_s": signals.grace_s(), "asks": True})

    def _end(self, message: Message) -> None:
        """Begin to; a second request may shorten the patience of the first."""
        self._next_ranks = []
        before = self._ending or {"ids": [], "kills_s": float("inf"), "killed": set()}
        self._ending = before | message | {
            "ids": before["ids"] + ([message["id"]] if "id" in message else []),
            "kills_s": min(before["kills_s"], time.monotonic() + message["patience_s"]),
        }  # fmt: skip
        for rank in self._ranks:
            if message["asks"] and rank.lives:
                rank.process.terminate()

    def _go_on_ending(self, ending: dict[str, Any]) -> None:
        left, now_s = self._left(ending.get("launch_id")), time.monotonic()
        if left and now_s < ending["kills_s"]:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
                ending["killed"].add(process.pid)
        if left and now_s < ending["kills_s"] + _GONE_S:
            return
        for rank in self._ranks:
            rank.join_readers(now_s + _LAST_WORDS_S)
        for waiting in self._waiting:  # what they tell is of this start
            waiting.join(_LAST_WORDS_S)
        self._ending = None
        answer = {"killed": len(ending["killed"]), "left": len(left), **_progress(ending)}
        for number in ending["ids"]:
            self._channel.send({"id": number, **answer})

    def _left(self, launch_id: str | None) -> list[psutil.Process]:
        """What lives of all that was started: ranks, what they started, and of earlier agents."""
        ranks, helpers = {rank.process.pid for rank in self._ranks}, {*self._helpers}
        alive = []
        for process in psutil.Process().children(recursive=True):  # parents come first
            with contextlib.suppress(psutil.Error, ChildProcessError):
                parent = process.ppid()
                if process.pid in helpers or parent in helpers:
                    helpers.add(process.pid)
                elif _is_alive(process):
                    alive.append(process)
                elif parent == os.getpid() and process.pid not in ranks:  # adopted
                    os.waitpid(process.pid, os.WNOHANG)
        earlier = (each for each in _of_earlier_agents(launch_id) if each.pid not in self._helpers)
        return alive or [each for each in earlier if _is_alive(each)]


def _of_earlier_agents(launch_id: str | None) -> list[psutil.Process]:
    """Processes of this host with a start of a launcher in their environment."""
    found = []
    for process in psutil.process_iter() if launch_id else ():
        with contextlib.suppress(psutil.Error, OSError):
            if not process.environ().get(START_ID, "").startswith(str(launch_id)):
                continue
            # A host may be a container or a network namespace beside others.
            if os.readlink("/proc/self/ns/net") == os.readlink(f"/proc/{process.pid}/ns/net"):
                found.append(process)
    return found


def _progress(request: dict[str, Any]) -> dict[str, Any]:
    """How far a start came, where it is one of a run."""
    if request.get("run_dir") is None:
        return {"saved_step": None, "reached": {}}
    run_dir = Path(request["run_dir"])
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, LookupError, TypeError, ValueError):
        found = reached(jsonl.read(run_dir / _METRICS), request["start_id"])
    return {"saved_step": newest_step(run_dir), "reached": found}


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


if __name__ == "__main__":
    # Nothing that is started here gets either end of the channel.
    with os.fdopen(os.dup(0), "rb") as incoming, os.fdopen(os.dup(1), "wb") as outgoing:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        Agent(incoming, outgoing).serve()
        os._exit(0)  # a thread that reads or waits must not hold it
