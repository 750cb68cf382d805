"""When a checkpoint is written beside the training, and when its error is heard."""

import dataclasses
import errno
import os

import pytest
import tensorflow as tf

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints import meta_graph
from hvd_nmt.checkpoints import saver as savers
from hvd_nmt.checkpoints.find import best_first, newest_first
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.common.errors import RunError
from hvd_nmt.telemetry.events import EventStore
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

    def saving(background=True):
        config = configuration.presets()["base"][1]
        kept = dataclasses.replace(config.checkpoints, background=background)
        config = dataclasses.replace(config, run_dir=tmp_path, checkpoints=kept)
        store = EventStore(tmp_path)
        stores.append(store)
        saver = Saver(tmp_path, state, FACTS, keep=3, keep_best=2)
        return Saving(config, horovod.init(), (0,), saver, store), saver

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


@pytest.mark.parametrize("background", [True, False])
def test_the_background_can_be_switched_off(begin, tmp_path, monkeypatch, background):
    saving, saver = begin(background)
    begun = []
    monkeypatch.setattr(saver.background, "begin", lambda work: (begun.append(1), work()))
    saving.save(1, in_background=True)
    saving.wait()
    saving.note(2, 3.0, 20.0, 40.0)
    saving.note(1, 2.0, 21.0, 41.0)
    saving.wait()
    assert len(begun) == (2 if background else 0)  # the checkpoint, and a best model of its own
    assert [c.step for c in best_first(tmp_path)] == [1, 2]
    assert newest_first(tmp_path)[0].manifest.val_loss == 2.0
