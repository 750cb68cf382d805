"""What happens around a step, without TensorFlow's steps: decisions from numbers.

The sentences of whole runs that meet NaN are in test_horovod.py.
"""

import contextlib
import dataclasses
import math
import types
from pathlib import Path

import pytest
import tf_keras as keras

from hvd_nmt.common import jsonl
from hvd_nmt.common.errors import DivergedError
from hvd_nmt.training import callbacks, cluster, horovod
from hvd_nmt.training.callbacks import NotFiniteGuard
from hvd_nmt.training.exchange.all_reduce import AllReduce
from hvd_nmt.training.exchange.base import Replicas

RANK = horovod.Rank(0, 2, 0, 1, "v100a")


@pytest.mark.parametrize(
    ("start_step", "every_steps", "steps", "compared"),
    [
        (0, 100, 250, [1, 100, 200]),
        (0, 1, 4, [1, 2, 3, 4]),
        (150, 100, 160, [151, 200, 300]),  # a resumed run compares its own first step
    ],
)
def test_when_replicas_are_compared(monkeypatch, start_step, every_steps, steps, compared):
    seen = []
    monkeypatch.setattr(
        cluster,
        "require_equal_weights",
        lambda weights, step, rank, within_hosts=False: seen.append((weights, step, within_hosts)),
    )
    check = callbacks.ReplicaCheck(RANK)
    monkeypatch.setattr(check, "EVERY_STEPS", every_steps)
    replicas = [Replicas(["the weights"], within_hosts=True), Replicas(["of all hosts"])]
    exchange = types.SimpleNamespace(replicas=lambda variables: replicas)
    check.set_model(types.SimpleNamespace(replicated=["the weights"], exchange=exchange))

    for batch in range(steps):
        result = types.SimpleNamespace(step=start_step + batch + 1)
        check.on_train_batch_end(batch, {"result": result})

    expected = [(weights, step, within) for step in compared for weights, within in replicas]
    assert seen == expected


def test_telemetry_runs_once_per_host_with_the_time_of_the_first_rank(tmp_path, monkeypatch):
    monkeypatch.setattr(horovod, "gather", lambda value: [(*value[:2], 5e9, ["::7"]), value])
    made = []
    monkeypatch.setattr(callbacks, "Sampler", lambda *arguments: made.append(arguments[-2:]))
    samples = keras.callbacks.LambdaCallback
    second = dataclasses.replace(RANK, local_rank=1, local_size=2)
    assert isinstance(callbacks.telemetry(tmp_path, 1.0, RANK, 0.0), samples)
    assert not isinstance(callbacks.telemetry(tmp_path, 1.0, second, 0.0), samples)
    assert not isinstance(callbacks.telemetry(tmp_path, 0.0, RANK, 0.0), samples)
    assert made == [(pytest.approx(5e9 - jsonl.uptime_s(), abs=600), {"::7"})]


GOOD = {"gradient_norm": 1.5, "loss_scale": 0.0}
STEPS_PER_EPOCH = 40


@pytest.fixture
def guard(monkeypatch):
    """Makes a function that hears of steps; `not_finite`: which of two ranks find their loss NaN.

    It gives the steps whose sentences were named.
    """

    def make(not_finite=(0, 0)):
        monkeypatch.setattr(horovod, "raise_on_all_ranks", contextlib.nullcontext)
        named = []
        monkeypatch.setattr(
            NotFiniteGuard, "_name_sentences", lambda self, step, what, ranks: named.append(step)
        )
        plan = types.SimpleNamespace(
            position=lambda step: types.SimpleNamespace(epoch=step // STEPS_PER_EPOCH)
        )
        config = types.SimpleNamespace(run_dir=Path("run"))
        setup = types.SimpleNamespace(
            config=config, rank=RANK, batch_plan=plan, hosts=["v100a", "v100b"]
        )
        made = NotFiniteGuard(setup)

        def after(number, **numbers):
            numbers = {**GOOD, "rank_not_finite": not_finite, **numbers}
            left_out = AllReduce().is_left_out(*numbers.values())
            made.after_step(types.SimpleNamespace(step=number, is_left_out=left_out, **numbers))
            return named

        return after

    return make


def test_finite_steps_go_on_without_asking_anyone(guard, monkeypatch):
    after = guard()
    monkeypatch.setattr(horovod, "raise_on_all_ranks", lambda: pytest.fail("a collective"))
    for number in range(1, 201):
        assert after(number) == []


@pytest.mark.parametrize(
    ("not_finite", "norm", "words"),
    [
        ((0, 1), math.nan, "At step 12 the loss became NaN or Inf on rank 1 (v100b), step 3 in a"),
        ((1, 1), 1.5, "on rank 0 (v100a), rank 1 (v100b), step 3 in a row."),
        ((0, 0), math.inf, "the gradient became NaN or Inf, step 3 in a row. These"),
    ],
)
def test_the_third_in_a_row_ends_the_run_and_names_rank_and_host(guard, not_finite, norm, words):
    after = guard(not_finite)
    assert after(10, gradient_norm=norm) == [10]
    assert after(11, gradient_norm=norm) == [10, 11]
    with pytest.raises(DivergedError) as raised:
        after(12, gradient_norm=norm)
    assert words in str(raised.value)


def test_the_tenth_of_an_epoch_ends_the_run(guard):
    after = guard()
    for number in [*range(2, 20, 2), *range(STEPS_PER_EPOCH + 2, STEPS_PER_EPOCH + 20, 2)]:
        after(number, gradient_norm=math.nan)
        after(number + 1)
    with pytest.raises(DivergedError, match="step 10 of this epoch"):
        after(STEPS_PER_EPOCH + 30, gradient_norm=math.nan)


def test_float16_may_skip_steps_while_its_loss_scale_can_fall(guard):
    after = guard()
    for number, scale in enumerate((2.0**15, 2.0**14, 2.0)):
        assert after(number + 1, gradient_norm=math.inf, loss_scale=scale) == []
    after(4, gradient_norm=math.inf, loss_scale=1.0)
    after(5, gradient_norm=math.inf, loss_scale=1.0)
    with pytest.raises(DivergedError, match="at a loss scale of 1, the lowest, step 3 in a row"):
        after(6, gradient_norm=math.inf, loss_scale=1.0)
