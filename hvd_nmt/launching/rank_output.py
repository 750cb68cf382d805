"""What is shown of the ranks' output: all of rank 0, and of others what rank 0 does not print."""

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
"""seconds until a line of another rank is shown: rank 0 may print the same"""
_REMEMBERED = 1000
"""newest lines of rank 0 that are compared, and of other ranks that may wait"""
_LONGEST_LINE = 1 << 16
_MOST_UNREAD, _STANDS_STILL_S = 1000, 10.0
"""pieces and seconds that wait for a reader; then the oldest are dropped, and ranks continue"""
_OF_MEMORY = re.compile("bad_alloc|annot allocate memory|ut of memory|via pthread_create.. failed")
_SENTENCE = re.compile(r"hvd_nmt[\w.]*: .+")


@final
class RankOutput:
    """Prints in threads: who reads slowly slows the ranks, who stands still misses lines."""

    def __init__(self) -> None:
        self.sentence = ""
        """last sentence of a rank on an error"""
        self.of_memory: set[int] = set()
        """ranks that printed that memory was full"""
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._names: dict[int, str] = {}
        self._rests: dict[tuple[int, int], str] = {}
        """rank and stream -> the part of a line that has not ended"""
        self._of_first: collections.deque[str] = collections.deque(maxlen=_REMEMBERED)
        """lines of rank 0"""
        self._late: collections.deque[tuple[float, int, int, str]] = collections.deque()
        """time, rank, stream and line of other ranks"""
        self._moving = False
        """whether the last line on the terminal is one that the next replaces"""
        self._unread: queue.Queue[tuple[int, str]] = queue.Queue(_MOST_UNREAD)
        """stream and text of pieces to print"""
        self._dropped = 0
        """number of lines before those that were not printed"""
        threading.Thread(target=self._write_all, daemon=True).start()
        threading.Thread(target=self._print_all, daemon=True).start()

    def begin(self, hosts: dict[int, str]) -> None:
        """A start: rank -> host; what was printed in an earlier one is forgotten."""

        def forget() -> None:
            self._finish_lines()
            self._names, self.sentence, self.of_memory = hosts, "", set()
            self._of_first.clear()

        self._work.put(forget)

    def receive(self, rank: int, stream: int, text: str, printed: Callable[[], None]) -> None:
        """Take what a rank printed, any part of lines; `printed` is called when it is shown."""
        self._work.put(partial(self._sort, rank, stream, text))
        self._work.put(printed)

    def say(self, text: str) -> None:
        """Print a line of the launcher itself, on stderr."""
        self._work.put(partial(self._show, _STDERR, f"hvd_nmt.launch: {text}\n"))

    def flush(self, patience_s: float | None = None) -> bool:
        """Print all that came until now, also lines that have not ended; whether it is printed."""
        done = threading.Event()
        self._work.put(self._finish_lines)
        self._work.put(done.set)
        if not done.wait(patience_s):
            return False
        with (written := self._unread.all_tasks_done):
            return written.wait_for(lambda: not self._unread.unfinished_tasks, patience_s)

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
            self._of_first.extend(lines)
            self._show(stream, text)
        else:
            now_s = time.monotonic()
            self._late.extend((now_s, rank, stream, line) for line in lines)

    def _show_late(self, until_s: float, most: int) -> None:
        """Lines of other ranks that came before or are too many, unless rank 0 has printed them."""
        shown: dict[int, list[str]] = {}
        while self._late and (self._late[0][0] <= until_s or len(self._late) > most):
            _, rank, stream, line = self._late.popleft()
            if line not in self._of_first:
                name = f"rank {rank} ({self._names.get(rank, '?')})"
                shown.setdefault(stream, []).append(f"{name}: {line}\n")
        for stream, lines in shown.items():
            self._show(stream, "".join(lines))

    def _finish_lines(self) -> None:
        for rank, stream in list(self._rests):
            self._sort(rank, stream, "\n")
        if self._moving:
            self._moving = False
            self._show(_STDOUT, "\n")  # the last one stays
        self._show_late(time.monotonic(), 0)

    def _show(self, stream: int, text: str) -> None:
        """Print to a file or a terminal, on which it replaces a line that moves."""
        if os.isatty(stream) and (MOVES in text or self._moving):
            lines = text.splitlines(keepends=True)
            self._moving = len(lines[-1]) > 1 and lines[-1].endswith(MOVES)
            last = moving(lines[-1].rstrip(MOVES)) if self._moving else ""
            text = CLEAR + "".join(line for line in lines if not line.endswith(MOVES)) + last
        try:
            self._unread.put((stream, text), timeout=0 if self._dropped else _STANDS_STILL_S)
        except queue.Full:
            with contextlib.suppress(queue.Empty):  # it was read just now
                self._dropped += max(1, self._unread.get_nowait()[1].count("\n"))
                self._unread.task_done()
            self._unread.put((stream, text))

    def _write_all(self) -> None:
        """In a thread. What fails is lost, and the next is tried: a full disk may have room."""
        failed = collections.defaultdict[int, str](str)  # stream -> why
        while True:
            stream, text = self._unread.get()
            dropped, self._dropped = self._dropped, 0
            if dropped:
                text = f"... {count(dropped, 'line')} dropped: the output was not read\n{text}"
            if failed[stream]:
                text = f"\n... lines are missing here: {failed[stream]}\n{text}"
            error = _write(stream, text)
            if error and stream == _STDOUT and not failed[stream]:
                why = f"continues without stdout while it cannot be written ({error})."
                _write(_STDERR, f"hvd_nmt.launch: {why}\n")
            failed[stream] = error
            self._unread.task_done()


def _write(stream: int, text: str) -> str:
    """The reason why that failed; "": it did not."""
    data = text.encode(errors="backslashreplace")
    while data:
        try:
            data = data[os.write(stream, data) :]
        except BlockingIOError:
            time.sleep(_DELAY_S / 100)
        except OSError as error:
            return error.strerror or str(error)
    return ""
