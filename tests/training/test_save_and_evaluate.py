"""Stop, save, evaluate: which of them a step ends with, in which order."""

import contextlib
import dataclasses
import os
import signal
import time
import types

import pytest

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import Preempted
from hvd_nmt.config.exchange import PLAIN
from hvd_nmt.records.event_store import EventStore
from hvd_nmt.records.record import Evaluation
from hvd_nmt.training import horovod
from hvd_nmt.training.evaluation import Scores
from hvd_nmt.training.exchange.all_reduce import AllReduce
from hvd_nmt.training.save_and_evaluate import SaveAndEvaluate
from hvd_nmt.training.stop import StopRequest


@pytest.fixture
def base():
    return configuration.presets()["base"][1]


class Ending:
    """The callback in a run of 20 steps on one rank that evaluates every 10 and may save.

    What it does is in `done`. The signals, the collectives and the records are the real ones; the
    evaluation and the save, which would need a model, only note that they were asked for.
    """

    exchange = AllReduce()  # of the model

    def __init__(self, base, run_dir, during_evaluation=lambda: None, save_every=1000):
        rank = horovod.init()
        config = dataclasses.replace(
            base,
            run_dir=run_dir,
            training=dataclasses.replace(base.training, max_steps=20),
            evaluation=dataclasses.replace(base.evaluation, every_steps=10),
            checkpoints=dataclasses.replace(base.checkpoints, every_steps=save_every),
        )
        self.done, self._during = [], during_evaluation
        self._store = EventStore(RunDirectory(run_dir), [])
        run_setup = types.SimpleNamespace(config=config, rank=rank, exchange=PLAIN)
        self._callback = SaveAndEvaluate(
            run_setup, self, self, self._store, copies=1, trained_s=0.0
        )
        self._callback.set_model(self)

    def __call__(self, step, said):
        self.done.append("evaluate")
        self._during()
        of = Evaluation(step, 2.0, bleu=10.0, bleu_margin=1.0, chrf=20.0, seconds=7.0)
        return Scores(of, ["ein Hund"], [])

    def save(self, step):
        self.done.append(f"save {step}")

    def note(self, step, val_loss, bleu, chrf):
        self.done.append(f"note {step}")

    def __enter__(self):
        self._callback.on_train_begin()
        return self

    def step(self, step, stop=0.0):
        result = types.SimpleNamespace(step=step, stop=stop, end=0.0)
        self._callback.on_train_batch_end(step - 1, {"result": result})

    def __exit__(self, *_):
        self._callback.on_train_end()
        self._store.close()


def ask(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def test_the_wait_for_other_ranks_is_no_part_of_a_save(base, tmp_path, monkeypatch, capfd):
    now_s = 0.0

    @contextlib.contextmanager
    def cut_link():
        nonlocal now_s
        yield
        now_s = 20.0

    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    monkeypatch.setattr(horovod, "raise_on_all_ranks", cut_link)
    with Ending(base, tmp_path, save_every=1) as ending:
        ending.step(1)
    (save,) = (line for line in RunDirectory(tmp_path).read_metrics() if line["kind"] == "save")
    assert (save["wait_s"], save["others_s"]) == (0.0, 20.0)
    assert "saved in 0.0 s, other ranks heard of it 20.0 s later" in capfd.readouterr().out


def test_a_signal_is_answered_at_once_and_only_once(base, tmp_path, capfd):
    handler = signal.getsignal(signal.SIGTERM)
    with Ending(base, tmp_path) as ending:
        ask()
        assert capfd.readouterr().err == StopRequest.LINE
        ask()
        with pytest.raises(Preempted, match="after step 3; the checkpoint is saved"):
            ending.step(3, stop=1.0)
    StopRequest(announces=False).announce()  # of a rank that writes nothing
    assert StopRequest.LINE not in capfd.readouterr().err  # TensorFlow may talk of CUDA there
    assert signal.getsignal(signal.SIGTERM) == handler


def test_another_rank_was_asked(base, tmp_path, capfd):
    with Ending(base, tmp_path) as ending, pytest.raises(Preempted):
        ending.step(10, stop=1.0)
    assert ending.done == ["save 10"]
    assert capfd.readouterr().err.count(StopRequest.LINE) == 1


def test_a_signal_in_the_evaluation_stops_at_that_step(base, tmp_path):
    ending = Ending(base, tmp_path, during_evaluation=ask)
    with ending, pytest.raises(Preempted, match="after step 10"):
        ending.step(10)
    assert ending.done == ["save 10", "evaluate", "note 10"]


def test_an_evaluation_that_a_signal_cuts_off_is_left_to_the_next_start(base, tmp_path):
    """The step itself did not know: the signal came while it computed."""
    with Ending(base, tmp_path) as ending:
        ask()
        with pytest.raises(Preempted, match="after step 10"):
            ending.step(10)
    assert ending.done == ["save 10"]
    assert [line["kind"] for line in RunDirectory(tmp_path).read_metrics()] == ["save"]


def test_saves_between_evaluations(base, tmp_path):
    with Ending(base, tmp_path, save_every=5) as ending:
        for step in range(1, 18):
            ending.step(step)
        with pytest.raises(Preempted):
            ending.step(18, stop=1.0)
    assert ending.done == ["save 5", "save 10", "evaluate", "note 10", "save 15", "save 18"]


def test_a_save_that_fails_is_raised_before_the_evaluation(base, tmp_path):
    with Ending(base, tmp_path, save_every=10) as ending:
        ending.save = lambda step: 1 / 0
        with pytest.raises(ZeroDivisionError):
            ending.step(10)
    assert ending.done == []
