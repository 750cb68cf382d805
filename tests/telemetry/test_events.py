"""The event store, read back with its own reader and with TensorBoard's."""

import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator as PluginEventAccumulator,
)

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.telemetry import events, jsonl
from hvd_nmt.telemetry.events import EventStore, read_metrics


def tensorboard_scalars(logdir: Path, tag: str) -> list[tuple[int, float]]:
    """What TensorBoard shows: its two Python readers must agree."""
    old = EventAccumulator(str(logdir)).Reload()
    new = PluginEventAccumulator(str(logdir)).Reload()
    points = [(event.step, event.value) for event in old.Scalars(tag)]
    tensors = [(event.step, event.tensor_proto.float_val[0]) for event in new.Tensors(tag)]
    assert tensors == points
    return points


def test_a_line_has_step_time_kind_and_every_digit_and_what_is_not_finite(tmp_path):
    values = {"train_loss": 0.1 + 0.2, "learning_rate": 1 / 3, "b": math.inf, "c": -math.inf}
    with EventStore(tmp_path) as store:
        store.scalars(7, values, more={"time_s": 1700000000.25})
        store.scalars(7, {"Eval_BLEU_Score": np.float32(0.25), "a": math.nan}, kind="eval")
        store.record("text", {"step": 7, "note": "nan"})
    first, second, text = read_metrics(tmp_path)
    assert first == {"step": 7, "time_s": 1700000000.25, "kind": "train", **values}
    assert (second["kind"], second["Eval_BLEU_Score"], text["note"]) == ("eval", 0.25, "nan")
    assert math.isnan(second["a"])


def test_tensorboard_shows_scalars_and_texts_before_the_store_is_closed(tmp_path):
    store = EventStore(tmp_path)
    for step in (1, 2, 3):
        store.scalars(step, {"train_loss": 1 / step, "overflow": 1e300})
    store.record("text", {"step": 3, "sample": "**Ein** Hund"})
    logdir = tmp_path / "tensorboard"
    assert tensorboard_scalars(logdir, "train/loss") == [
        (step, pytest.approx(1 / step, rel=1e-7)) for step in (1, 2, 3)
    ]
    assert tensorboard_scalars(logdir, "train/overflow")[0] == (1, math.inf)
    reader = PluginEventAccumulator(str(logdir)).Reload()
    assert reader.PluginTagToContent("text").keys() == {"dev/sample"}
    assert reader.Tensors("dev/sample")[0].tensor_proto.string_val == [b"**Ein** Hund"]
    assert [line["kind"] for line in read_metrics(tmp_path)] == [*["train"] * 3, "text"]
    store.close()


def test_a_resumed_run_forgets_the_steps_beyond_its_checkpoint(tmp_path, monkeypatch):
    """Also where the clock was set back by an hour meanwhile."""
    logdir = tmp_path / "tensorboard"
    with EventStore(tmp_path, after_step=0) as store:
        store.record("start", {"ranks": 4})
        for step in (10, 20, 30, 40):
            store.scalars(step, {"train_loss": float(step)})
        store.scalars(40, {"eval_loss": 4.0}, kind="eval")
        store.record("text", {"step": 40, "sample": "old"})
    follower = PluginEventAccumulator(str(logdir)).Reload()
    (older,) = logdir.iterdir()
    clock = SimpleNamespace(time=lambda: time.time() - 3600)
    monkeypatch.setattr(events, "time", clock)
    with EventStore(tmp_path, after_step=20) as store:  # after a crash beyond that checkpoint
        assert store.clock_ahead_s == pytest.approx(3600, abs=300)
        store.record("start", {"ranks": 2})
        store.scalars(30, {"train_loss": 300.0})
    lines = [(line["kind"], line.get("step", line.get("ranks"))) for line in read_metrics(tmp_path)]
    assert lines == [("start", 4), ("train", 10), ("train", 20), ("start", 2), ("train", 30)]
    assert tensorboard_scalars(logdir, "train/loss") == [(10, 10.0), (20, 20.0), (30, 300.0)]
    # TensorBoard's data server drops nothing: what does not count must be in no file.
    (newer,) = logdir.iterdir()
    assert newer.name > older.name
    found = [event for event in LegacyEventFileLoader(str(newer)).Load() if event.summary.value]
    assert [event.summary.value[0].tag for event in found] == ["train/loss"] * 3
    assert found == sorted(found, key=lambda event: event.wall_time)
    follower.Reload()  # of a TensorBoard that shows the run meanwhile
    assert [len(follower.Tensors(tag)) for tag in ("train/loss", "dev/loss")] == [3, 0]


def test_a_full_disk_is_told_in_a_sentence(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with EventStore(tmp_path) as store:
        store._file.close()
        store._file = jsonl.JsonlFile(Path("/dev/full"))
        with pytest.raises(ClusterError, match="No space left on device"):
            store.scalars(1, {"train_loss": 1.0})


def test_telemetry_never_loads_tensorflow(tmp_path):
    code = f"""
import pathlib, sys
from hvd_nmt.telemetry import gpu, host, sampler, steps
from hvd_nmt.telemetry.events import EventStore
with EventStore(pathlib.Path({str(tmp_path)!r})) as store:
    store.scalars(1, {{"train_loss": 0.25}})
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=600)
    assert tensorboard_scalars(tmp_path / "tensorboard", "train/loss") == [(1, 0.25)]
