"""The run's event store: what the training reports, in metrics.jsonl and for TensorBoard.

metrics.jsonl is the record: every digit, one line per call. The TensorBoard files show the same in
float32. They have TensorBoard's own record format, but are not written by its EventFileWriter: that
one opens files with TensorFlow when it is installed, and writes in a thread of its own that reports
a full disk to the wrong caller.
"""

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from hvd_nmt.common.errors import RunError
from hvd_nmt.telemetry import jsonl

CORPUS_TAG = "corpus/"
"""before the name of a corpus: its share of the sentences that a run on several is fed"""
METRICS_FILE = "metrics.jsonl"
TENSORBOARD_DIR = "tensorboard"
HYPOTHESES_DIR = "hypotheses"
"""translations of the dev set, dev.STEP.txt"""
_OWN_FIELDS = {"step", "time_s", "kind"}
_NOT_FINITE = {"nan", "inf", "-inf"}
_EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)\.")


def read_metrics(run_dir: Path, problems: list[str] | None = None) -> list[dict[str, Any]]:
    """Reads what a run's `EventStore` has written; `problems` is as for `jsonl.read`.

    Returns one dict per line in the order of writing: `time_s` (unix), `kind`, `step` for lines
    about a step, and the values. Non-finite floats are floats again. Empty without a file.
    """
    path = run_dir / METRICS_FILE
    return [_with_floats(line) for line in jsonl.read(path, problems)] if path.exists() else []


def _with_floats(line: dict[str, Any]) -> dict[str, Any]:
    """A line as it was before it was written: NaN and infinities, which JSON lacks, are floats."""
    if line.get("kind") == "text":
        return line
    return {
        key: float(value) if isinstance(value, str) and value in _NOT_FINITE else value
        for key, value in line.items()
    }


@final
class EventStore:
    """What rank 0 writes during training. For one thread; every call is on disk when it returns.

    A line that has a `step` is about the training and is replaced when a resumed run passes that
    step again (`truncate_after`). A line without one (`record`) is about the run and stays. Every
    call raises a RunError when the disk is full, and the like.
    """

    def __init__(
        self, run_dir: Path, show: Callable[[int, Mapping[str, float]], None] | None = None
    ) -> None:
        """Continues or begins a run directory's files; `show` also gets the values of each step."""
        self._path, self._show = run_dir / METRICS_FILE, show
        with self._explained():
            self._file = jsonl.JsonlFile(self._path)
            self._events = EventWriter(run_dir / TENSORBOARD_DIR)

    def scalars(
        self,
        step: int,
        values: Mapping[str, float],
        *,
        kind: str = "train",
        time_s: float | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the values of one step, as one line and as TensorBoard scalars.

        Args:
            step: training steps done so far.
            values: by TensorBoard tag; what float() takes (Python, NumPy, an eager tensor).
            kind: what the values are about, such as "train" or "eval".
            time_s: unix time of the values; now if None.
            more: JSON values for the line alone.

        Raises:
            ValueError: if a tag is "step", "time_s" or "kind", which are the line's own fields.
        """
        time_s = time.time() if time_s is None else time_s
        floats = {tag: float(value) for tag, value in values.items()}
        with self._explained():
            self._append({"step": int(step), "time_s": time_s, "kind": kind}, floats, more or {})
            self._events.scalars(step, floats, time_s)
        if self._show is not None:
            self._show(step, floats)

    def text(self, step: int, tag: str, markdown: str) -> None:
        """Writes a Markdown text about one step, as a line of kind "text" and for TensorBoard."""
        time_s = time.time()
        with self._explained():
            own = {"step": int(step), "time_s": time_s, "kind": "text"}
            self._append(own, {tag: markdown})
            self._events.summary(step, text_pb(tag, markdown), time_s)

    def record(self, kind: str, values: Mapping[str, Any]) -> None:
        """Writes JSON values about the run, such as its start, as a line of metrics.jsonl alone."""
        with self._explained():
            self._append({"time_s": time.time(), "kind": kind}, values)

    def _append(self, own: dict[str, Any], *values: Mapping[str, Any]) -> None:
        for each in values:
            if taken := _OWN_FIELDS & each.keys():
                raise ValueError(f"Nothing can be named {sorted(taken)}: the line uses the name.")
            own |= each
        self._file.append(own)

    def truncate_after(self, step: int) -> int:
        """Forgets the steps after the checkpoint from which the run resumes; says how many lines.

        TensorBoard files only grow; there a SessionLog START at `step + 1` tells readers to drop
        what they saw from that step on. TensorBoard's fast loader ignores it and drops a tag's
        later steps as soon as the tag is written at an earlier one.
        """
        with self._explained():
            self._file.close()
            try:
                dropped = jsonl.rewrite(self._path, lambda line: line.get("step", step) <= step)
            finally:
                self._file = jsonl.JsonlFile(self._path)
            self._events.restart(step + 1)
        return dropped

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        with self._explained():
            self._events.close()

    def __enter__(self) -> "EventStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(
                f"The metrics of the run cannot be written to {self._path.parent} on "
                f"{socket.gethostname()}: {error.strerror or error}. Make room or give the run "
                "another directory; the same command goes on from the last checkpoint."
            ) from error


@final
class EventWriter:
    """One TensorBoard event file. Every method raises an OSError when the disk is full, etc."""

    def __init__(self, logdir: Path) -> None:
        """Begins a file of a folder, one "run" in TensorBoard, that sorts after those there are."""
        logdir.mkdir(parents=True, exist_ok=True)
        earlier_s = [int(m[1]) for path in logdir.iterdir() if (m := _EVENT_FILE.match(path.name))]
        # TensorBoard reads files in the order of their names, so a resumed run's must sort last,
        # even when the clock was set back or the run resumes within the second.
        begun_s = max([int(time.time()), *(second + 1 for second in earlier_s)])
        name = f"events.out.tfevents.{begun_s:010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (logdir / name).open("xb")
        self._records = RecordWriter(self._file)
        self._add(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        if not earlier_s:
            # Readers take a folder's first START for its beginning and only the next for a restart.
            self.restart(0)

    def scalars(self, step: int, values: Mapping[str, float], time_s: float | None = None) -> None:
        """Writes a step's scalars by tag at unix time `time_s` (None: now); steps must grow."""
        summary = summary_pb2.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        self.summary(step, summary, time_s)

    def restart(self, step: int) -> None:
        """Tells readers to drop everything from a step on; see `EventStore.truncate_after`."""
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(event_pb2.Event(wall_time=time.time(), step=step, session_log=start))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def summary(self, step: int, summary: summary_pb2.Summary, time_s: float | None = None) -> None:
        """Writes TensorBoard's summary as it is; `time_s`: unix time, now if None."""
        wall_time = time.time() if time_s is None else time_s
        self._add(event_pb2.Event(wall_time=wall_time, step=int(step), summary=summary))

    def _add(self, event: event_pb2.Event) -> None:
        self._records.write(event.SerializeToString())
        self._file.flush()  # events are rare; a crash then loses none
