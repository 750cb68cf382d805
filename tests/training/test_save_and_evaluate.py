"""Stop, save, evaluate: which of them a step ends with, in which order."""

import dataclasses
import os
import signal

import pytest

from hvd_nmt import config as configuration
from hvd_nmt.common.errors import Preempted
from hvd_nmt.telemetry.events import EventStore, read_metrics
from hvd_nmt.training import horovod
from hvd_nmt.training.evaluation import Scores
from hvd_nmt.training.save_and_evaluate import SaveAndEvaluate
from hvd_nmt.training.stop import StopRequest


@pytest.fixture
def base():
    return configuration.presets()["base"][1]


class Ending:
    """The callback in a run of 20 steps on one rank that evaluates every 10.

    What it does is in `done`. The signals, the collectives and the records are the real ones; the
    evaluation and the save, which would need a model, only note that they were asked for.
    """

    def __init__(self, base, run_dir, start_step=0, during_evaluation=lambda: None):
        horovod.init()
        config = dataclasses.replace(
            base,
            run_dir=run_dir,
            training=dataclasses.replace(base.training, max_steps=20),
            evaluation=dataclasses.replace(base.evaluation, every_steps=10),
            checkpoints=dataclasses.replace(base.checkpoints, every_steps=1000),
        )
        self.done, self._start_step, self._during = [], start_step, during_evaluation
        self._store = EventStore(run_dir)
        self._callback = SaveAndEvaluate(config, start_step, self, self, self._store)

    def __call__(self):
        self.done.append("evaluate")
        self._during()
        return Scores(2.0, 2.0, 10.0, 1.0, 20.0, "", 0.1, ["ein Hund"], 7.0)

    def samples(self, scores):
        return ""

    def save(self, step, val_loss=None):
        self.done.append(f"save {step} {val_loss}")

    def save_best(self, step, val_loss):
        self.done.append(f"best {step}")

    def __enter__(self):
        self._callback.on_train_begin()
        return self

    def step(self, step, stop=0.0):
        self._callback.on_train_batch_end(step - self._start_step - 1, {"stop": stop})

    def __exit__(self, *_):
        self._callback.on_train_end()
        self._store.close()


def ask(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_answered_at_once_and_only_once(base, tmp_path, capfd, number):
    handler = signal.getsignal(number)
    with Ending(base, tmp_path) as ending:
        ask(number)
        assert capfd.readouterr().err == StopRequest.LINE
        ask(number)
        with pytest.raises(Preempted, match="after step 3; the checkpoint is saved"):
            ending.step(3, stop=1.0)
    assert StopRequest.LINE not in capfd.readouterr().err  # TensorFlow may talk of CUDA there
    assert signal.getsignal(number) == handler


def test_a_rank_that_writes_nothing_says_nothing(capfd):
    StopRequest(announces=False).announce()
    assert StopRequest.LINE not in capfd.readouterr().err


def test_another_rank_was_asked(base, tmp_path, capfd):
    with Ending(base, tmp_path) as ending, pytest.raises(Preempted):
        ending.step(10, stop=1.0)
    assert ending.done == ["save 10 None"]
    assert capfd.readouterr().err.count(StopRequest.LINE) == 1


def test_no_evaluation_comes_before_the_save(base, tmp_path):
    """The step itself did not know: the signal came while it computed."""
    with Ending(base, tmp_path) as ending:
        ask()
        with pytest.raises(Preempted, match="after step 10"):
            ending.step(10)
    assert ending.done == ["save 10 None"]


def test_a_signal_in_the_evaluation_stops_at_that_step(base, tmp_path):
    ending = Ending(base, tmp_path, during_evaluation=ask)
    with ending, pytest.raises(Preempted, match="after step 10"):
        ending.step(10)
    assert ending.done == ["evaluate", "best 10", "save 10 2.0"]


def test_the_evaluation_that_was_left_out_is_made_when_the_run_resumes(base, tmp_path):
    with Ending(base, tmp_path) as stopped:
        ask()
        with pytest.raises(Preempted):
            stopped.step(10)
    assert read_metrics(tmp_path) == []
    with Ending(base, tmp_path, start_step=10) as resumed:
        assert resumed.done == ["evaluate", "best 10"]
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [10]
    for start_step in (0, 9, 10):  # nothing is missing there
        with Ending(base, tmp_path, start_step) as again:
            assert again.done == []


def test_the_last_step_is_saved_first_and_evaluated_all_the_same(base, tmp_path):
    with Ending(base, tmp_path) as ending:
        ask()
        ending.step(20)
    assert ending.done == ["save 20 None", "evaluate", "best 20"]


def test_without_a_signal_the_save_knows_the_loss(base, tmp_path, capfd):
    with Ending(base, tmp_path) as ending:
        for step in range(1, 21):
            ending.step(step)
    assert ending.done == ["evaluate", "best 10", "evaluate", "best 20", "save 20 2.0"]
    assert StopRequest.LINE not in capfd.readouterr().err
