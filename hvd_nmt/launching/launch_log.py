"""`launch.jsonl`: what the launcher did, one JSON line for each event; `records.launches` reads it.

start      hosts with their ranks, network card, words of the command
end        exit code, what was said last, how far it came, processes that were killed
left out   hosts that a start does without, and why
waiting    what hinders a start
restart    seconds until the next start
given up   why, with the exit code
stopped    the launcher was asked to end
finished   the run is done
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, final

from hvd_nmt.telemetry.jsonl import JsonlFile


@final
class LaunchLog:
    """The file, opened at the first event; none without a path. A failed write stops no run."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: JsonlFile | None = None

    def close(self) -> None:
        """Nothing is written any more."""
        if self._file is not None:
            self._file.close()

    def append(self, kind: str, **values: Any) -> None:
        """Write an event, with the time."""
        if self._path is None:
            return
        try:
            if self._file is None:
                self._file = JsonlFile(self._path)
            self._file.append({"time_s": time.time(), "kind": kind, **values})
        except OSError as error:
            print(
                f"warning: {self._path} cannot be written ({error.strerror or error}): the report "
                "will not know of restarts from here on.",
                file=sys.stderr,
            )
            self._path = None
