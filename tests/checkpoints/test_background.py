"""Checkpoints that are written while the training goes on: the same files, whatever happens."""

import os
import shutil
import threading
from pathlib import Path

import pytest
import tensorflow as tf
import tf_keras as keras

from hvd_nmt.checkpoints import saver as saving
from hvd_nmt.checkpoints import weights
from hvd_nmt.checkpoints.find import newest_first, verify
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.snapshot import Snapshot
from hvd_nmt.checkpoints.state import adam_state, run_state, weights_by_path
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import ModelConfig
from hvd_nmt.model.transformer import Transformer
from marked_run import FACTS, SUFFIXES, files_of, mark, marked, names, newest


@pytest.fixture(scope="module")
def everything():
    """A state with all that a run can save: an average and a loss scale, too."""
    model, average = (Transformer(ModelConfig(1, 1, 16, 2, 32), 40, "float32") for _ in range(2))
    scaled = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam())
    scaled.build(model.trainable_variables)
    adam = adam_state(weights_by_path(model), 3)
    adam = type(adam)(adam.iterations, adam.m, adam.v, scaled._loss_scale)
    return run_state(model, 3, adam, average)


def contents(prefix):
    return {suffix: Path(f"{prefix}{suffix}").read_bytes() for suffix in SUFFIXES}


@pytest.mark.both_tensorflows
def test_the_files_are_those_of_a_save_in_the_foreground_to_the_byte(everything, tmp_path):
    """Also when the copy was taken before, of other values."""
    saver = Saver(tmp_path, everything, FACTS, keep=3, keep_best=1)
    for value in (1, 2):
        mark(everything, value)
        saver.save(5)
        wanted = contents(tmp_path / "model.ckpt-5")
        saver.begin(5)
        saver.background.wait()
        assert contents(tmp_path / "model.ckpt-5") == wanted
    keys = dict(tf.train.list_variables(os.fspath(tmp_path / "model.ckpt-5")))
    assert any(key.startswith("ema/") for key in keys)
    assert any("loss_scale" in key for key in keys)


def test_a_copy_stays_as_it_is_whatever_changes_the_variables(everything, tmp_path):
    mark(everything, 1)
    copy = Snapshot(everything)
    for taken in (1, 2):
        if taken == 2:
            mark(everything, 2)
            copy.take()
        for number, variable in enumerate(weights.variables(everything)):
            if number % 3 == 0:
                variable.assign_add(tf.ones_like(variable))
            elif number % 3 == 1 and variable.dtype == tf.float32:
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=1.0, delta=tf.ones_like(variable)
                )
            else:
                variable.assign(tf.zeros_like(variable))
        copy.state.write(os.fspath(tmp_path / "copy"))
        assert marked(tmp_path / "copy") == {float(taken)}
        everything.write(os.fspath(tmp_path / "changed"))
        assert taken not in marked(tmp_path / "changed")


@pytest.fixture
def held_back(monkeypatch):
    """Saves begin only when the event is set."""
    go_on, write = threading.Event(), tf.train.Checkpoint.write

    def late(self, path):
        assert go_on.wait(600)
        return write(self, path)

    monkeypatch.setattr(tf.train.Checkpoint, "write", late)
    yield go_on
    go_on.set()


def test_training_changes_weights_while_a_save_is_under_way(state, tmp_path, held_back):
    saver = Saver(tmp_path, state, FACTS, keep=3, keep_best=1)
    mark(state, 1)
    saver.begin(1)
    mark(state, 2)
    assert newest_first(tmp_path) == []
    held_back.set()
    saver.begin(2)  # waits for the first
    assert [c.step for c in newest_first(tmp_path) if c.step == 1] == [1]
    mark(state, 3)
    saver.background.wait()
    assert {c.step: marked(c.prefix) for c in newest_first(tmp_path)} == {1: {1.0}, 2: {2.0}}
    assert tf.train.latest_checkpoint(tmp_path) == os.fspath(tmp_path / "model.ckpt-2")


def test_it_works_in_one_thread_of_the_lowest_priority(everything, tmp_path, monkeypatch):
    """TensorFlow's own writing, too: the kernel counts what each thread has written."""
    found, looked, go_on = {}, threading.Event(), threading.Event()

    def look(path, sync=saving.sync):
        thread = found["thread"] = threading.get_native_id()
        counts = Path(f"/proc/self/task/{thread}/io").read_text(encoding="ascii")
        written = int(dict(line.split(": ") for line in counts.splitlines())["wchar"])
        found.update(nice=os.getpriority(os.PRIO_PROCESS, thread), written=written)
        looked.set()
        assert go_on.wait(600)
        sync(path)

    monkeypatch.setattr(saving, "sync", look)
    saver = Saver(tmp_path, everything, FACTS, keep=3, keep_best=1)
    saver.begin(1)
    assert looked.wait(600)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert found["nice"] == 19 > own
    assert not saver.background.has_ended(timeout_s=0.01)
    if os.geteuid() == 0:  # a save that is waited for is no longer the last to get the processor
        assert os.getpriority(os.PRIO_PROCESS, found["thread"]) == own
    go_on.set()
    saver.background.wait()
    assert found["written"] >= (tmp_path / "model.ckpt-1.data-00000-of-00001").stat().st_size


def test_an_error_comes_with_the_next_save_and_once(state, small_disk):
    run_dir = small_disk(4_000_000)
    saver = Saver(run_dir, state, FACTS, keep=3, keep_best=1)
    mark(state, 1)
    saver.save(1)
    (run_dir / "ballast").write_bytes(bytes(shutil.disk_usage(run_dir).free - 40960))
    saver.begin(2)
    with pytest.raises(RunError, match=r"No space left.*earlier checkpoints are intact"):
        saver.begin(3)
    saver.background.wait()  # it was said
    assert names(run_dir) == files_of("model.ckpt-1") | {"checkpoint", "ballast"}
    (run_dir / "ballast").unlink()
    saver.begin(4)
    saver.background.wait()
    assert newest(run_dir)[0].step == 4


def test_the_best_model_shares_the_files_of_the_checkpoint_of_its_step(state, tmp_path):
    saver = Saver(tmp_path, state, FACTS, keep=1, keep_best=2)
    mark(state, 7)
    saver.begin(7)
    best = saver.note(7, 2.5)
    assert best is not None
    verify(best)
    assert best.manifest == newest_first(tmp_path)[0].manifest
    for suffix in SUFFIXES[:3]:
        assert os.path.samefile(f"{best.prefix}{suffix}", tmp_path / f"model.ckpt-7{suffix}")
    mark(state, 8)
    saver.save(8)  # which drops the one before
    verify(best)
    assert marked(best.prefix) == {7.0}


def test_where_no_file_can_have_two_names_the_best_model_is_copied(state, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    saver = Saver(tmp_path, state, FACTS, keep=1, keep_best=2)
    mark(state, 7)
    saver.save(7)
    best = saver.note(7, 2.5)
    verify(best)
    assert not os.path.samefile(f"{best.prefix}.index", tmp_path / "model.ckpt-7.index")
