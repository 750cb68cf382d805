"""TensorBoard's event files, without its EventFileWriter.

That one opens files with TensorFlow when it is installed, and writes in another thread, which
reports a full disk to the wrong caller.
"""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter


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
