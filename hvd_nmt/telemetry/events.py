"""The run's event store: what the training reports, in metrics.jsonl and for TensorBoard.

metrics.jsonl is the record: every digit, one line per call. The TensorBoard files show the same in
float32. They are not written by its EventFileWriter: that one opens files with TensorFlow when it
is installed, and writes in a thread of its own that reports a full disk to the wrong caller.
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

from hvd_nmt.common.errors import unwritten
from hvd_nmt.telemetry import jsonl

CORPUS_TAG = "corpus/"
"""before the name of a corpus: its share of the sentences that a run on several is fed"""
METRICS_FILE = "metrics.jsonl"
TENSORBOARD_DIR = "tensorboard"
HYPOTHESES_DIR = "hypotheses"
"""translations of the dev set, dev.STEP.txt"""
_RECIPE = {"global_step/sec": "steps_per_s", "Eval_BLEU_Score": "pseudo_bleu"}


def read_metrics(run_dir: Path, problems: list[str] | None = None) -> list[dict[str, Any]]:
    """Reads what a run's `EventStore` has written; `problems` is as for `jsonl.read`.

    Returns one dict per line in the order of writing: `time_s` (unix), `kind`, `step` for lines
    about a step, and the values. Non-finite floats are floats again. Empty without a file.
    """
    path = run_dir / METRICS_FILE
    return [_with_floats(line) for line in jsonl.read(path, problems)] if path.exists() else []


def tag(kind: str, name: str) -> str:
    """The TensorBoard tag of a value, as docs/run-directory.md lists them."""
    short = re.sub("^(train_|eval_|Loss_Optimization/(global_)?)", "", _RECIPE.get(name, name))
    return ("train/" if kind == "train" else "dev/") + short


def _with_floats(line: dict[str, Any]) -> dict[str, Any]:
    """A line as it was before it was written: NaN and infinities, which JSON lacks, are floats."""
    if line.get("kind") == "text":
        return line
    return {
        key: float(value) if value in ("nan", "inf", "-inf") else value
        for key, value in line.items()
    }


@final
class EventStore(contextlib.AbstractContextManager["EventStore"]):
    """What is written during training. For one thread; every call is on disk when it returns.

    A line that has a `step` is about the training and is replaced when a resumed run passes that
    step again. A line without one (`record`) is about the run and stays. UserError: a full disk.
    """

    def __init__(
        self,
        run_dir: Path,
        after_step: int | None = None,
        show: Callable[[int, Mapping[str, float]], None] = lambda step, values: None,
    ) -> None:
        """Continues or begins a run directory's files; steps later than `after_step` are forgotten.

        TensorBoard files only grow; there a SessionLog START tells readers to drop what they saw
        from its step on. `show` also gets the step and the tagged values of each call of `scalars`.
        """
        self._path, self._show = run_dir / METRICS_FILE, show
        with self._explained():
            if after_step is not None:
                jsonl.drop_steps(self._path, after_step)
            self._file = jsonl.JsonlFile(self._path)
            self._events = EventWriter(run_dir / TENSORBOARD_DIR)
            if after_step is not None:
                self._events.restart(after_step + 1)

    def scalars(
        self,
        step: int,
        values: Mapping[str, float],
        *,
        kind: str = "train",
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the values of one step by name, as one line and as scalars.

        `kind` is what they are about, and `more` holds JSON values for the line alone.
        """
        floats = {name: float(value) for name, value in values.items()}
        self.record(kind, {"step": int(step), **floats, **(more or {})})
        tagged = {tag(kind, name): value for name, value in floats.items()}
        with self._explained():
            self._events.scalars(step, tagged, time.time())
        self._show(step, tagged)

    def text(self, step: int, name: str, markdown: str) -> None:
        """Writes a Markdown text about one step, as a line of kind "text" and for TensorBoard."""
        self.record("text", {"step": int(step), name: markdown})
        with self._explained():
            self._events.add(step=int(step), summary=text_pb(tag("text", name), markdown))

    def record(self, kind: str, values: Mapping[str, Any]) -> None:
        """Writes JSON values about the run, such as its start, as a line of metrics.jsonl alone."""
        with self._explained():
            self._file.append({"time_s": time.time(), "kind": kind, **values})

    def close(self) -> None:
        """Closes the files."""
        self._file.close()
        with self._explained():
            self._events.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritten(
                f"Cannot write the metrics of the run to {self._path.parent} on "
                f"{socket.gethostname()}: {error.strerror or error}. Make room, then run the same "
                "command again: it continues from the last checkpoint.", error,
            ) from error  # fmt: skip


@final
class EventWriter:
    """One TensorBoard event file. Every method raises an OSError when the disk is full, etc."""

    def __init__(self, logdir: Path) -> None:
        """Begins a file of a folder, one "run" in TensorBoard, that sorts after those there are."""
        logdir.mkdir(parents=True, exist_ok=True)
        is_first = not any(logdir.glob("events.*"))
        # TensorBoard reads files in the order of their names; a resumed run's must sort last.
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._file = (logdir / name).open("xb")
        self._records = RecordWriter(self._file)
        self.add(file_version="brain.Event:2")
        if is_first:
            # Readers take a folder's first START for its beginning and only the next for a restart.
            self.restart(0)

    def scalars(self, step: int, values: Mapping[str, float], time_s: float) -> None:
        """Writes a step's scalars by tag at unix time `time_s`; steps must grow."""
        found = [summary_pb2.Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()]
        self.add(step=int(step), summary=summary_pb2.Summary(value=found), wall_time=time_s)

    def restart(self, step: int) -> None:
        """Tells readers to drop everything from a step on; see `EventStore`."""
        self.add(step=step, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def add(self, **fields: Any) -> None:
        """Writes an event of TensorBoard by its fields; its time is now unless they say so."""
        event = event_pb2.Event(**{"wall_time": time.time(), **fields})
        self._records.write(event.SerializeToString())
        self._file.flush()  # events are rare; a crash then loses none

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
