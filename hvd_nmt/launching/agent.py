"""The agent of a host: the parent of the ranks that run there.

    python -m hvd_nmt.launching.agent     started by `diagnosis.link`, here or through ssh

Requests are JSON lines on standard input; those with an id are answered on standard output:

    facts     what `diagnosis.probe` says of this host
    clear     end what earlier agents of this launcher have left
    start     start ranks, each with variables of its own
    end       SIGTERM to the ranks if so asked, and after a patience SIGKILL to all that is left
    alive     the launcher is there, and says so at least every `limit_s`
    printed   a piece of output was printed, and another may follow

Unasked it tells what ranks print, how they end, and each second what they do. Without a launcher
(end of input, or long silence) it asks the ranks to save, kills them after their grace, and ends.
"""

import contextlib
import ctypes
import errno
import math
import os
import queue
import signal
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
from hvd_nmt.diagnosis import probe
from hvd_nmt.diagnosis.link import Channel, Message
from hvd_nmt.launching.rank_process import RankProcess
from hvd_nmt.telemetry import jsonl
from hvd_nmt.training import heartbeat

_LOOK_S, _LOOK_AT_END_S = 1.0, 0.1
_GONE_S = 10.0
"""for killed processes to be gone"""
_LAST_WORDS_S = 2.0
"""for what ranks printed before their end to be read"""
_LOOKS_AT_TRAINING = 5
"""until spares are started"""
_ROOM = 2.0
"""times the memory of the ranks, which must be free for spares"""
_UNPRINTED, _NOBODY_PRINTS = 32, 1 << 20
"""pieces of output that may be on their way: who reads nothing more stops the ranks, and no
request; how many more may come when there is nobody to print them"""
_PR_SET_CHILD_SUBREAPER = 36


@final
class Agent:
    """All that happens on this host; every method but `_hear` runs in the main thread."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._room = threading.Semaphore(_UNPRINTED)
        self._start_id = ""
        self._ranks: list[RankProcess] = []
        self._spares: dict[int, RankProcess] = {}
        """for the next start, by the number of the rank"""
        self._next_ranks: list[tuple[int, list[str], dict[str, str]]] = []
        """of which there are no spares yet"""
        self._looks_at_training = 0
        self._end_requests: list[Message] = []
        """not answered yet"""
        self._kills_s = math.inf
        """when what is left is killed"""
        self._leaves = False
        self._looked_s = self._heard_s = time.monotonic()
        self._silence_s = math.inf
        self._channel = Channel(incoming, outgoing, self._hear)

    def serve(self) -> None:
        """Until the launcher is gone and nothing is left of what was started."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._work.put(self._leave))
        while not self._leaves or self._end_requests:
            with contextlib.suppress(queue.Empty):
                self._work.get(timeout=_LOOK_AT_END_S if self._end_requests else _LOOK_S)()
            if self._end_requests:
                self._go_on_ending()
            if time.monotonic() > self._looked_s + _LOOK_S:
                self._looked_s = time.monotonic()
                self._look()
        self._channel.close()
        self._channel.join(_LAST_WORDS_S)

    def _hear(self, message: Message | None) -> None:
        if message is None:
            self._work.put(self._leave)
        elif message["do"] == "printed":
            self._room.release()
        else:
            self._work.put(partial(self._do, message))

    def _do(self, message: Message) -> None:
        self._heard_s = time.monotonic()
        match message["do"]:
            case "alive":
                self._silence_s = message["limit_s"]
            case "facts":  # some may take long
                threading.Thread(
                    target=lambda: self._reply(message, facts=probe.facts(message["request"])),
                    daemon=True,
                ).start()
            case "clear":
                _end_earlier_agents(message["launch_id"])
            case "start":
                self._reply(message, **self._start(message))
                for rank in self._ranks:
                    printed = partial(self._tell_output, rank.number)
                    rank.watch(self._room, printed, partial(self._tell_end, rank))
            case "end":
                self._end(message)

    def _reply(self, message: Message, **values: Any) -> None:
        self._channel.send({"id": message["id"], **values})

    def _start(self, message: Message) -> Message:
        self._start_id, self._ranks, self._next_ranks = message["start_id"], [], []
        self._looks_at_training = 0
        words = message["words"]
        for number, own in message["ranks"]:
            variables = {**message["variables"], **own, START_ID: self._start_id}
            try:
                program = number, words, variables
                rank = self._taken_spare(*program) or RankProcess(*program)
            except OSError as error:
                passes = error.errno in (errno.EAGAIN, errno.ENOMEM)
                return {"error": f"{words[0]}: {error.strerror}", "passes": passes}
            self._ranks.append(rank)
            rank.imports_s = message["imports_s"] or math.inf
            if message["next_start_id"]:
                variables = variables | {START_ID: message["next_start_id"]}
                self._next_ranks.append((number, words, variables))
        for left in self._spares.values():  # of another start than this one
            left.discard()
        self._spares = {}
        return {}

    def _taken_spare(
        self, number: int, words: list[str], variables: dict[str, str]
    ) -> RankProcess | None:
        """The spare that is this rank, if there is one: it becomes it."""
        spare = self._spares.get(number)
        if spare is None or spare.program != (words, variables, code_hash()) or not spare.lives:
            return None
        spare.need()
        return self._spares.pop(number)

    def _start_spares(self, states: dict[int, dict[str, Any]]) -> None:
        """Once all ranks have trained for a while: their start needs the processors."""
        sections = {state["section"] for state in states.values()}
        self._looks_at_training += bool(sections) and not sections & {"", heartbeat.START}
        if self._looks_at_training < _LOOKS_AT_TRAINING:
            return
        wanted, self._next_ranks = self._next_ranks, []
        with contextlib.suppress(psutil.Error, OSError):  # a rank ends, or nothing can start
            used = sum(psutil.Process(rank.process.pid).memory_info().rss for rank in self._ranks)
            if psutil.virtual_memory().available > _ROOM * used:
                for each in wanted:
                    self._spares[each[0]] = RankProcess(*each, is_spare=True)

    def _tell_output(self, rank: int, stream: int, text: str) -> None:
        self._channel.send({"tell": "output", "rank": rank, "stream": stream, "text": text})

    def _tell_end(self, rank: RankProcess) -> None:
        state = rank.state()
        self._channel.send({
            "tell": "ended", "start_id": rank.start_id, "rank": rank.number,
            "code": rank.process.returncode, "section": state["section"], "asked": state["asked"],
        })  # fmt: skip
        self._work.put(lambda: None)  # to look at once

    def _look(self) -> None:
        """At the ranks and the launcher, and say that this agent is there."""
        states = {rank.number: rank.state() for rank in self._ranks if rank.lives}
        self._channel.send({"tell": "states", "start_id": self._start_id, "states": states})
        for rank in self._ranks:
            rank.print_stacks(rank.number in states and states[rank.number]["stuck"])
        if time.monotonic() > self._heard_s + self._silence_s:
            self._leave()
        if self._next_ranks:
            self._start_spares(states)

    def _leave(self) -> None:
        """The launcher is gone: end the ranks, and then this process."""
        if not self._leaves:
            self._leaves = True
            self._room.release(_NOBODY_PRINTS)
            self._end({"patience_s": signals.grace_s(), "asks": True})

    def _end(self, message: Message) -> None:
        """Begin to; a second request may shorten the patience of the first."""
        self._next_ranks = []
        self._end_requests.append(message)
        self._kills_s = min(self._kills_s, time.monotonic() + message["patience_s"])
        for rank in self._ranks:
            if message["asks"] and rank.lives:
                rank.process.terminate()

    def _go_on_ending(self) -> None:
        left, now_s = self._left(), time.monotonic()
        if left and now_s < self._kills_s:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if left and now_s < self._kills_s + _GONE_S:
            return
        for rank in self._ranks:
            rank.join(now_s + _LAST_WORDS_S)  # what they tell is of this start
        for request in self._end_requests:
            if "id" in request:
                run_dir = request["run_dir"]
                found = {} if run_dir is None else _progress(Path(run_dir), self._start_id)
                self._reply(request, left=len(left), **found)
        self._ranks, self._end_requests, self._kills_s = [], [], math.inf

    def _left(self) -> list[psutil.Process]:
        """What lives of all that ranks have started: it stays below this process, or comes here."""
        spares = {spare.process.pid for spare in self._spares.values()}
        return [
            process for process in psutil.Process().children(recursive=True)
            if process.pid not in spares and _is_alive(process)
        ]  # fmt: skip


def _end_earlier_agents(launch_id: str) -> None:
    """Kill what earlier agents of this launcher have started, and what that has started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_spare = process.ppid() == os.getpid()
            if is_spare or not process.environ().get(START_ID, "").startswith(launch_id):
                continue
            # A host may be a container or a network namespace beside others.
            if os.readlink("/proc/self/ns/net") == os.readlink(f"/proc/{process.pid}/ns/net"):
                process.kill()
                found.append(process)
    psutil.wait_procs(found, _GONE_S)


def _progress(run_dir: Path, start_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with contextlib.suppress(LookupError, TypeError, ValueError):  # of a damaged record
        found = jsonl.reached(jsonl.read(run_dir / "metrics.jsonl", problems=[]), start_id)
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
