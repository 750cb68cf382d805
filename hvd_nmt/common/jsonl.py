"""Files of one JSON object per line that survive a crash.

A line that does not end in a newline does not exist: it is what a crash or a full disk left of one.
Readers skip it, and the next writer cuts it off before it appends.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final

from hvd_nmt.common.files import write_atomically
from hvd_nmt.common.units import count


def uptime_s() -> float:
    """Seconds since this machine was started, suspended ones too: a clock that is never set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def read(path: Path, problems: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Reads the objects of a file one by one, without a torn last line; none without the file.

    Non-finite floats are the strings that `JsonlFile` made of them. Lines that are no JSON object
    are left out. `problems` gets a sentence on them, or on an OSError, which else is raised.
    """
    damaged = 0
    try:
        for _, values in _lines(path):
            if values is None:
                damaged += 1
            else:
                yield values
    except OSError as error:
        if problems is None:
            raise
        problems.append(f"Cannot read {path} ({error.strerror}).")
    if damaged and problems is not None:
        problems.append(f"{path}: {count(damaged, 'line')} skipped, not JSON.")


def drop_steps(path: Path, after: int) -> None:
    """Drops the lines of later steps, atomically, from a file without a writer; others stay."""
    lines = list(_lines(path))
    kept = [line for line, values in lines if values is None or values.get("step", after) <= after]
    if len(kept) < len(lines):
        write_atomically(path, b"".join(kept))


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):
                values = None
            yield line, values if isinstance(values, dict) else None


@final
class JsonlFile:
    """A file to append objects to, each of which is with the kernel when `append` returns."""

    def __init__(self, path: Path) -> None:
        """Opens the file to continue it, or makes it with its folder; cuts off a torn last line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        # No buffer of Python's: what failed to be written once is not tried again by close().
        self._file = path.open("ab", buffering=0)
        if path.stat().st_size > 0:
            self._file.truncate(path.read_bytes().rfind(b"\n") + 1)

    def append(self, values: Mapping[str, Any]) -> None:
        """Writes one line, with every digit of every float; OSError: the disk is full, etc.

        NaN and infinities become the strings "nan", "inf" and "-inf": JSON has no such numbers, and
        strict readers (jq, browsers) refuse Python's `NaN`.
        """
        text = json.dumps(_without_nan(values), ensure_ascii=False, separators=(",", ":"))
        # A lone surrogate (half a character, from bytes that were no UTF-8) must not stop a run.
        rest = memoryview(text.encode("utf-8", errors="backslashreplace") + b"\n")
        while rest:
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
