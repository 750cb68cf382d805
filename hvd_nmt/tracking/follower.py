"""The process that follows a run: it sends what the run records to MLflow or Weights & Biases.

    python -m hvd_nmt.tracking.follower mlflow RUN_DIR < /dev/null     what was not sent yet

It reads metrics.jsonl as it grows, until its input ends, as that does when the run is gone. What
fails is tried again, so a server that was away for hours gets all of it. A step is sent once: where
a run goes back and does steps again, they have the same values. tracker.json of the run directory
keeps what has been sent, and the library's name for the run.

Whatever the library does, prints, or how long it takes: sentences for a person are all that comes
out, and the process ends soon after its input.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, final

from hvd_nmt import config as configuration
from hvd_nmt.common.files import try_lock, write_atomically
from hvd_nmt.telemetry.events import METRICS_FILE, with_floats
from hvd_nmt.tracking.tracked_run import Line, TrackedRun

STATE_FILE = "tracker.json"
"""in the run directory, by library: its name for the run, the last step sent of each kind, and
whether it knows that nothing comes any more"""
REPORT_FILE = "report.html"
END_S = 20.0
"""for what is still to be sent when the run has ended, if nothing else is said"""
_LOCK = ".tracker.lock"
_KINDS = ("train", "eval", "text")
_POLL_S, _RETRY_S = 1.0, 15.0
_SILENT_S = 60.0
"""after which a call that has not come back is worth a line; libraries are large, disks slow"""
_LINES_AT_ONCE = 50
_MOST_WAITING = 10_000
"""lines that are kept in memory; the others wait in the file"""
_READ_BYTES = 4 << 20
_NICE = 5
_CONFIG, _EXPLAINS = "config.yaml", ("config.yaml", "environment.json", "command.txt")


def main() -> None:
    """Follow a run until the input ends; never returns."""
    name, run_dir = sys.argv[1], Path(sys.argv[2])
    limit_s = float(sys.argv[3]) if len(sys.argv) > 3 else END_S
    for number in (signal.SIGTERM, signal.SIGINT):  # the end of the input is the end
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    out = _own_output()
    input_ended = threading.Event()
    following = Following(name, run_dir, functools.partial(_say, out))
    threading.Thread(target=_wait_for_end, args=(input_ended,), daemon=True).start()
    work = threading.Thread(target=following.until, args=(input_ended,), daemon=True)
    work.start()
    end_s = None
    while work.is_alive() and (end_s is None or time.monotonic() < end_s):
        work.join(0.1)
        if end_s is None and input_ended.is_set():
            end_s = time.monotonic() + limit_s
        following.complain_of_silence()
    if work.is_alive():
        following.say_what_is_left()
    os._exit(int(work.is_alive()))  # whatever the library still does, or would do at the exit


@final
class Following:
    """What is sent to one library, and what has become of it.

    Args:
        name: mlflow or wandb.
        run_dir: run directory.
        say: gets a sentence for a person.
    """

    def __init__(self, name: str, run_dir: Path, say: Callable[[str], None]) -> None:
        self._name, self._run_dir, self._say = name, run_dir, say
        self._tail = Tail(run_dir / METRICS_FILE)
        self._waiting: list[Line] = []
        self._run: TrackedRun | None = None
        self._state: dict[str, Any] = {}
        self._sent: dict[str, int] = {}
        self._sent_at: deque[tuple[float, dict[str, int]]] = deque()
        self._finished = False
        self._called_s: float | None = None
        self._complained = False

    def until(self, ended: threading.Event) -> None:
        """Send what comes until the event, and then the rest."""
        path = self._run_dir / _LOCK
        try:
            lock = path.open("a")
        except OSError as error:
            self._say(f"{self._name} gets nothing: {path} cannot be opened ({error.strerror})")
            return
        with lock:
            while not try_lock(lock):  # of the start before, which has not sent all yet
                time.sleep(_POLL_S)
            fresh: dict[str, Any] = {"id": None, "sent": {}, "ended": False}
            self._state = fresh | _read_state(self._run_dir).get(self._name, {})
            self._sent = dict(self._state["sent"])
            self._until(ended)

    def _until(self, ended: threading.Event) -> None:
        while True:
            is_last = ended.is_set()
            try:
                self._send(is_last)
                if is_last:
                    return
                ended.wait(_POLL_S)
            except BaseException as error:  # of a library, of which nothing is known
                self._called_s = self._run = None
                self._complain(_in_one_line(error))
                time.sleep(_POLL_S) if is_last else ended.wait(_RETRY_S)

    def complain_of_silence(self) -> None:
        """Say once that a call does not come back."""
        called_s = self._called_s
        if called_s is not None and time.monotonic() - called_s > _SILENT_S:
            self._complain(f"no answer for {_SILENT_S:.0f} s")

    def say_what_is_left(self) -> None:
        """Say that not all was sent."""
        self._say(
            f"{self._name} did not take all that the run has recorded; the same command, or "
            f"python -m hvd_nmt.tracking.follower {self._name} {self._run_dir} < /dev/null, sends "
            "the rest"
        )

    def _send(self, is_last: bool) -> None:
        self._read()
        if self._sent_at:
            self._keep()
        if not self._waiting and (not is_last or self._state["id"] is None or self._state["ended"]):
            return
        with self._calling():
            run = self._opened()
            self._say_without_files(run)
            while batch := self._waiting[:_LINES_AT_ONCE]:
                self._called_s = time.monotonic()
                run.send(batch)
                self._sent = self._sent | {line["kind"]: line["step"] for line in batch}
                self._sent_at.append((time.monotonic(), self._sent))
                del self._waiting[:_LINES_AT_ONCE]
                self._state["ended"] = False
                self._keep()
                self._read()
            if is_last:
                self._called_s = time.monotonic()
                report = self._run_dir / REPORT_FILE
                run.end(self._finished, report if report.exists() else None)
                self._say_without_files(run)
                self._state |= {"sent": self._sent, "ended": True}
                self._keep()

    def _read(self) -> None:
        """Take lines of the file, as long as not too many wait."""
        while len(self._waiting) < _MOST_WAITING and (lines := self._tail.lines()):
            if self._tail.was_replaced:
                self._waiting.clear()
            for line in lines:
                if line.get("kind") in ("start", "end"):
                    self._finished = line["kind"] == "end"
                elif line.get("kind") in _KINDS and self._is_new(line):
                    self._waiting.append(line)

    def _is_new(self, line: Line) -> bool:
        step = line.get("step")
        return isinstance(step, int) and step > self._sent.get(line["kind"], -1)

    def _opened(self) -> TrackedRun:
        if self._run is None:
            run = _open(self._name, self._run_dir, self._state["id"])
            config = dict(_flat(configuration.as_plain(configuration.load(
                self._run_dir / _CONFIG))))  # fmt: skip
            if self._state["id"] != run.run_id:
                self._state["id"] = run.run_id
                self._keep()
                self._say(f"{self._name} run {run.run_id}")
            paths = [self._run_dir / name for name in _EXPLAINS]
            run.describe(config, [path for path in paths if path.exists()])
            self._run = run
        return self._run

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        self._called_s = time.monotonic()
        yield
        self._called_s = None

    def _keep(self) -> None:
        lasts_after_s = self._run.lasts_after_s if self._run is not None else 0.0
        while self._sent_at and self._sent_at[0][0] + lasts_after_s <= time.monotonic():
            _, self._state["sent"] = self._sent_at.popleft()
        all_states = _read_state(self._run_dir) | {self._name: self._state}
        write_atomically(self._run_dir / STATE_FILE, json.dumps(all_states) + "\n")

    def _say_without_files(self, run: TrackedRun) -> None:
        if run.takes_no_files is not None and not self._complained:
            self._complained = True
            self._say(
                f"{self._name} takes no files ({_in_one_line(run.takes_no_files)}): it gets the "
                "values, without texts and report"
            )

    def _complain(self, why: str) -> None:
        """Once: a server may be away for a night."""
        if not self._complained:
            self._complained = True
            self._say(
                f"{self._name} fails ({why}): the run goes on, and what it records is sent as soon "
                "as that works again"
            )


@final
class Tail:
    """The lines of metrics.jsonl that were not read yet; all of them again when it was replaced.

    Args:
        path: the file, which need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._inode, self._offset = path, -1, 0
        self.was_replaced = False
        """whether the lines that were read last are the first of a new file"""

    def lines(self) -> list[Line]:
        """The next ones, as far as they can be read; [] at the end of what is there."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                self.was_replaced = status.st_ino != self._inode
                if self.was_replaced or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                file.seek(self._offset)
                whole = file.read(_READ_BYTES)
        except FileNotFoundError:
            return []
        whole = whole[: whole.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = []
        for text in whole.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(text))
        return [with_floats(line) for line in found if isinstance(line, dict)]


def _open(name: str, run_dir: Path, run_id: str | None) -> TrackedRun:
    """Import the library, and begin or find the run there."""
    if name == "mlflow":
        from hvd_nmt.tracking.mlflow_run import MlflowRun

        return MlflowRun(run_dir, run_id)
    from hvd_nmt.tracking.wandb_run import WandbRun

    return WandbRun(run_dir, run_id)


def _read_state(run_dir: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        content = json.loads((run_dir / STATE_FILE).read_text(encoding="utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def _flat(plain: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _in_one_line(error: BaseException, longest: int = 200) -> str:
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return text if len(text) <= longest else f"{text[:longest]}..."


def _say(out: TextIO, text: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        print(f"tracker     {text}", file=out, flush=True)


def _own_output() -> TextIO:
    """The process's output for this file alone; what libraries print goes nowhere."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    return out


def _wait_for_end(ended: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    ended.set()


if __name__ == "__main__":
    main()
