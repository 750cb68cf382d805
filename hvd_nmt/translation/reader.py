"""Lines of input in chunks that fit into memory, or as soon as they arrive."""

import io
import os
import stat
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from hvd_nmt.data.text import read_lines

# Lines are sorted by length within a chunk: enough for full batches, little enough to keep, and
# what a killed job has to do again.
CHUNK_LINES = 1_000
CHUNK_CHARACTERS = 1 << 24


def chunks(
    lines: Iterable[str], most_lines: int = CHUNK_LINES, most_characters: int = CHUNK_CHARACTERS
) -> Iterator[list[str]]:
    """Cuts lines into lists that fit into memory; with `most_characters` a list is full."""
    chunk: list[str] = []
    room = most_characters
    for line in lines:
        chunk.append(line)
        room -= len(line)
        if len(chunk) == most_lines or room <= 0:
            yield chunk
            chunk, room = [], most_characters
    if chunk:
        yield chunk


def from_stdin() -> Iterator[list[str]]:
    """Chunks of standard input: full ones of a file, else whatever has arrived.

    Someone who types, or a program that waits for the answer, gets it after each line; while one
    chunk is worked on the next one gathers.
    """
    stream = sys.stdin.buffer
    try:
        number = stream.fileno()
    except io.UnsupportedOperation:  # no file behind it, so nothing to wait for
        return chunks(read_lines(stream, lenient=True, name="stdin"))
    if stat.S_ISREG(os.fstat(number).st_mode):
        return chunks(read_lines(stream, lenient=True, name="stdin"))
    return from_stream(open(number, "rb", closefd=False))


def from_stream(stream: IO[bytes]) -> Iterator[list[str]]:
    """Chunks of a stream, each of the lines that have come since the last: at least one."""
    inbox = _Inbox()
    # A daemon: nothing ends a thread that waits for someone to type.
    threading.Thread(target=inbox.fill, args=(stream,), daemon=True).start()
    while chunk := inbox.take():
        yield chunk


class _Inbox:
    """What a thread has read and nobody has taken yet; at most a chunk."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._characters = 0
        self._ended = False
        self._failure: BaseException | None = None

    def fill(self, stream: IO[bytes]) -> None:
        """Reads to the end; waits while the box is full."""
        try:
            for line in read_lines(stream, lenient=True, name="stdin"):
                with self._changed:
                    self._changed.wait_for(self._has_room)
                    self._lines.append(line)
                    self._characters += len(line)
                    self._changed.notify_all()
        except BaseException as error:
            self._failure = error  # raised where the lines are taken
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def take(self) -> list[str]:
        """All lines there are, after waiting for the first; none at the end of the stream."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._ended)
            lines, self._lines, self._characters = self._lines, [], 0
            self._changed.notify_all()
        if not lines and self._failure is not None:
            raise self._failure
        return lines

    def _has_room(self) -> bool:
        return len(self._lines) < CHUNK_LINES and self._characters < CHUNK_CHARACTERS


def count_lines(path: Path) -> int:
    """How many lines a text file has, plain or .gz."""
    return sum(1 for _ in read_lines(path, lenient=True))
