"""What is seen of the ranks' output: rank 0's as it is, of others what rank 0 does not say."""

import collections
import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import final

from hvd_nmt.common.progress import CLEAR, MOVES, moving
from hvd_nmt.common.units import count

_STDOUT, _STDERR = 1, 2
_DELAY_S = 1.0
"""until a line of another rank is shown: rank 0 may say the same"""
_REMEMBERED = 1000
"""lines of rank 0, and of other ranks, of which earlier ones are shown at once"""
_LONGEST_LINE = 1 << 16
_MOST_UNREAD = 1 << 20
"""characters that wait for whoever reads them"""
_STANDS_STILL_S = 10.0
"""for those to be read; then the oldest are left out, so that ranks go on"""
_OF_MEMORY = re.compile("bad_alloc|Cannot allocate memory|out of memory", re.IGNORECASE)
_SENTENCE = re.compile(r"hvd_nmt[\w.]*: .+")


@final
class Output:
    """Prints in threads: who reads slowly slows the ranks, who stands still misses lines."""

    def __init__(self) -> None:
        self.sentence = ""
        """the last that a rank has said of an error"""
        self.of_memory: set[int] = set()
        """ranks that said that memory was full"""
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._names: dict[int, str] = {}
        self._rests: dict[tuple[int, int], str] = {}
        """what came of a line that has not ended, by rank and stream"""
        self._said: collections.deque[str] = collections.deque(maxlen=_REMEMBERED)
        """by rank 0"""
        self._late: collections.deque[tuple[float, int, int, str]] = collections.deque()
        """when it came, rank, stream, line"""
        self._moving = False
        """whether the last line on the terminal is one that the next replaces"""
        self._writer = _Writer()
        threading.Thread(target=self._print_all, daemon=True).start()

    def begin(self, hosts: dict[int, str]) -> None:
        """A start: rank -> host; what was said in an earlier one is forgotten."""

        def forget() -> None:
            self._finish_lines()
            self._names, self.sentence, self.of_memory = hosts, "", set()
            self._said.clear()

        self._work.put(forget)

    def hear(self, rank: int, stream: int, text: str, printed: Callable[[], None]) -> None:
        """Something that a rank printed, any part of lines."""
        self._work.put(partial(self._sort, rank, stream, text))
        self._work.put(printed)

    def say(self, text: str) -> None:
        """A line of the launcher itself, on stderr."""
        self._work.put(partial(self._write, _STDERR, f"hvd_nmt.launch: {text}\n"))

    def flush(self, patience_s: float | None = None) -> bool:
        """Print all that was heard until now, also lines that have not ended; whether it is."""
        done = threading.Event()
        self._work.put(self._finish_lines)
        self._work.put(done.set)
        return done.wait(patience_s) and self._writer.wait_until_all_is_written(patience_s)

    def _print_all(self) -> None:
        while True:
            with contextlib.suppress(queue.Empty):
                self._work.get(timeout=_DELAY_S / 4)()
            self._show_late(time.monotonic() - _DELAY_S, _REMEMBERED)

    def _sort(self, rank: int, stream: int, text: str) -> None:
        """Whole lines of rank 0 at once, of other ranks later; the rest stays."""
        text = self._rests.pop((rank, stream), "") + text
        end = text.rfind("\n") + 1
        if rank == 0 and stream == _STDOUT:
            end = max(end, text.rfind(MOVES) + 1)
        if len(text) - end > _LONGEST_LINE:
            end = len(text)
        if rest := text[end:]:
            self._rests[rank, stream] = rest
        if not (text := text[:end]):
            return
        whole = text.removesuffix("\n").split("\n")
        lines = [line.rstrip(MOVES).rpartition(MOVES)[2] for line in whole]
        sentences = [line for line in lines if stream == _STDERR and _SENTENCE.match(line)]
        self.sentence = (sentences or [self.sentence])[-1]
        if stream == _STDERR and _OF_MEMORY.search(text):
            self.of_memory.add(rank)
        if rank == 0:
            self._said.extend(lines)
            self._write(stream, text)
        else:
            now_s = time.monotonic()
            self._late.extend((now_s, rank, stream, line) for line in lines)

    def _show_late(self, until_s: float, most: int) -> None:
        """Lines of other ranks that came before or are too many, unless rank 0 has said them."""
        shown: dict[int, list[str]] = {}
        while self._late and (self._late[0][0] <= until_s or len(self._late) > most):
            _, rank, stream, line = self._late.popleft()
            if line not in self._said:
                name = f"rank {rank} ({self._names.get(rank, '?')})"
                shown.setdefault(stream, []).append(f"{name}: {line}\n")
        for stream, lines in shown.items():
            self._write(stream, "".join(lines))

    def _finish_lines(self) -> None:
        for rank, stream in list(self._rests):
            self._sort(rank, stream, "\n")
        if self._moving:
            self._moving = False
            self._write(_STDOUT, "\n")  # the last one stays
        self._show_late(time.monotonic(), 0)

    def _write(self, stream: int, text: str) -> None:
        """To a file or a terminal, on which it replaces a line that moves."""
        if os.isatty(stream) and (MOVES in text or self._moving):
            lines = text.splitlines(keepends=True)
            self._moving = len(lines[-1]) > 1 and lines[-1].endswith(MOVES)
            last = moving(lines[-1].rstrip(MOVES)) if self._moving else ""
            text = CLEAR + "".join(line for line in lines if not line.endswith(MOVES)) + last
        self._writer.put(stream, text)


@final
class _Writer:
    """Writes to stdout and stderr, in a thread; what has no room to wait is left out."""

    def __init__(self) -> None:
        self._waiting: collections.deque[tuple[int, str]] = collections.deque()
        """stream, text; the first is being written"""
        self._size, self._left_out = 0, 0
        """characters that wait, lines that were left out after the first"""
        self._changed = threading.Condition()
        self._failed: dict[int, str] = {}
        """stream -> why its last write failed, such as a full disk"""
        threading.Thread(target=self._write_all, daemon=True).start()

    def put(self, stream: int, text: str) -> None:
        """Something to be written once all before it is."""
        with self._changed:
            patience_s = 0.0 if self._left_out else _STANDS_STILL_S
            self._changed.wait_for(lambda: self._size < _MOST_UNREAD, patience_s)
            while self._size >= _MOST_UNREAD and len(self._waiting) > 1:
                _, oldest = self._waiting[1]
                del self._waiting[1]
                self._size -= len(oldest)
                self._left_out += oldest.count("\n")
            self._waiting.append((stream, text))
            self._size += len(text)
            self._changed.notify_all()

    def wait_until_all_is_written(self, patience_s: float | None) -> bool:
        """Whether that happens in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, patience_s)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                stream, text = self._waiting[0]
            self._write(stream, text)
            with self._changed:
                self._waiting.popleft()
                self._size -= len(text)
                if self._left_out:
                    note = f"... {count(self._left_out, 'line')} left out, which nobody read\n"
                    self._waiting.appendleft((stream, note))
                    self._size, self._left_out = self._size + len(note), 0
                self._changed.notify_all()

    def _write(self, stream: int, text: str) -> None:
        """What fails is lost, and the next is tried again: there may be room again."""
        if stream in self._failed:
            text = f"\n... lines are missing here: {self._failed[stream]}\n{text}"
        data = text.encode(errors="backslashreplace")
        try:
            while data:
                try:
                    data = data[os.write(stream, data) :]
                except BlockingIOError:
                    time.sleep(_DELAY_S / 100)
            self._failed.pop(stream, None)
        except OSError as error:
            if stream == _STDOUT and stream not in self._failed:
                why = f"continues without stdout while it cannot be written ({error.strerror})."
                with contextlib.suppress(OSError):
                    os.write(_STDERR, f"hvd_nmt.launch: {why}\n".encode())
            self._failed[stream] = str(error.strerror)
