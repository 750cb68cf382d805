"""A rank that an agent has started: its process, its heartbeat, what it prints."""

import codecs
import contextlib
import math
import mmap
import os
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import IO, Any, final

import psutil

from hvd_nmt.common import heartbeat, signals
from hvd_nmt.common.rank_environment import HEARTBEAT, SPARE, START_ID
from hvd_nmt.common.version import code_hash

_PIPE_BYTES = 1 << 16


@final
class RankProcess:
    """A rank from its start on, or a spare, which waits until it becomes one."""

    def __init__(
        self, number: int, words: list[str], variables: dict[str, str], *, is_spare: bool = False
    ) -> None:
        self.number = number
        self.program = words, variables, code_hash()
        """command, variables and code: a spare becomes only a rank with the same"""
        self.imports_s = math.inf
        """seconds until it has to report a section"""
        self.start_id = variables[START_ID]
        self._was_stuck = False
        self._began_s = time.monotonic()
        file = os.memfd_create(heartbeat.MEMORY)
        os.truncate(file, heartbeat.PAGE.size)
        self._page = mmap.mmap(file, heartbeat.PAGE.size)
        environment = {**os.environ, **variables, HEARTBEAT: str(file)}
        try:
            self.process = subprocess.Popen(
                words, pass_fds=[file], env=environment | ({SPARE: "1"} if is_spare else {}),
                stdin=subprocess.PIPE if is_spare else subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, preexec_fn=partial(signals.end_with_parent, os.getpid()),
            )  # fmt: skip
        finally:
            os.close(file)
        self._threads: list[threading.Thread] = []

    def use(self) -> None:
        """Let a spare become a rank."""
        self._began_s = time.monotonic()
        with contextlib.suppress(OSError):  # it has ended
            assert self.process.stdin is not None
            self.process.stdin.write(b"needed\n")
            self.process.stdin.close()

    def discard(self) -> None:
        """End a spare."""
        self.process.kill()
        with self.process, self._page:  # closes all that is open
            pass

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def watch(
        self,
        room: threading.Semaphore,
        send_output: Callable[[int, str], None],
        send_end: Callable[[], None],
    ) -> None:
        """Send in threads what it prints (stream, text) and its end; it prints if there is room."""

        def await_end() -> None:
            self.process.wait()
            send_end()

        pipes = enumerate((self.process.stdout, self.process.stderr), 1)
        read = [partial(_read, pipe, room, partial(send_output, n)) for n, pipe in pipes if pipe]
        tasks: list[Callable[[], None]] = [*read, await_end]
        self._threads = [threading.Thread(target=task, daemon=True) for task in tasks]
        for thread in self._threads:
            thread.start()

    def join(self, until_s: float) -> None:
        """Wait until its output and its end are sent, but no longer."""
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def state(self) -> dict[str, Any]:
        """What it does, since when, and whether that is too long."""
        state, now_s = heartbeat.read(self._page), time.monotonic()
        if not state.section:  # it imports, or is no rank of this package
            until_s = self._began_s + self.imports_s
            state = heartbeat.RankState(until_s, until_s, self._began_s, False, "", 0)
        status = ""  # of the main thread
        with contextlib.suppress(psutil.Error):  # it is gone
            status = psutil.Process(self.process.pid).status()
        is_stopped = status == psutil.STATUS_STOPPED
        deadline_s = state.stopped_deadline_s if is_stopped else state.deadline_s
        return {
            "section": state.section, "seconds": now_s - state.began_s,
            # A rank may have come out of a collective, and loop before it writes that.
            "waits": state.waits and status == psutil.STATUS_SLEEPING,
            "stopped": is_stopped, "stuck": now_s > deadline_s, "asked": state.asked,
        }  # fmt: skip

    def print_stacks(self, is_stuck: bool) -> None:
        """Have it print where its threads are, once each time that it gets stuck."""
        # Before it has a section the signal would end it.
        if is_stuck and not self._was_stuck and heartbeat.read(self._page).section:
            self.process.send_signal(heartbeat.STACKS)
        self._was_stuck = is_stuck


def _read(pipe: IO[bytes], room: threading.Semaphore, send: Callable[[str], None]) -> None:
    """Send text as it comes; bytes that are no UTF-8 are shown as such."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    is_over = False
    while not is_over:
        data = os.read(pipe.fileno(), _PIPE_BYTES)
        is_over = not data
        if text := decoder.decode(data, final=is_over):
            room.acquire()
            send(text)
    pipe.close()
