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

from hvd_nmt.common import signals
from hvd_nmt.common.rank_environment import HEARTBEAT, SPARE, START_ID
from hvd_nmt.common.version import code_hash
from hvd_nmt.training import heartbeat

_PIPE_BYTES = 1 << 16


@final
class RankProcess:
    """A rank from its start on."""

    def __init__(
        self, number: int, words: list[str], variables: dict[str, str], *, is_spare: bool = False
    ) -> None:
        self.number = number
        self.program = words, variables, code_hash()
        """what it runs: a spare becomes only a rank of the same"""
        self.imports_s = math.inf
        """until it says what it does"""
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

    def need(self) -> None:
        """It is a spare, and becomes a rank now."""
        self._began_s = time.monotonic()
        with contextlib.suppress(OSError):  # it has ended
            assert self.process.stdin is not None
            self.process.stdin.write(b"needed\n")
            self.process.stdin.close()

    def discard(self) -> None:
        """It is a spare, and nobody needs it."""
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
        printed: Callable[[int, str], None],
        ended: Callable[[], None],
    ) -> None:
        """Tell in threads what it prints (stream, text) and its end; without `room` it waits."""

        def await_end() -> None:
            self.process.wait()
            ended()

        pipes = enumerate((self.process.stdout, self.process.stderr), 1)
        read = [partial(_read, pipe, room, partial(printed, n)) for n, pipe in pipes if pipe]
        work: list[Callable[[], None]] = [*read, await_end]
        self._threads = [threading.Thread(target=each, daemon=True) for each in work]
        for thread in self._threads:
            thread.start()

    def join(self, until_s: float) -> None:
        """Wait until all that it printed is told, and its end, but not for longer."""
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
            # A rank may have come out of a collective, and loop before it says so.
            "waits": state.waits and status == psutil.STATUS_SLEEPING,
            "stopped": is_stopped, "stuck": now_s > deadline_s, "asked": state.asked,
        }  # fmt: skip

    def print_stacks(self, is_stuck: bool) -> None:
        """Have it print once where its threads are, each time when it gets stuck."""
        # Before it has a section the signal would end it.
        if is_stuck and not self._was_stuck and heartbeat.read(self._page).section:
            self.process.send_signal(heartbeat.STACKS)
        self._was_stuck = is_stuck


def _read(pipe: IO[bytes], room: threading.Semaphore, printed: Callable[[str], None]) -> None:
    """Bytes that are no UTF-8 are shown as such."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    is_over = False
    while not is_over:
        data = os.read(pipe.fileno(), _PIPE_BYTES)
        is_over = not data
        if text := decoder.decode(data, final=is_over):
            room.acquire()
            printed(text)
    pipe.close()
