"""Standard output and error for work that must not end because nobody reads them any more."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast, final


@contextlib.contextmanager
def outliving_readers(command: str) -> Iterator[None]:
    """In the block a write to stdout or stderr that fails does nothing, from the first failure on.

    A reader such as `head` has ended, an ssh connection is cut, or the disk of a log is full. One
    sentence on stderr, after the command's name, says so of stdout.
    """
    streams = sys.stdout, sys.stderr
    for name, stream in zip(("stdout", "stderr"), streams, strict=True):
        if stream is not None:  # closed before the start
            setattr(sys, name, cast(TextIO, _OutlivingStream(stream, name, command)))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


@final
class _OutlivingStream:
    """A text stream whose writes never fail; in all else it is the stream itself."""

    def __init__(self, stream: TextIO, name: str, command: str) -> None:
        self._stream, self._name, self._command = stream, name, command

    def write(self, text: str) -> int:
        with self._failures_hidden():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._failures_hidden():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _failures_hidden(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                # What is still in Python's buffer has to go somewhere, at the latest at its exit.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
                if self._name == "stdout":
                    print(
                        f"{self._command} goes on without stdout, which cannot be written any more "
                        f"({error.strerror}).",
                        file=sys.stderr,
                    )
