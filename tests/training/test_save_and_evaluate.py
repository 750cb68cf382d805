"""Stop, save, evaluate: which of them a step ends with, in which order."""

import contextlib
import dataclasses
import os
import signal
import time

import pytest

import toy
from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.find import best_first, newest_first
from hvd_nmt.common.errors import Preempted
from hvd_nmt.config.exchange import Exchange, Joined
from hvd_nmt.telemetry.events import EventStore, read_metrics
from hvd_nmt.training import horovod
from hvd_nmt.training.early_end import EarlyEnd
from hvd_nmt.training.evaluation import Scores
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

    def __init__(
        self, base, run_dir, start_step=0, during_evaluation=lambda: None, save_every=1000,
        training=None,
    ):  # fmt: skip
        horovod.init()
        config = dataclasses.replace(
            base,
            run_dir=run_dir,
            training=training or dataclasses.replace(base.training, max_steps=20),
            evaluation=dataclasses.replace(base.evaluation, every_steps=10),
            checkpoints=dataclasses.replace(base.checkpoints, every_steps=save_every),
        )
        self.done, self._start_step, self._during = [], start_step, during_evaluation
        self._store = EventStore(run_dir)
        early_end = EarlyEnd(config, 0.0)
        self._callback = SaveAndEvaluate(
            config, start_step, self, self, self._store, early_end=early_end,
            stop_request=StopRequest(announces=True),
        )  # fmt: skip
        self._callback.set_model(self)
        self.exchange = Exchange()

    def __call__(self):
        self.done.append("evaluate")
        self._during()
        return Scores(2.0, 2.0, 10.0, 1.0, 20.0, "", 0.1, ["ein Hund"], 7.0)

    def samples(self, scores):
        return ""

    def save(self, step, in_background, read_back):
        assert read_back or not in_background
        how = " in background" if in_background else "" if read_back else " unread"
        self.done.append(f"save {step}{how}")

    def wait(self, read_back=True):
        self.done.append("wait" if read_back else "wait unread")

    def join(self, step, joined):
        assert joined == Joined.EVERYTHING

    def note(self, step, val_loss, bleu, chrf, ter):
        self.done.append(f"note {step}")

    def __enter__(self):
        with contextlib.ExitStack() as undo:
            undo.callback(self._store.close)
            self.ended = self._callback.make_up(sync_every=1)
            undo.pop_all()
        self._callback.on_train_begin()
        return self

    def step(self, step, stop=0.0):
        self._callback.on_train_batch_end(step - self._start_step - 1, {"stop": stop, "end": 0.0})

    def __exit__(self, *_):
        self._callback.on_train_end()
        self._store.close()


def ask(number=signal.SIGTERM):
    os.kill(os.getpid(), number)


def heard(capfd):
    """What stderr has got when the line is on it: a thread writes it."""
    said, deadline = "", time.monotonic() + 600
    while "\n" not in said and time.monotonic() < deadline:
        time.sleep(0.01)
        said += capfd.readouterr().err
    return said


def stop_at(step, base, run_dir):
    """A run that a signal stops: what it did."""
    with Ending(base, run_dir) as ending:
        ask()
        with pytest.raises(Preempted, match=f"after step {step}"):
            ending.step(step)
    return ending.done


def test_a_signal_is_answered_at_once_and_only_once(base, tmp_path, capfd):
    handler = signal.getsignal(signal.SIGTERM)
    with Ending(base, tmp_path) as ending:
        ask()
        assert heard(capfd) == StopRequest.LINE
        ask()
        with pytest.raises(Preempted, match="after step 3; the checkpoint is saved"):
            ending.step(3, stop=1.0)
    StopRequest(announces=False).announce()  # of a rank that writes nothing
    assert StopRequest.LINE not in capfd.readouterr().err  # TensorFlow may talk of CUDA there
    assert signal.getsignal(signal.SIGTERM) == handler


def test_another_rank_was_asked(base, tmp_path, capfd):
    with Ending(base, tmp_path) as ending, pytest.raises(Preempted):
        ending.step(10, stop=1.0)
    assert ending.done == ["save 10 unread", "wait unread"]
    assert capfd.readouterr().err.count(StopRequest.LINE) == 1


def test_a_signal_in_the_evaluation_stops_at_that_step(base, tmp_path):
    ending = Ending(base, tmp_path, during_evaluation=ask)
    with ending, pytest.raises(Preempted, match="after step 10"):
        ending.step(10)
    assert ending.done == ["wait", "evaluate", "wait", "note 10", "save 10 unread", "wait unread"]


@pytest.mark.parametrize("step", [10, 20])
def test_the_evaluation_that_was_left_out_is_made_when_the_run_resumes(base, tmp_path, step):
    """Left out before the save; the step itself did not know: the signal came while it computed."""
    assert stop_at(step, base, tmp_path) == [f"save {step} unread", "wait unread"]
    assert read_metrics(tmp_path) == []
    with Ending(base, tmp_path, start_step=step) as resumed:
        assert resumed.done == ["wait", "evaluate", "wait", f"note {step}"]
    lines = read_metrics(tmp_path)
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [step]
    for start_step in (0, step - 1, step):  # nothing is missing there
        with Ending(base, tmp_path, start_step) as again:
            assert again.done == []


def test_the_next_start_knows_that_the_last_evaluation_was_the_last(base, tmp_path):
    """A kill came between the scores and the end that they decided."""
    ends = dataclasses.replace(base.evaluation, stop_after=1)
    base = dataclasses.replace(base, evaluation=ends)
    training = dataclasses.replace(base.training, max_steps=100)
    with Ending(base, tmp_path, save_every=10, training=training) as killed:
        killed.step(10)
        killed.step(20)
    for start_step, ended in ((10, False), (20, True)):
        with Ending(base, tmp_path, start_step, training=training) as resumed:
            assert resumed.ended == ended
            assert resumed.done == []


def test_an_evaluation_whose_best_model_could_not_be_saved_is_made_again(base, tmp_path):
    with Ending(base, tmp_path) as failing:
        failing.note = lambda *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            failing.step(10)
    with Ending(base, tmp_path, start_step=10) as resumed:
        assert resumed.done == ["wait", "evaluate", "wait", "note 10"]


def test_a_signal_in_an_evaluation_that_is_made_up_stops_before_the_next_step(base, tmp_path):
    stop_at(10, base, tmp_path)
    resumed = Ending(base, tmp_path, start_step=10, during_evaluation=ask)
    with pytest.raises(Preempted, match="after step 10; the checkpoint is saved"), resumed:
        pass
    assert resumed.done == ["wait", "evaluate", "wait", "note 10"]
    with Ending(base, tmp_path, start_step=10) as again:
        assert again.done == []


def test_at_a_step_with_both_the_checkpoint_comes_first(base, tmp_path, capfd):
    with Ending(base, tmp_path) as ending:
        for step in range(1, 21):
            ending.step(step)
    assert ending.done == [
        "wait", "evaluate", "wait", "note 10",
        "save 20 in background", "evaluate", "wait", "note 20",
    ]  # fmt: skip
    assert StopRequest.LINE not in capfd.readouterr().err


def test_training_and_evaluations_go_on_during_a_save(base, tmp_path):
    with Ending(base, tmp_path, save_every=5) as ending:
        for step in range(1, 18):
            ending.step(step)
        with pytest.raises(Preempted):
            ending.step(18, stop=1.0)
    assert ending.done == [
        "save 5 in background", "save 10 in background", "wait", "evaluate", "wait", "note 10",
        "save 15 in background", "save 18 unread", "wait unread",
    ]  # fmt: skip


def test_a_signal_during_a_save_in_the_background_waits_for_it(base, tmp_path):
    with Ending(base, tmp_path, save_every=10) as ending:
        ending.step(10)
        save, ending.done[:] = ending.save, []
        ending.save = lambda *args, **how: (save(*args, **how), ask())
        with pytest.raises(Preempted, match="after step 20; the checkpoint is saved"):
            ending.step(20)
    assert ending.done == ["save 20 in background", "wait unread"]


def test_a_save_that_fails_beside_an_evaluation_is_no_failed_evaluation(base, tmp_path):
    with Ending(base, tmp_path, save_every=10) as ending:
        ending.step(10)
        ending.wait = lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            ending.step(20)
    assert ending.done[-1] == "evaluate"
    assert not (tmp_path / "evaluating.json").exists()


KILLED_IN_EVALUATION = """
import os, signal, sys
from hvd_nmt import train
import tensorflow
from hvd_nmt.training.evaluation import Evaluator
tensorflow.config.run_functions_eagerly(True)
Evaluator.__call__ = lambda self: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(train.main())
"""


@pytest.mark.long
def test_a_kill_in_the_last_evaluation_costs_no_step(toy_commands, toy_data, tmp_path):
    """The next start evaluates and trains nothing; the one after it does nothing."""
    options = toy.train_options(toy_data, "run", 4)
    killed = toy_commands.run(KILLED_IN_EVALUATION, *options, cwd=tmp_path)
    assert killed.returncode == -signal.SIGKILL
    for words in ("validation loss", "has done all 4 steps"):
        done = toy_commands.train(*options, cwd=tmp_path, eager=True)
        assert done.returncode == 0, done.stderr
        assert words in done.stdout
        assert "step 4/4" not in done.stdout
    (evaluation,) = toy.metrics(tmp_path / "run", "eval")
    (newest,), (best,) = newest_first(tmp_path / "run"), best_first(tmp_path / "run")
    assert newest.manifest.val_loss == best.manifest.val_loss == evaluation["eval_loss"]


def test_an_evaluation_that_never_ends_is_passed_over(base, tmp_path, capsys):
    """Once it is tried again, where it was begun or by the next start."""
    for start_step in (0, 10):
        failing = Ending(base, tmp_path, start_step, during_evaluation=lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError), failing:
            failing.step(10)
        assert failing.done == ["wait", "evaluate"]
    with Ending(base, tmp_path, start_step=10) as resumed:
        assert "of step 10 was begun 2 times and never ended" in capsys.readouterr().out
        resumed.step(20)
    assert resumed.done == ["save 20 in background", "wait", "evaluate", "wait", "note 20"]
    with Ending(base, tmp_path, start_step=10) as again:  # that one ended, so all may again
        assert again.done == ["wait", "evaluate", "wait", "note 10"]
