"""The run's event store: what the training reports, in metrics.jsonl and for TensorBoard.

metrics.jsonl is the record: every digit, one line per call. The TensorBoard file is made of it, in
float32.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

from tensorboard.compat.proto import event_pb2

from hvd_nmt.checkpoints.run_files import Line, RunDirectory
from hvd_nmt.common import jsonl
from hvd_nmt.common.errors import unwritten
from hvd_nmt.records.metrics import line_of, tagged
from hvd_nmt.records.record import Record
from hvd_nmt.telemetry.events import EventWriter


@final
class EventStore(contextlib.AbstractContextManager["EventStore"]):
    """What is written during training. For one thread; every call is on disk when it returns.

    A record that has a `step` is about the training and is replaced when a resumed run passes that
    step again. One without is about the run and stays. UserError: a full disk.
    """

    def __init__(
        self, run: RunDirectory, before: Sequence[Line], after_step: int = 0,
        show: Callable[[int, Mapping[str, float]], None] = lambda step, values: None,
    ) -> None:  # fmt: skip
        """Continues or begins a run directory's files; steps later than `after_step` are forgotten.

        `before` are the lines of metrics.jsonl. TensorBoard gets a new file of all that stays: its
        data server never drops steps. `show` also gets the step and the tagged numbers of a record.
        """
        self._path, self._show = run.metrics, show
        with self._explained():
            clock_s = time.time()
            begun_s = max([clock_s, *(line["time_s"] for line in before)])
            self.clock_ahead_s = begun_s - clock_s
            """seconds by which the times here are later than the clock, which was set back"""
            self.zero_s = begun_s - jsonl.uptime_s()
            """the run's unix time, which never goes back, when the machine was started"""
            jsonl.drop_steps(self._path, after_step)
            self._file = jsonl.JsonlFile(self._path)
            older = list(run.tensorboard.glob("events.*"))
            self._events = EventWriter(run.tensorboard, begun_s)
            # A reader that continues with this file drops what it has seen in those before it.
            self._events.add(session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
            for line in before:
                if line.get("step", 0) <= after_step:
                    self._events.write(line.get("step", 0), tagged(line), line["time_s"])
            for path in older:
                path.unlink()

    def write(self, record: Record) -> None:
        """Writes a record as a line, and what TensorBoard shows of it."""
        line = line_of(record, self.zero_s + jsonl.uptime_s())
        step, tags = line.get("step", 0), tagged(line)
        with self._explained():
            self._file.append(line)
            self._events.write(step, tags, line["time_s"])
        if numbers := {tag: value for tag, value in tags.items() if isinstance(value, float)}:
            self._show(step, numbers)

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
