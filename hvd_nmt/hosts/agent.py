"""The agent of a host: the parent of the ranks that run there.

    python -m hvd_nmt.hosts.agent     started by `hosts.connection`, here or through ssh

Requests are JSON lines on standard input; those with an id are answered on standard output:

    facts     what `hosts.facts` gathers on this host
    clear     end what earlier agents of this launcher have left
    start     start ranks, each with its variables
    end       SIGTERM to the ranks if so asked, and after a patience SIGKILL to all that is left
    alive     the launcher is there, and sends this at least every `limit_s`
    printed   a piece of output was printed, and another may follow

Unasked it sends what ranks print, how they end, and each second what they do. Without a launcher
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
from hvd_nmt.common import heartbeat, signals
from hvd_nmt.common.rank_environment import START_ID
from hvd_nmt.common.version import code_hash
from hvd_nmt.hosts import facts
from hvd_nmt.hosts.channel import Channel, Message
from hvd_nmt.hosts.rank_process import RankProcess

_REPORT_S, _WAIT_FOR_END_S = 1.0, 0.1
"""seconds between two reports of what ranks do, and between two looks while they end"""
_GONE_S = 10.0
"""seconds for killed processes to be gone"""
_LAST_WORDS_S = 2.0
"""seconds for what ranks printed before their end to be read"""
_REPORTS_OF_TRAINING = 5
"""reports in which all ranks train, before spares are started"""
_MEMORY_OF_SPARES = 2.0
"""free memory that spares need, as a multiple of the memory of the ranks"""
_UNPRINTED = 32
"""pieces of output on their way: a reader who stops reading stops the ranks, and no request"""
_PR_SET_CHILD_SUBREAPER = 36


@final
class Agent:
    """All that happens on this host; every method but `_receive` runs in the main thread."""

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._room = threading.Semaphore(_UNPRINTED)
        self._start_id = ""
        self._ranks: list[RankProcess] = []
        self._spares: dict[int, RankProcess] = {}
        """rank -> its process of the next start"""
        self._next_start_id = ""
        """id of the start that spares are missing for; "": none are"""
        self._reports_of_training = 0
        self._end_requests: list[Message] = []
        """requests to end that are not answered yet"""
        self._kills_s = math.inf
        """time when what is left is killed"""
        self._leaves = False
        self._reported_s = self._received_s = time.monotonic()
        self._silence_s = math.inf
        self._channel = Channel(incoming, outgoing, self._receive)

    def serve(self) -> None:
        """Work until the launcher is gone and nothing is left of what was started."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._work.put(self._leave))
        while not self._leaves or self._end_requests:
            with contextlib.suppress(queue.Empty):
                self._work.get(timeout=_WAIT_FOR_END_S if self._end_requests else _REPORT_S)()
            if self._end_requests:
                self._continue_to_end()
            if time.monotonic() > self._reported_s + _REPORT_S:
                self._reported_s = time.monotonic()
                self._report()
        self._channel.close()
        self._channel.join(_LAST_WORDS_S)

    def _receive(self, message: Message | None) -> None:
        if message is None:
            self._work.put(self._leave)
        elif message["do"] == "printed":
            self._room.release()
        else:
            self._work.put(partial(self._do, message))

    def _do(self, message: Message) -> None:
        self._received_s = time.monotonic()
        match message["do"]:
            case "alive":
                self._silence_s = message["limit_s"]
            case "facts":  # some may take long
                threading.Thread(
                    target=lambda: self._reply(message, facts=facts.gather(message["request"])),
                    daemon=True,
                ).start()
            case "clear":
                _kill_earlier_ranks(message["launch_id"])
            case "start":
                self._reply(message, **self._start(message))
                for rank in self._ranks:
                    send_output = partial(self._send_output, rank.number)
                    rank.watch(self._room, send_output, partial(self._send_end, rank))
            case "end":
                self._end(message)

    def _reply(self, message: Message, **values: Any) -> None:
        self._channel.send({"id": message["id"], **values})

    def _start(self, message: Message) -> Message:
        self._start_id, self._next_start_id = message["start_id"], message["next_start_id"]
        self._ranks, self._reports_of_training = [], 0
        words = message["words"]
        for number, rank_variables in message["ranks"]:
            variables = {**message["variables"], **rank_variables, START_ID: self._start_id}
            try:
                spare = self._spares.get(number)
                if spare and spare.program == (words, variables, code_hash()) and spare.lives:
                    spare.use()
                    self._ranks.append(self._spares.pop(number))
                else:
                    self._ranks.append(RankProcess(number, words, variables))
            except OSError as error:
                passes = error.errno in (errno.EAGAIN, errno.ENOMEM)
                return {"error": f"{words[0]}: {error.strerror}", "passes": passes}
            self._ranks[-1].imports_s = message["imports_s"] or math.inf
        for spare in self._spares.values():  # of another start than this one
            spare.discard()
        self._spares = {}
        return {}

    def _start_spares(self, states: dict[int, dict[str, Any]]) -> None:
        """Start them once all ranks have trained for a while: a start needs the processors."""
        sections = {state["section"] for state in states.values()}
        self._reports_of_training += bool(sections) and not sections & {"", heartbeat.START}
        if self._reports_of_training < _REPORTS_OF_TRAINING:
            return
        start_id, self._next_start_id = self._next_start_id, ""
        with contextlib.suppress(psutil.Error, OSError):  # a rank ends, or nothing can start
            used = sum(psutil.Process(rank.process.pid).memory_info().rss for rank in self._ranks)
            if psutil.virtual_memory().available > _MEMORY_OF_SPARES * used:
                for rank in self._ranks:
                    words, variables, _ = rank.program
                    program = rank.number, words, variables | {START_ID: start_id}
                    self._spares[rank.number] = RankProcess(*program, is_spare=True)

    def _send_output(self, rank: int, stream: int, text: str) -> None:
        self._channel.send({"tell": "output", "rank": rank, "stream": stream, "text": text})
        if self._leaves:  # no one prints it
            self._room.release()

    def _send_end(self, rank: RankProcess) -> None:
        state = rank.state()
        self._channel.send({
            "tell": "ended", "start_id": rank.start_id, "rank": rank.number,
            "code": rank.process.returncode, "section": state["section"], "asked": state["asked"],
        })  # fmt: skip
        self._work.put(lambda: None)  # the main thread checks at once

    def _report(self) -> None:
        """Send what the ranks do, which also shows that this agent is there."""
        states = {rank.number: rank.state() for rank in self._ranks if rank.lives}
        self._channel.send({"tell": "states", "start_id": self._start_id, "states": states})
        for rank in self._ranks:
            rank.print_stacks(rank.number in states and states[rank.number]["stuck"])
        if time.monotonic() > self._received_s + self._silence_s:
            self._leave()
        if self._next_start_id:
            self._start_spares(states)

    def _leave(self) -> None:
        """End the ranks, and then this process: the launcher is gone."""
        if not self._leaves:
            self._leaves = True
            self._room.release(_UNPRINTED)
            self._end({"patience_s": signals.grace_s(), "asks": True})

    def _end(self, message: Message) -> None:
        """Begin to end the ranks; a second request may shorten the patience of the first."""
        self._next_start_id = ""
        self._end_requests.append(message)
        self._kills_s = min(self._kills_s, time.monotonic() + message["patience_s"])
        for rank in self._ranks:
            if message["asks"] and rank.lives:
                rank.process.terminate()

    def _continue_to_end(self) -> None:
        left, now_s = self._left(), time.monotonic()
        if left and now_s < self._kills_s:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if left and now_s < self._kills_s + _GONE_S:
            return
        for rank in self._ranks:
            rank.join(now_s + _LAST_WORDS_S)  # what they send is of this start
        for request in self._end_requests:
            if "id" in request:
                run_dir = request["run_dir"]
                progress = _progress(Path(run_dir), self._start_id) if run_dir else {}
                self._reply(request, left=len(left), **progress)
        self._ranks, self._end_requests, self._kills_s = [], [], math.inf

    def _left(self) -> list[psutil.Process]:
        """Processes that ranks started and that live: they stay below this one, or come here."""
        spares = {spare.process.pid for spare in self._spares.values()}
        return [
            process for process in psutil.Process().children(recursive=True)
            if process.pid not in spares and _is_alive(process)
        ]  # fmt: skip


def _kill_earlier_ranks(launch_id: str) -> None:
    """Kill what earlier agents of this launcher have started, and what that has started."""
    killed = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            is_spare = process.ppid() == os.getpid()
            if is_spare or not process.environ().get(START_ID, "").startswith(launch_id):
                continue
            # A host may be a container or a network namespace next to others.
            if os.readlink("/proc/self/ns/net") == os.readlink(f"/proc/{process.pid}/ns/net"):
                process.kill()
                killed.append(process)
    psutil.wait_procs(killed, _GONE_S)


def _progress(run_dir: Path, start_id: str) -> dict[str, Any]:
    from hvd_nmt.checkpoints import run_files  # brings NumPy, half of an agent's start

    reached: dict[str, Any] = {}
    with contextlib.suppress(LookupError, TypeError, ValueError):  # a damaged record
        reached = run_files.reached(run_files.RunDirectory(run_dir).read_metrics([]), start_id)
    return {"saved_step": newest_step(run_dir), "reached": reached}


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
