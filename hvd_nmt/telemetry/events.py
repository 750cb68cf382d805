"""The run's event store: what the training reports, in metrics.jsonl and for TensorBoard.

metrics.jsonl is the record: every digit, one line per call. The TensorBoard file is made of it, in
float32, without TensorBoard's EventFileWriter. That one opens files with TensorFlow when it is
installed, and writes in another thread, which reports a full disk to the wrong caller.
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
"""prefix of a corpus, for its share of the sentences that a run on several is fed"""
METRICS_FILE = "metrics.jsonl"
TENSORBOARD_DIR = "tensorboard"
HYPOTHESES_DIR = "hypotheses"
"""translations of the dev set, dev.STEP.txt"""
_RECIPE = {"global_step/sec": "steps_per_s", "Eval_BLEU_Score": "pseudo_bleu"}
_SHOWN = {"train": float, "eval": float, "text": str}
"""kind of a line -> type of the values that TensorBoard shows"""


def read_metrics(run_dir: Path, problems: list[str] | None = None) -> list[dict[str, Any]]:
    """Reads what a run's `EventStore` has written; `problems` is as for `jsonl.read`.

    Returns one dict per line in the order of writing: `time_s` (unix), `kind`, `step` for lines
    about a step, and the values. Non-finite floats are floats again. Empty without a file.
    """
    return [_with_floats(line) for line in jsonl.read(run_dir / METRICS_FILE, problems)]


def short(name: str) -> str:
    """The name of a value in tags and records: as in the file, without what is OpenSeq2Seq's."""
    return re.sub("^(train_|eval_|Loss_Optimization/(global_)?)", "", _RECIPE.get(name, name))


def tagged(line: Mapping[str, Any]) -> dict[str, Any]:
    """What TensorBoard and trackers show of a line, by tag: numbers, or a text in Markdown.

    docs/run-directory.md lists the tags.
    """
    part, shown = ("train" if line["kind"] == "train" else "dev"), _SHOWN.get(line["kind"], ())
    return {
        f"{part}/{short(name)}": value
        for name, value in line.items()
        if isinstance(value, shown) and name not in ("time_s", "kind")
    }


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
        self, run_dir: Path, after_step: int = 0,
        show: Callable[[int, Mapping[str, float]], None] = lambda step, values: None,
    ) -> None:  # fmt: skip
        """Continues or begins a run directory's files; steps later than `after_step` are forgotten.

        TensorBoard gets a new file of all that stays: its data server never drops steps.
        `show` also gets the step and the tagged values of each call of `scalars`.
        """
        self._path, self._show, logdir = run_dir / METRICS_FILE, show, run_dir / TENSORBOARD_DIR
        with self._explained():
            before, clock_s = read_metrics(run_dir), time.time()
            begun_s = max([clock_s, *(line["time_s"] for line in before)])
            self.clock_ahead_s = begun_s - clock_s
            """seconds by which the times here are later than the clock, which was set back"""
            self.zero_s = begun_s - jsonl.uptime_s()
            """the run's unix time, which never goes back, when the machine was started"""
            jsonl.drop_steps(self._path, after_step)
            self._file = jsonl.JsonlFile(self._path)
            older = list(logdir.glob("events.*"))
            self._events = EventWriter(logdir, begun_s)
            # A reader that continues with this file drops what it has seen in those before it.
            self._events.add(session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
            for line in before:
                if line.get("step", 0) <= after_step:
                    self._events.write(line.get("step", 0), tagged(line), line["time_s"])
            for path in older:
                path.unlink()

    def scalars(
        self, step: int, values: Mapping[str, float], *, kind: str = "train",
        more: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Writes the values of one step by name, as one line and as scalars.

        `kind` is what they are about, and `more` holds JSON values for the line alone.
        """
        floats = {name: float(value) for name, value in values.items()}
        line = self.record(kind, {"step": int(step), **floats, **(more or {})})
        self._show(step, tagged(line))

    def record(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Writes JSON values as a line, which is returned; a "text" has a step and is Markdown."""
        line = {"time_s": self.zero_s + jsonl.uptime_s(), "kind": kind, **values}
        with self._explained():
            self._file.append(line)
            self._events.write(line.get("step", 0), tagged(line), line["time_s"])
        return line

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

    def __init__(self, logdir: Path, begun_s: float) -> None:
        """Begins a file of a folder, one "run" in TensorBoard, which reads them by their names."""
        logdir.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(1e9 * begun_s):019}.{socket.gethostname()}.{os.getpid()}"
        self._file = (logdir / name).open("xb")
        self._records = RecordWriter(self._file)
        self.add(file_version="brain.Event:2")

    def write(self, step: int, values: Mapping[str, float | str], time_s: float) -> None:
        """Writes a step's scalars and texts by tag at unix time `time_s`; steps must grow."""
        summary = summary_pb2.Summary()
        for tag, value in values.items():
            if isinstance(value, str):
                summary.MergeFrom(text_pb(tag, value))
            else:
                summary.value.add(tag=tag, simple_value=value)
        if values:
            self.add(step=int(step), summary=summary, wall_time=time_s)

    def add(self, **fields: Any) -> None:
        """Writes an event of TensorBoard by its fields; its time is now unless they say so."""
        event = event_pb2.Event(**{"wall_time": time.time(), **fields})
        self._records.write(event.SerializeToString())
        self._file.flush()  # events are rare; a crash then loses none

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
