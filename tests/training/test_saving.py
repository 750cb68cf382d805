"""When a checkpoint is written beside the training, and when its error is heard."""

import errno
import os

import pytest
import tensorflow as tf

from hvd_nmt.checkpoints import meta_graph
from hvd_nmt.checkpoints import saver as savers
from hvd_nmt.checkpoints.find import best_first, newest_first
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.common.errors import RunError
from hvd_nmt.telemetry.events import EventStore, read_metrics
from hvd_nmt.training import horovod
from hvd_nmt.training.saving import Saving
from marked_run import FACTS


@pytest.fixture
def state(monkeypatch):
    monkeypatch.setattr(meta_graph, "export", lambda *_: b"graph")
    return tf.train.Checkpoint(model=tf.train.Checkpoint(weight=tf.Variable([1.0, 2.0])))


@pytest.fixture
def begin(state, tmp_path):
    """A function that begins the saves of one rank."""
    stores = []

    def saving():
        horovod.init()
        store = EventStore(tmp_path)
        stores.append(store)
        saver = Saver(tmp_path, state, FACTS, keep=3, keep_best=2)
        return Saving(saver, store), saver

    yield saving
    for store in stores:
        store.close()


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("heard", ["save", "wait"])
def test_an_error_is_heard_where_all_ranks_meet_next(begin, monkeypatch, heard):
    saving, saver = begin()
    saving.save(1, in_background=True)
    saving.wait()
    with monkeypatch.context() as patch:
        patch.setattr(savers, "sync", full_disk)
        saving.save(2, in_background=True)
        assert saver.background.has_ended()
    with pytest.raises(RunError, match="No space left") as refused:
        saving.save(3, in_background=True) if heard == "save" else saving.wait()
    assert (refused.value.exit_code, refused.value.on_all_ranks) == (4, True)
    assert [c.step for c in newest_first(saver._run_dir)] == [1]


def test_what_is_written_and_what_is_noted_of_it(begin, tmp_path):
    saving, _ = begin()
    for step, in_background in ((1, True), (2, False)):
        saving.save(step, in_background=in_background)
        saving.wait()
        saving.note(step, 4.0 - step, 20.0, 40.0)
    assert [c.step for c in best_first(tmp_path)] == [2, 1]
    assert newest_first(tmp_path)[0].manifest.val_loss == 2.0
    first, second = (line for line in read_metrics(tmp_path) if line["kind"] == "save")
    assert (first["step"], second["step"]) == (1, 2)
    assert first["background_s"] > 0 == second["background_s"]
