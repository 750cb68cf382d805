"""The process that follows a run, as rank 0 starts and ends it.

A process, not a thread: what MLflow and Weights & Biases import, hold, print, start and do at the
exit of Python is then theirs alone, and a call that hangs can be left behind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, final

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.rank_environment import START_ID
from hvd_nmt.config import Config
from hvd_nmt.telemetry.events import METRICS_FILE
from hvd_nmt.tracking.follower import END_S

NONE = "none"
_STOPPED_S = 1.0
"""how long a run that was stopped waits: its launcher kills it soon, but not that process"""


@final
class Tracker:
    """Nothing if `telemetry.tracker` is none, or on another rank; a context manager.

    Args:
        config: of the run.
        is_first: whether this is rank 0.

    Raises:
        ConfigError: the library is not installed.
    """

    def __init__(self, config: Config, is_first: bool) -> None:
        self._name = config.telemetry.tracker if is_first else NONE
        self._run_dir = config.run_dir
        self._process: subprocess.Popen[str] | None = None
        self._output: threading.Thread | None = None
        if self._name != NONE and not _is_installed(self._name):
            raise ConfigError(
                f"telemetry.tracker {self._name} needs a package that is not installed here: run "
                f"pip install 'hvd_nmt[{self._name}]', or leave telemetry.tracker at none."
            )

    def start(self) -> None:
        """Start following, from all that the run directory holds; fails by one line at most."""
        if self._name == NONE:
            return
        # Not of the start that ends: the launcher kills what is left of that.
        environment = {name: text for name, text in os.environ.items() if name != START_ID}
        command = [sys.executable, "-m", "hvd_nmt.tracking.follower"]
        try:
            self._process = subprocess.Popen(
                [*command, self._name, os.fspath(self._run_dir), str(END_S)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=environment, text=True, errors="backslashreplace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            print(f"tracker     {self._name} could not be started ({error.strerror})", flush=True)
            return
        assert self._process.stdout is not None
        self._output = threading.Thread(
            target=_print, args=(self._process.stdout,), name="tracker", daemon=True
        )
        self._output.start()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and self._process is None and _has_records(self._run_dir):
            self.start()  # a run that had ended before: what was left is sent now
        if self._process is None or self._process.stdin is None or self._output is None:
            return
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S + 5.0 if kind is None else _STOPPED_S)
            self._output.join(_STOPPED_S)


def _is_installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # without: a folder of that name, no more


def _has_records(run_dir: Path) -> bool:
    return (run_dir / METRICS_FILE).exists()


def _print(lines: IO[str]) -> None:
    with lines:
        for line in lines:
            print(line, end="", flush=True)
