"""The event store, read back with its own reader and with TensorBoard's."""

import math
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

from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common import jsonl
from hvd_nmt.common.errors import ClusterError
from hvd_nmt.records import event_store
from hvd_nmt.records.event_store import EventStore
from hvd_nmt.records.metrics import records
from hvd_nmt.records.record import Evaluation, Interval, Samples, Start, Stop
from toy import python


def tensorboard_scalars(logdir: Path, tag: str) -> list[tuple[int, float]]:
    """What TensorBoard shows: its two Python readers must agree."""
    old = EventAccumulator(str(logdir)).Reload()
    new = PluginEventAccumulator(str(logdir)).Reload()
    points = [(event.step, event.value) for event in old.Scalars(tag)]
    tensors = [(event.step, event.tensor_proto.float_val[0]) for event in new.Tensors(tag)]
    assert tensors == points
    return points


def test_a_line_has_step_time_kind_and_every_digit_and_what_is_not_finite(tmp_path):
    record = Interval(
        7, 5, loss=0.1 + 0.2, epoch=math.inf, gradient_norm=-math.inf, corpora={"de": 1 / 3},
        time_s=1700000000.25,
    )  # fmt: skip
    scores = Evaluation(7, math.nan, pseudo_bleu=np.float32(0.25), by_corpus={"de": (1, None, 2)})
    run = RunDirectory(tmp_path)
    with EventStore(run, []) as store:
        for of in (record, scores, Samples(7, "nan")):
            store.write(of)
    first, second, text = lines = run.read_metrics()
    assert list(first)[:4] == ["time_s", "kind", "step", "train_loss"]
    assert (first["time_s"], first["kind"], first["steps"]) == (1700000000.25, "train", 5)
    assert (first["train_loss"], first["epoch"], first["corpus/de"]) == (0.1 + 0.2, math.inf, 1 / 3)
    assert (second["Eval_BLEU_Score"], second["eval_loss/de"], second["chrf/de"]) == (0.25, 1, 2)
    assert math.isnan(second["eval_loss"])
    assert text["samples"] == "nan"
    assert records(lines)[0] == record
    assert records(lines)[1].by_corpus == scores.by_corpus


def test_tensorboard_shows_scalars_and_texts_before_the_store_is_closed(tmp_path):
    run = RunDirectory(tmp_path)
    store = EventStore(run, [{"time_s": 1.0, "kind": "train", "step": 0, "of_an_old_run": 2.0}])
    for step in (1, 2, 3):
        store.write(Interval(step, 1, loss=1 / step, model_flop_per_s=1e300))
    store.write(Samples(3, "**Ein** Hund"))
    logdir = tmp_path / "tensorboard"
    assert tensorboard_scalars(logdir, "train/loss") == [
        (step, pytest.approx(1 / step, rel=1e-7)) for step in (1, 2, 3)
    ]
    assert tensorboard_scalars(logdir, "train/model_flop_per_s")[0] == (1, math.inf)
    assert tensorboard_scalars(logdir, "train/of_an_old_run") == [(0, 2.0)]
    reader = PluginEventAccumulator(str(logdir)).Reload()
    assert reader.PluginTagToContent("text").keys() == {"dev/samples"}
    assert reader.Tensors("dev/samples")[0].tensor_proto.string_val == [b"**Ein** Hund"]
    assert [line["kind"] for line in run.read_metrics()] == [*["train"] * 3, "text"]
    store.close()


def test_a_resumed_run_forgets_the_steps_beyond_its_checkpoint(tmp_path, monkeypatch):
    """Also where the clock was set back by an hour meanwhile."""
    run, logdir = RunDirectory(tmp_path), tmp_path / "tensorboard"
    with EventStore(run, []) as store:
        store.write(Start(parameters=4))
        for step in (10, 20, 30, 40):
            store.write(Interval(step, 10, loss=float(step)))
        store.write(Evaluation(40, 4.0))
        store.write(Samples(40, "old"))
    follower = PluginEventAccumulator(str(logdir)).Reload()
    (older,) = logdir.iterdir()
    clock = SimpleNamespace(time=lambda: time.time() - 3600)
    monkeypatch.setattr(event_store, "time", clock)
    before = run.read_metrics()
    with EventStore(run, before, after_step=20) as store:  # after a crash beyond that checkpoint
        assert store.clock_ahead_s == pytest.approx(3600, abs=300)
        store.write(Start(parameters=2))
        store.write(Interval(30, 10, loss=300.0))
    lines = [(of["kind"], of.get("step", of.get("parameters"))) for of in run.read_metrics()]
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
    with EventStore(RunDirectory(tmp_path), []) as store:
        store._file.close()
        store._file = jsonl.JsonlFile(Path("/dev/full"))
        with pytest.raises(ClusterError, match="No space left on device"):
            store.write(Stop())


def test_telemetry_never_loads_tensorflow(tmp_path):
    code = f"""
import pathlib, sys
from hvd_nmt.telemetry import gpu, host, sampler, steps
from hvd_nmt.telemetry.events import EventWriter
EventWriter(pathlib.Path({str(tmp_path)!r}), 0.0).write(1, {{"train/loss": 0.25}}, 0.0)
assert "tensorflow" not in sys.modules
"""
    python("-W", "error", "-c", code)
    assert tensorboard_scalars(tmp_path, "train/loss") == [(1, 0.25)]
