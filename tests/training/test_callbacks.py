"""What happens around a step, without TensorFlow's steps: decisions from numbers."""

import dataclasses
import math
import types

import pytest

from hvd_nmt import config as configuration
from hvd_nmt.common.errors import DivergedError
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.training import callbacks, cluster, horovod

RANK = horovod.Rank(0, 2, 0, 1, "v100a")
GOOD = {"gradient_norm": 1.5, "not_finite": 0.0, "own_not_finite": 0.0, "loss_scale": 0.0,
        "left_out": False}  # fmt: skip
SKIPPED = {**GOOD, "gradient_norm": math.inf, "skipped_steps": 40.0}


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


@pytest.fixture
def stopper(monkeypatch):
    """Makes the callback; `not_finite` says which of two ranks find their own loss NaN."""

    def make(start_step=0, not_finite=(0, 0)):
        hosts = ("v100a", "v100b")
        by_rank = [list(each) for each in zip(hosts, not_finite, strict=True)]
        monkeypatch.setattr(horovod, "gather", lambda value: by_rank)
        return callbacks.StopIfNotFinite(start_step, RANK)

    return make


def test_finite_steps_go_on_without_asking_anyone(stopper, monkeypatch):
    guard = stopper()
    monkeypatch.setattr(horovod, "gather", lambda value: pytest.fail("a collective"))
    for batch in range(200):
        guard.on_train_batch_end(batch, GOOD)


@pytest.mark.parametrize(
    ("not_finite", "norm", "words"),
    [
        ((0, 1), math.nan, "At step 102 the loss became NaN or Inf on rank 1 (v100b)."),
        ((1, 1), 1.5, "on rank 0 (v100a), rank 1 (v100b)."),
        ((0, 0), math.inf, "At step 102 the gradient became NaN or Inf. No"),  # of finite losses
    ],
)
def test_the_first_nan_in_float32_stops_and_names_rank_and_host(stopper, not_finite, norm, words):
    guard = stopper(100, not_finite)
    guard.on_train_batch_end(0, GOOD)
    with pytest.raises(DivergedError) as raised:
        guard.on_train_batch_end(
            1, {**GOOD, "gradient_norm": norm, "not_finite": float(sum(not_finite))}
        )
    assert words in str(raised.value)
    assert ("rank 0" in str(raised.value)) == not_finite[0]


def test_float16_may_skip_steps_while_its_loss_scale_can_fall(stopper):
    guard = stopper()
    for batch, scale in enumerate((2.0**15, 2.0**14, 2.0)):
        guard.on_train_batch_end(batch, {**SKIPPED, "loss_scale": scale})
    guard.on_train_batch_end(3, {**GOOD, "loss_scale": 1.0})

    sentence = "in float16 at a loss scale of 1, the lowest; 40 steps of this run changed no weight"
    with pytest.raises(DivergedError, match=sentence):
        guard.on_train_batch_end(4, {**SKIPPED, "loss_scale": 1.0})


@pytest.mark.parametrize(
    ("start_step", "every_steps", "steps", "compared"),
    [
        (0, 100, 250, [1, 100, 200]),
        (0, 1, 4, [1, 2, 3, 4]),
        (150, 100, 160, [151, 200, 300]),  # a resumed run compares its own first step
        (99, 100, 2, [100]),
    ],
)
@pytest.mark.parametrize("islands", [None, types.SimpleNamespace(common=["of all hosts"])])
def test_when_replicas_are_compared(monkeypatch, start_step, every_steps, steps, compared, islands):
    seen = []
    monkeypatch.setattr(
        cluster,
        "require_equal_weights",
        lambda weights, step, rank, within_hosts=False: seen.append((weights, step, within_hosts)),
    )
    check = callbacks.ReplicaCheck(start_step, every_steps, RANK)
    model = types.SimpleNamespace(replicated=["the weights"], islands=islands)
    check.set_model(model)

    for batch in range(steps):
        check.on_train_batch_end(batch, GOOD)

    expected = [(["the weights"], step, islands is not None) for step in compared]
    if islands is not None:
        expected += [(["of all hosts"], step, False) for step in compared]
    assert sorted(seen) == sorted(expected)


def test_telemetry_runs_once_per_host(tmp_path):
    for local_rank, starts in ((0, True), (1, False)):
        rank = dataclasses.replace(RANK, local_rank=local_rank, local_size=2)
        assert (callbacks.Telemetry(tmp_path, 1.0, rank)._sampler is not None) == starts
    assert callbacks.Telemetry(tmp_path, 0.0, RANK)._sampler is None
