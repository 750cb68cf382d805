"""The agent of a host: the parent of the ranks that run there.

    python -m hvd_nmt.launching.agent     started by `diagnosis.link`, here or through ssh

Requests are JSON lines on standard input; those with an id are answered on standard output:

    clock     the time of this host
    facts     what `diagnosis.probe` says of it
    start     start ranks, each with variables of its own
    states    what each rank does
    end       SIGTERM to the ranks if so asked, and after a patience SIGKILL to all that is left
    report    write the report of a run
    alive     the launcher is there; it says so often where it says it once
    printed   so many characters of output were printed, and as many may follow

Unasked it tells what ranks print, how they end, which one is stuck, and that it is alive itself.
Where standard input ends, or the launcher is silent for too long, the ranks are asked to save and
to end, are killed after their grace, and the agent ends.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import json
import mmap
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
from hvd_nmt.common.rank_environment import HEARTBEAT, START_ID
from hvd_nmt.diagnosis.channel import Channel, Message
from hvd_nmt.launching import progress
from hvd_nmt.training import heartbeat

_LOOK_S, _LOOK_AT_END_S = 1.0, 0.1
_ALIVE_S = 5.0
_FROZEN_S = 10.0
"""between two looks: this host was suspended meanwhile"""
_GONE_S = 10.0
"""for killed processes to be gone"""
_LAST_WORDS_S = 2.0
"""for what ranks printed before their end to be read"""
_STACKS_S = 0.5
_PIPE_BYTES = 1 << 16
_UNPRINTED = 1 << 20
"""characters of output that may be on their way"""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PROBE = "hvd_nmt.diagnosis.probe"
_REPORT = """
import pathlib, sys
from hvd_nmt import train
train.write_report(pathlib.Path(sys.argv[1]))
"""


_libc = ctypes.CDLL(None, use_errno=True)


@final
class _Allowance:
    """How much output may be on its way: who reads nothing more stops the ranks, and no request."""

    def __init__(self) -> None:
        self._left = _UNPRINTED
        self._changed = threading.Condition()
        self._unlimited = False

    def take(self, size: int) -> None:
        """Wait until there is something left, and use it."""
        with self._changed:
            self._changed.wait_for(lambda: self._left > 0 or self._unlimited)
            self._left -= size

    def give(self, size: int) -> None:
        with self._changed:
            self._left += size
            self._changed.notify_all()

    def lift(self) -> None:
        """Nobody is there to print: ranks must not wait for that."""
        with self._changed:
            self._unlimited = True
            self._changed.notify_all()


@final
class _Rank:
    """A rank that was started here.

    Args:
        number: of the rank, among all.
        words: its command.
        variables: of its own.
    """

    def __init__(self, number: int, words: list[str], variables: dict[str, str]) -> None:
        self.number = number
        self.told_stuck = False
        self.code: int | None = None
        """as of `subprocess`, once it has ended"""
        self._began_s = time.monotonic()
        self._excused_s = 0.0
        file = os.memfd_create("heartbeat")
        os.truncate(file, heartbeat.PAGE.size)
        self._page = mmap.mmap(file, heartbeat.PAGE.size)
        try:
            self.process = subprocess.Popen(
                words, env={**os.environ, **variables, HEARTBEAT: str(file)}, pass_fds=[file],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, preexec_fn=_end_with_agent,
            )  # fmt: skip
        finally:
            os.close(file)

    def excuse(self, seconds: float) -> None:
        """This host stood still for so long."""
        self._excused_s += seconds

    def state(self) -> dict[str, Any]:
        """What it does, since when, and whether that is too long."""
        state, now_s = heartbeat.read(self._page), time.monotonic() - self._excused_s
        stopped = _is_stopped(self.process.pid)
        if not state.section:  # it still imports
            began_s, limit_s = (
                self._began_s,
                heartbeat.SHORTEST_S if stopped else heartbeat.LONGEST_S,
            )
            return {
                "section": "", "waits": False, "seconds": now_s - began_s, "stopped": stopped,
                "stuck": now_s > began_s + limit_s,
            }  # fmt: skip
        deadline_s = state.stopped_deadline_s if stopped else state.deadline_s
        return {
            "section": state.section, "waits": state.waits, "seconds": now_s - state.began_s,
            "stopped": stopped, "stuck": now_s > deadline_s,
        }  # fmt: skip

    def ask_for_stacks(self) -> None:
        """Have it print where its threads are."""
        if heartbeat.read(self._page).section:  # before that the signal would end it
            self.process.send_signal(heartbeat.STACKS)


@final
class _Ending:
    """A request to end everything, while it is being done."""

    def __init__(self, request: Message) -> None:
        self.ids = [request["id"]] if "id" in request else []
        self.kills_s = time.monotonic() + request["patience_s"]
        self.killed: set[int] = set()
        self.request = request


@final
class Agent:
    """All that happens on this host; every method but those of threads runs in the main thread.

    Args:
        incoming: requests.
        outgoing: answers.
    """

    def __init__(self, incoming: IO[bytes], outgoing: IO[bytes]) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._allowance = _Allowance()
        self._ranks: dict[int, _Rank] = {}
        self._readers: list[threading.Thread] = []
        self._helpers: dict[int, subprocess.Popen[bytes]] = {}
        """children that are no ranks"""
        self._ending: _Ending | None = None
        self._is_over = self._leaves = False
        self._looked_s = self._told_s = self._heard_s = time.monotonic()
        self._silence_s: float | None = None
        self._channel = Channel(incoming, outgoing, self._hear)

    def serve(self) -> None:
        """Until the launcher is gone and nothing is left of what was started."""
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._work.put(self._leave))
        while not self._is_over:
            try:
                self._work.get(timeout=_LOOK_AT_END_S if self._ending else _LOOK_S)()
            except queue.Empty:
                self._look()
            else:
                if self._ending:
                    self._go_on_ending()
        for reader in self._readers:
            reader.join(_LAST_WORDS_S)

    def _hear(self, message: Message | None) -> None:
        """In the thread that reads."""
        if message is not None and message["do"] == "printed":
            self._allowance.give(message["size"])
        elif message is None:
            self._allowance.lift()
            self._work.put(self._leave)
        else:
            self._work.put(partial(self._do, message))

    def _do(self, message: Message) -> None:
        self._heard_s = time.monotonic()
        match message["do"]:
            case "clock":
                self._reply(message, time_s=time.time())
            case "facts":
                self._run(message, [sys.executable, "-m", _PROBE], json.dumps(message["request"]))
            case "start":
                self._reply(message, **self._start(message))
            case "states":
                running = {n: rank.state() for n, rank in self._ranks.items() if rank.code is None}
                self._reply(message, states=running)
            case "end":
                self._end(message)
            case "report":
                self._run(message, [sys.executable, "-c", _REPORT, message["run_dir"]], "")
            case "alive":
                self._silence_s = message["limit_s"]

    def _reply(self, message: Message, **values: Any) -> None:
        self._channel.send({"id": message["id"], **values})

    def _run(self, message: Message, words: list[str], text: str) -> None:
        """Answer with what a command prints, JSON if it is asked for facts."""
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            preexec_fn=_end_with_agent,
        )  # fmt: skip
        self._helpers[process.pid] = process

        def finish() -> None:
            try:
                out, said = process.communicate(text.encode(), message["limit_s"])
            except subprocess.TimeoutExpired:
                process.kill()
                out, said = process.communicate()
                said = said or f"no answer within {message['limit_s']:g} s".encode()
            self._work.put(lambda: self._forget(process.pid))
            words = said.decode(errors="backslashreplace").strip()
            if message["do"] == "report":
                self._reply(message, said=words)
                return
            try:
                self._reply(message, facts=json.loads(out))
            except ValueError:
                last = words.splitlines()[-1] if words else f"exit code {process.returncode}"
                self._reply(message, error=last)

        threading.Thread(target=finish, daemon=True).start()

    def _forget(self, pid: int) -> None:
        del self._helpers[pid]

    def _start(self, message: Message) -> Message:
        self._ranks, self._readers = {}, []
        for number, variables in message["ranks"]:
            try:
                rank = _Rank(number, message["words"], message["variables"] | variables)
            except OSError as error:
                return {"error": f"{message['words'][0]}: {error.strerror}"}
            self._ranks[number] = rank
            pipes = enumerate((rank.process.stdout, rank.process.stderr), 1)
            readers = [
                threading.Thread(target=self._pass_on, args=(number, stream, pipe), daemon=True)
                for stream, pipe in pipes
            ]
            self._readers += readers
            for thread in (
                *readers,
                threading.Thread(target=self._await, args=(rank,), daemon=True),
            ):
                thread.start()
        return {}

    def _pass_on(self, number: int, stream: int, pipe: IO[bytes]) -> None:
        """In a thread: what a rank prints; a byte that is no UTF-8 is shown as such."""
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        is_over = False
        while not is_over:
            data = os.read(pipe.fileno(), _PIPE_BYTES)
            is_over = not data
            if text := decoder.decode(data, final=is_over):
                self._allowance.take(len(text))
                self._channel.send(
                    {"tell": "output", "rank": number, "stream": stream, "text": text}
                )
        pipe.close()

    def _await(self, rank: _Rank) -> None:
        """In a thread: the end of a rank."""
        rank.process.wait()
        self._work.put(partial(self._note_end, rank))

    def _note_end(self, rank: _Rank) -> None:
        section = rank.state()["section"]
        rank.code = rank.process.returncode
        self._channel.send(
            {"tell": "ended", "rank": rank.number, "code": rank.code, "section": section}
        )

    def _look(self) -> None:
        """About every second: at the ranks, at the clock, and at what is being ended."""
        now_s = time.monotonic()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        running = [rank for rank in self._ranks.values() if rank.code is None]
        for rank in running:
            if passed_s > _FROZEN_S:
                rank.excuse(passed_s)
            state = rank.state()
            if state["stuck"] and not rank.told_stuck and not self._ending:
                rank.told_stuck = True
                rank.ask_for_stacks()
                time.sleep(_STACKS_S)
                self._channel.send({"tell": "stuck", "rank": rank.number})
        if now_s > self._told_s + _ALIVE_S:
            self._told_s = now_s
            self._channel.send({"tell": "alive"})
        if self._silence_s is not None and now_s > self._heard_s + self._silence_s:
            self._silence_s = None
            self._allowance.lift()
            self._leave()
        if self._ending:
            self._go_on_ending()

    def _leave(self) -> None:
        """The launcher is gone: end the ranks, and then this process."""
        if not self._leaves:
            self._leaves = True
            self._end({"patience_s": signals.grace_s(), "asks": True})

    def _end(self, message: Message) -> None:
        """Begin to; a second request may shorten the patience of the first."""
        before, self._ending = self._ending, _Ending(message)
        if before is not None:
            self._ending.ids += before.ids
            self._ending.killed = before.killed
            self._ending.kills_s = min(before.kills_s, self._ending.kills_s)
            self._ending.request = before.request | message
        for rank in self._ranks.values():
            if message["asks"] and rank.code is None:
                rank.process.terminate()
        self._go_on_ending()

    def _go_on_ending(self) -> None:
        ending, now_s = self._ending, time.monotonic()
        assert ending is not None
        left = self._left(ending.request.get("launch_id"))
        if left and now_s < ending.kills_s:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
                ending.killed.add(process.pid)
        running = any(rank.code is None for rank in self._ranks.values())
        if (left or running) and now_s < ending.kills_s + _GONE_S:
            return
        words_s = now_s + _LAST_WORDS_S
        for reader in self._readers:
            reader.join(max(0.0, words_s - time.monotonic()))
        self._ending, self._is_over = None, self._leaves
        answer = {"killed": len(ending.killed), "left": len(left)}
        answer |= _progress(ending.request)
        for number in ending.ids:
            self._channel.send({"id": number, **answer})

    def _left(self, launch_id: str | None) -> list[psutil.Process]:
        """What lives of all that was started: ranks, what they started, and of earlier agents."""
        children = psutil.Process().children()
        for child in children:
            of_ranks = any(child.pid == rank.process.pid for rank in self._ranks.values())
            if not of_ranks and child.pid not in self._helpers and not _is_alive(child):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, os.WNOHANG)  # adopted
        found = {}
        for child in children:
            if child.pid not in self._helpers:
                with contextlib.suppress(psutil.Error):
                    for process in (child, *child.children(recursive=True)):
                        found[process.pid] = process
        found |= {process.pid: process for process in _of_earlier_agents(launch_id)}
        return [process for process in found.values() if _is_alive(process)]


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


def _progress(request: Message) -> dict[str, Any]:
    """How far a start came, where it is one of a run."""
    if request.get("run_dir") is None:
        return {"saved_step": None, "reached": {}}
    run_dir = Path(request["run_dir"])
    return {
        "saved_step": newest_step(run_dir),
        "reached": progress.reached(run_dir, request["start_id"]),
    }


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return text.rpartition(")")[2].split()[0] == "T"  # the name before may hold anything
    return False


def _end_with_agent() -> None:
    """In the child: the kernel kills it when the agent ends, however that ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    # Nothing that is started here gets either end of the channel.
    with os.fdopen(os.dup(0), "rb") as incoming, os.fdopen(os.dup(1), "wb") as outgoing:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        Agent(incoming, outgoing).serve()
        sys.stdout.flush()
        os._exit(0)
