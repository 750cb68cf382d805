"""What happens around a step, without TensorFlow's steps: decisions from numbers."""

import dataclasses
import types

import pytest

from hvd_nmt import config as configuration
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.training import callbacks, cluster, horovod

RANK = horovod.Rank(0, 2, 0, 1, "v100a")


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
    check = callbacks.ReplicaCheck(start_step, RANK)
    monkeypatch.setattr(check, "EVERY_STEPS", every_steps)
    model = types.SimpleNamespace(replicated=["the weights"], islands=islands)
    check.set_model(model)

    for batch in range(steps):
        check.on_train_batch_end(batch)

    expected = [(["the weights"], step, islands is not None) for step in compared]
    if islands is not None:
        expected += [(["of all hosts"], step, False) for step in compared]
    assert sorted(seen) == sorted(expected)


def test_telemetry_runs_once_per_host(tmp_path):
    for local_rank, starts in ((0, True), (1, False)):
        rank = dataclasses.replace(RANK, local_rank=local_rank, local_size=2)
        assert (callbacks.Telemetry(tmp_path, 1.0, rank)._sampler is not None) == starts
    assert callbacks.Telemetry(tmp_path, 0.0, RANK)._sampler is None
