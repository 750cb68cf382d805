"""A rank that an agent has started: its process, its heartbeat, what it prints."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import math
import mmap
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, final

from hvd_nmt.common.rank_environment import HEARTBEAT, SPARE
from hvd_nmt.training import heartbeat

_PIPE_BYTES = 1 << 16
_UNPRINTED = 1 << 20
"""characters of output that may be on their way"""
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)
_agent = os.getpid()


@final
class Allowance:
    """How much output may be on its way: who reads nothing more stops the ranks, and no request."""

    def __init__(self) -> None:
        self._left: float = _UNPRINTED
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        """Wait until there is something left, and use it."""
        with self._changed:
            self._changed.wait_for(lambda: self._left > 0)
            self._left -= size

    def give(self, size: float) -> None:
        """So much was printed; inf: nobody prints any more, and ranks must not wait for that."""
        with self._changed:
            self._left += size
            self._changed.notify_all()


@final
class RankProcess:
    """A rank from its start on."""

    def __init__(
        self, number: int, words: list[str], variables: dict[str, str], *, is_spare: bool = False
    ) -> None:
        self.number, self.words, self.variables = number, words, variables
        self.told_stuck = False
        self.imports_s = math.inf
        """until it says what it does"""
        self._began_s = time.monotonic()
        file = os.memfd_create(heartbeat.MEMORY)
        environment = {**os.environ, **variables, HEARTBEAT: str(file)}
        environment |= {SPARE: "1"} if is_spare else {}
        os.truncate(file, heartbeat.PAGE.size)
        self._page = mmap.mmap(file, heartbeat.PAGE.size)
        try:
            self.process = subprocess.Popen(
                words, pass_fds=[file],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                stdin=subprocess.PIPE if is_spare else subprocess.DEVNULL,
                start_new_session=True, preexec_fn=end_with_parent,
            )  # fmt: skip
        finally:
            os.close(file)
        self._readers: list[threading.Thread] = []

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

    def read(self, allowance: Allowance, tell: Callable[[int, str], None]) -> None:
        """Tell in threads what it prints: stream, and text in which bad bytes are shown as such."""
        for stream, pipe in enumerate((self.process.stdout, self.process.stderr), 1):
            thread = threading.Thread(
                target=_read, args=(pipe, allowance, stream, tell), daemon=True
            )
            self._readers.append(thread)
            thread.start()

    def join_readers(self, until_s: float) -> None:
        """Wait until all that it printed is told, or for so long."""
        for thread in self._readers:
            thread.join(max(0.0, until_s - time.monotonic()))

    def state(self) -> dict[str, Any]:
        """What it does, since when, and whether that is too long."""
        state, now_s = heartbeat.read(self._page), time.monotonic()
        if not state.section:  # it imports, or is no rank of this package
            until_s = self._began_s + self.imports_s
            state = heartbeat.State(until_s, until_s, self._began_s, False, "")
        letter = _kernel_state(self.process.pid)
        stopped = letter == "T"
        # A rank may come out of a collective and then loop before it says that it waits no more.
        waits = state.waits and letter == "S"
        return {
            "section": state.section, "waits": waits, "seconds": now_s - state.began_s,
            "stopped": stopped,
            "stuck": now_s > (state.stopped_deadline_s if stopped else state.deadline_s),
        }  # fmt: skip

    def ask_for_stacks(self) -> None:
        """Have it print where its threads are."""
        if heartbeat.read(self._page).section:  # before that the signal would end it
            self.process.send_signal(heartbeat.STACKS)


def end_with_parent() -> None:
    """In a child: the kernel kills it when its parent ends, however that ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != _agent:  # it has ended before
        os._exit(1)


def _read(
    pipe: IO[bytes], allowance: Allowance, stream: int, tell: Callable[[int, str], None]
) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    is_over = False
    while not is_over:
        data = os.read(pipe.fileno(), _PIPE_BYTES)
        is_over = not data
        if text := decoder.decode(data, final=is_over):
            allowance.take(len(text))
            tell(stream, text)
    pipe.close()


def _kernel_state(pid: int) -> str:
    """Of the main thread, as ps says it: R runs, S sleeps, T is stopped; "" where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[0]  # the name before may hold anything
