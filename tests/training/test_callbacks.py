"""What happens around a step, without TensorFlow's steps: decisions from numbers."""

import dataclasses
import math
import types

import pytest

from hvd_nmt import config as configuration
from hvd_nmt.errors import DivergedError
from hvd_nmt.training import callbacks, cluster, horovod
from hvd_nmt.training.optimizer import transformer_policy

ME = horovod.Rank(0, 2, 0, 1, "v100a")
GOOD = {"gradient_norm": 1.5, "not_finite": 0.0, "own_not_finite": 0.0}
SKIPPED = {"gradient_norm": math.inf, "not_finite": 0.0, "own_not_finite": 0.0}


class Rate:
    """Stands in for the optimizer's learning-rate variable."""

    def assign(self, value):
        self.value = value


def schedule_of(config, start_step=0):
    schedule = callbacks.WarmupSchedule(config, start_step)
    rate = Rate()
    schedule.set_model(types.SimpleNamespace(optimizer=types.SimpleNamespace(learning_rate=rate)))
    return schedule, rate


@pytest.fixture
def base():
    return configuration.presets()["base"][1]


def test_the_rate_of_the_recipe(base):
    """OpenSeq2Seq's transformer_policy, from its own formula, around the end of the warm-up."""
    schedule, rate = schedule_of(base)
    for step in (0, 1, 3999, 7998, 7999, 8000, 8001, 31_999, 299_999):
        schedule.on_train_batch_begin(step)
        wanted = 2.0 * 512**-0.5 * min((step + 1) * 8000**-1.5, (step + 1) ** -0.5)
        assert rate.value == pytest.approx(wanted, rel=1e-12)


def test_the_rate_rises_in_a_line_peaks_and_falls_with_the_root(base):
    rates = [transformer_policy(step, 2.0, 512, 8000) for step in range(32_000)]

    assert rates[0] > 0  # the first step is not wasted
    assert max(range(32_000), key=rates.__getitem__) == 7999
    assert rates[7999] == pytest.approx(base.training.peak_learning_rate(512), rel=1e-12)
    assert rates[3999] == pytest.approx(rates[7999] / 2)
    assert rates[31_999] == pytest.approx(rates[7999] / 2)


def test_a_resumed_run_continues_the_schedule(base):
    fresh, rate = schedule_of(base)
    resumed, resumed_rate = schedule_of(base, start_step=500)

    fresh.on_train_batch_begin(512)
    resumed.on_train_batch_begin(12)

    assert rate.value == resumed_rate.value


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (89, "1 min"), (91, "2 min"),
        (3599, "1 h 00 min"), (3600, "1 h 00 min"), (11_100, "3 h 05 min"),
        (28 * 3600, "28 h 00 min"),
    ],
)  # fmt: skip
def test_a_duration_as_a_person_says_it(seconds, text):
    assert callbacks.duration(seconds) == text


def test_a_duration_that_rounds_up_to_a_minute():
    assert callbacks.duration(59.7) == "1 min"


def stopper(start_step=0, with_loss_scale=False, guilty=(), monkeypatch=None):
    everyone = [["v100a", 0.0], ["v100b", 0.0]]
    for rank in guilty:
        everyone[rank][1] = 1.0
    if monkeypatch is not None:
        monkeypatch.setattr(horovod, "gather", lambda mine: everyone)
    return callbacks.StopIfNotFinite(start_step, ME, with_loss_scale)


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
        cluster, "require_equal_weights", lambda weights, step, me: seen.append((weights, step, me))
    )
    check = callbacks.ReplicaCheck(start_step, every_steps, ME)
    model = types.SimpleNamespace(replicated=["the weights"])
    check.set_model(model)

    for batch in range(steps):
        check.on_train_batch_end(batch, GOOD)

    assert seen == [(["the weights"], step, ME) for step in compared]


def test_telemetry_runs_once_per_host(tmp_path):
    started = []
    for local_rank in (0, 1):
        me = dataclasses.replace(ME, local_rank=local_rank, local_size=2)
        telemetry = callbacks.Telemetry(tmp_path, 1.0, me)
        started.append(telemetry._sampler is not None)
    assert started == [True, False]
    assert callbacks.Telemetry(tmp_path, 0.0, ME)._sampler is None
