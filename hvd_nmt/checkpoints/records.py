"""The small files of a run directory, as they travel to a copy of it on another host.

Without them a checkpoint is no run: its configuration, vocabulary, and what was recorded until it.
They travel as JSON, each byte as the character of its number.
"""

from pathlib import Path
from typing import Any

from hvd_nmt.checkpoints.run_files import (
    COMMANDS,
    CONFIG,
    ENVIRONMENT,
    IMPORTED,
    NOT_FINITE,
    ORIGIN,
    RUN_ID,
    SOURCE_VOCABULARY,
    VOCABULARY,
)
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import write_atomically
from hvd_nmt.telemetry.events import METRICS_FILE

_WHOLE = (
    RUN_ID, CONFIG, VOCABULARY, SOURCE_VOCABULARY, ENVIRONMENT, COMMANDS, ORIGIN, IMPORTED,
    NOT_FINITE,
)  # fmt: skip
"""which are sent as a whole where they have changed; some runs have not all of them"""
_BYTES = "latin-1"


class Records:
    """The small files of a run directory, of which each change is given once.

    Args:
        run_dir: run directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._given: dict[str, str] = {}
        self._metrics_bytes = 0

    def changes(self) -> dict[str, Any]:
        """What is new since this was last called, for `put`; at first all there is.

        Returns:
            A JSON value: whole files by name, and the new end of the metrics with its offset.
        """
        files = {}
        for name in _WHOLE:
            path = self._run_dir / name
            text = path.read_bytes().decode(_BYTES) if path.exists() else None
            if text is not None and self._given.get(name) != text:
                files[name] = self._given[name] = text
        path, offset = self._run_dir / METRICS_FILE, self._metrics_bytes
        end = b""
        if path.exists():
            with path.open("rb") as stream:
                stream.seek(offset)
                end = stream.read()
        self._metrics_bytes += len(end)
        return {"files": files, "offset": offset, "metrics": end.decode(_BYTES)}


def put(run_dir: Path, changes: dict[str, Any]) -> None:
    """Make the same changes in another copy of the run directory.

    Raises:
        OSError: the disk is full, and the like.
        RunError: the metrics there are not those of which these are the end.
    """
    for name in _WHOLE:
        if name in changes["files"]:
            write_atomically(run_dir / name, changes["files"][name].encode(_BYTES))
    path, offset = run_dir / METRICS_FILE, changes["offset"]
    end = changes["metrics"].encode(_BYTES)
    if offset == 0:
        write_atomically(path, end)
        return
    if path.stat().st_size < offset:
        raise RunError(f"{path}, a copy of what the run records, was cut by somebody.")
    with path.open("r+b") as stream:
        stream.truncate(offset)  # a part of these lines, if their writing failed before
        stream.seek(offset)
        stream.write(end)
