"""Files of one JSON object per line that survive a crash.

A line that does not end in a newline does not exist: it is what a crash or a full disk left of one.
Readers skip it, and the next writer cuts it off before it appends. So only the last line can ever
be torn, and a line that cannot be read anywhere else means that something else damaged the file.
"""

import errno
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import write_atomically

_BLOCK_BYTES = 1 << 16


def read(path: Path, damaged: list[int] | None = None) -> Iterator[dict[str, Any]]:
    """Reads the objects of a file one by one, without a torn last line.

    Args:
        path: the file.
        damaged: gets the numbers, from 1, of whole lines that are no JSON object, which are then
            left out; None: they are an error.

    Yields:
        One object per line. Non-finite floats are the strings that `encode` made of them.

    Raises:
        RunError: if a whole line is no JSON object, and `damaged` is None.
        OSError: if the file cannot be read.
    """
    for _, values in _lines(path, damaged):
        yield values


def rewrite(path: Path, keep: Callable[[dict[str, Any]], bool]) -> int:
    """Drops lines from a file so that a crash leaves either the old file or the new one.

    Args:
        path: the file; nothing may have it open for writing.
        keep: tells of an object whether its line stays, to the byte.

    Returns:
        The number of dropped lines. The file is not touched when it is 0.

    Raises:
        RunError: if a whole line is no JSON object.
    """
    kept, dropped = [], 0
    for line, values in _lines(path):
        if keep(values):
            kept.append(line)
        else:
            dropped += 1
    if dropped:
        write_atomically(path, b"".join(kept))
    return dropped


def encode(values: Mapping[str, Any]) -> bytes:
    """Makes one line of an object: every digit of every float, and valid JSON even with NaN.

    Args:
        values: JSON values; NaN and infinities become the strings "nan", "inf" and "-inf", because
            JSON has no such numbers and strict readers (jq, browsers) refuse Python's `NaN`.

    Returns:
        UTF-8 with a newline at its end and nowhere else.
    """
    try:
        text = json.dumps(values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_without_nan(values), ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate (half a character, from bytes that were no UTF-8) must not stop a run.
    return text.encode("utf-8", errors="backslashreplace") + b"\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value


def _lines(path: Path, damaged: list[int] | None = None) -> Iterator[tuple[bytes, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                values = None
            if isinstance(values, dict):
                yield line, values
            elif damaged is not None:
                damaged.append(number)
            else:
                raise RunError(
                    f"Line {number} of {path} is not a JSON object, so the file was damaged after "
                    "it was written; delete that line to use the rest."
                )


def _cut_torn_line(file: Any) -> None:
    size = end = file.seek(0, os.SEEK_END)
    whole = 0
    while end and not whole:
        start = max(0, end - _BLOCK_BYTES)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        whole, end = (start + newline + 1 if newline >= 0 else 0), start
    if whole != size:
        file.truncate(whole)


@final
class JsonlFile:
    """A file to append objects to, each of which is with the kernel when `append` returns."""

    def __init__(self, path: Path) -> None:
        """Opens the file to continue it, or makes it with its folder; cuts off a torn last line."""
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # No buffer of Python's: what failed to be written once is not tried again by close().
        self._file = path.open("ab+", buffering=0)
        _cut_torn_line(self._file)

    def append(self, values: Mapping[str, Any]) -> None:
        """Writes one line, see `encode`; OSError: the disk is full, the file was deleted, etc."""
        if os.fstat(self._file.fileno()).st_nlink == 0:
            # The kernel would take the bytes and show them to nobody.
            raise FileNotFoundError(errno.ENOENT, "The file was deleted", str(self.path))
        rest = memoryview(encode(values))
        while rest:
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
