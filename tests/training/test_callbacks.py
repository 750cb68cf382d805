"""What happens around a step, without TensorFlow's steps: decisions from numbers."""

import dataclasses
import math
import os
import signal
import types

import pytest

from hvd_nmt import config as configuration
from hvd_nmt.common.errors import DivergedError, Preempted
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.telemetry.events import EventStore, read_metrics
from hvd_nmt.training import callbacks, cluster, horovod
from hvd_nmt.training.evaluation import Scores
from hvd_nmt.training.stop import StopRequest

RANK = horovod.Rank(0, 2, 0, 1, "v100a")
GOOD = {"gradient_norm": 1.5, "not_finite": 0.0, "own_not_finite": 0.0}
SKIPPED = {"gradient_norm": math.inf, "not_finite": 0.0, "own_not_finite": 0.0}


class Rate:
    """Stands in for the optimizer's learning-rate variable."""

    def assign(self, value):
        self.value = value


@pytest.fixture
def base():
    return configuration.presets()["base"][1]


def rate_of(base, start_step, batch):
    """The rate that is set before a batch of this start."""
    callback, rate = callbacks.LearningRate(start_step, Schedule.of(base)), Rate()
    callback.set_model(types.SimpleNamespace(optimizer=types.SimpleNamespace(learning_rate=rate)))
    callback.on_train_batch_begin(batch)
    return rate.value


def test_a_resumed_run_continues_the_schedule(base):
    assert rate_of(base, 0, 512) == rate_of(base, 500, 12) == Schedule.of(base).rate(512)


def stopper(start_step=0, with_loss_scale=False, guilty=(), monkeypatch=None):
    everyone = [["v100a", 0.0], ["v100b", 0.0]]
    for rank in guilty:
        everyone[rank][1] = 1.0
    if monkeypatch is not None:
        monkeypatch.setattr(horovod, "gather", lambda mine: everyone)
    return callbacks.StopIfNotFinite(start_step, RANK, with_loss_scale)


def test_finite_steps_go_on_without_asking_anyone():
    guard = stopper()  # a collective here would fail: Horovod is not running
    for batch in range(200):
        guard.on_train_batch_end(batch, GOOD)


def test_the_first_nan_in_float32_stops_and_names_rank_and_host(monkeypatch):
    guard = stopper(100, guilty=[1], monkeypatch=monkeypatch)
    guard.on_train_batch_end(0, GOOD)

    with pytest.raises(DivergedError) as raised:
        guard.on_train_batch_end(1, {**GOOD, "gradient_norm": math.nan, "not_finite": 1.0})

    assert "At step 102 the loss became NaN or Inf on rank 1 (v100b)." in str(raised.value)
    assert "rank 0" not in str(raised.value)


def test_a_nan_loss_stops_although_the_gradient_is_finite(monkeypatch):
    guard = stopper(guilty=[0, 1], monkeypatch=monkeypatch)

    with pytest.raises(DivergedError, match=r"on rank 0 \(v100a\), rank 1 \(v100b\)"):
        guard.on_train_batch_end(0, {**GOOD, "not_finite": 2.0})


def test_an_infinite_gradient_of_finite_losses_blames_no_rank(monkeypatch):
    guard = stopper(monkeypatch=monkeypatch)

    with pytest.raises(DivergedError, match=r"At step 1 the gradient became NaN or Inf\. No"):
        guard.on_train_batch_end(0, SKIPPED)


def test_a_loss_scale_may_skip_many_steps_but_not_for_ever(monkeypatch):
    guard = stopper(with_loss_scale=True, monkeypatch=monkeypatch)
    allowed = callbacks.SKIPPED_STEPS_IN_A_ROW
    for batch in range(allowed):
        guard.on_train_batch_end(batch, SKIPPED)
    guard.on_train_batch_end(allowed, GOOD)  # the row is broken
    for batch in range(allowed):
        guard.on_train_batch_end(batch, SKIPPED)

    with pytest.raises(DivergedError):
        guard.on_train_batch_end(allowed, SKIPPED)


@pytest.mark.parametrize(
    ("start_step", "every_steps", "steps", "compared"),
    [
        (0, 100, 250, [1, 100, 200]),
        (0, 1, 4, [1, 2, 3, 4]),
        (150, 100, 160, [151, 200, 300]),  # a resumed run compares its own first step
        (99, 100, 2, [100]),
    ],
)
def test_when_replicas_are_compared(monkeypatch, start_step, every_steps, steps, compared):
    seen = []
    monkeypatch.setattr(
        cluster,
        "require_equal_weights",
        lambda weights, step, rank: seen.append((weights, step, rank)),
    )
    check = callbacks.ReplicaCheck(start_step, every_steps, RANK)
    model = types.SimpleNamespace(replicated=["the weights"])
    check.set_model(model)

    for batch in range(steps):
        check.on_train_batch_end(batch, GOOD)

    assert seen == [(["the weights"], step, RANK) for step in compared]


def test_telemetry_runs_once_per_host(tmp_path):
    started = []
    for local_rank in (0, 1):
        rank = dataclasses.replace(RANK, local_rank=local_rank, local_size=2)
        telemetry = callbacks.Telemetry(tmp_path, 1.0, rank)
        started.append(telemetry._sampler is not None)
    assert started == [True, False]
    assert callbacks.Telemetry(tmp_path, 0.0, RANK)._sampler is None


# --- asked to stop ---


class Ending:
    """The last callbacks of a run of 20 steps on one rank that evaluates every 10.

    What they do is in `done`. The signals, the collectives and the records are the real ones; the
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
        self.evaluation = callbacks.Evaluation(config, start_step, self, self, self._store)
        self.checkpoints = callbacks.Checkpoints(config, start_step, self, self.evaluation)

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
        for callback in (self.evaluation, self.checkpoints):
            callback.on_train_begin()
        return self

    def step(self, step, stop=0.0):
        for callback in (self.evaluation, self.checkpoints):
            callback.on_train_batch_end(step - self._start_step - 1, {"stop": stop})

    def __exit__(self, *_):
        for callback in (self.evaluation, self.checkpoints):
            callback.on_train_end()
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
    StopRequest(speaks=False).say()
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
