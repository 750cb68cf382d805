"""From a measured step and all-reduce to step time, run time, verdict and advice."""

import dataclasses

import pytest

from hvd_nmt.config import TrainingConfig, presets
from hvd_nmt.diagnosis.hosts import Answer, Host
from hvd_nmt.diagnosis.measurement import Measurement
from hvd_nmt.diagnosis.planned_run import PlannedRun
from hvd_nmt.diagnosis.prediction import Prediction
from hvd_nmt.explain.exchange_cost import HIDDEN_SHARE

BASE = presets()["base"][1]


def predict(exchange="float32", hosts=2, **changes):
    """What the recipe will be like on hosts with 2 ranks each."""
    training = TrainingConfig(max_steps=50_000, tokens_per_step=31_200, exchange=exchange)
    answers = [Answer(Host(name, 2)) for name in ("a", "b")[:hosts]]
    measured = Measurement(all_reduce_s=1.7, latency_s=0.002, compute_s=0.1, slices=None)
    run = PlannedRun(dataclasses.replace(BASE, training=training), answers)
    return Prediction(run, dataclasses.replace(measured, **changes))


def test_the_recipe_on_two_hosts():
    found = predict()
    assert found.run.gradient_bytes == 243_523_584
    assert found.sent_bytes == pytest.approx(365.3e6, rel=1e-3)
    assert found.bandwidth_MB_per_s == pytest.approx(214.9, abs=0.1)
    step_s = 0.1 + 1.7 - HIDDEN_SHARE * 0.1
    assert found.step.total_s == pytest.approx(step_s)
    assert step_s * 50_000 / 3600 == pytest.approx(24.7, abs=0.05)  # they reported 22 to 28 h
    assert found.verdict == "network-bound"


def test_advice_is_what_shortens_the_communication_best_first():
    found = predict().step.advice()
    assert found[1].what == "a network 10 times as fast"
    hidden_s = HIDDEN_SHARE * 0.1
    assert found[1].predicted_step_s == pytest.approx(0.1 + 0.002 + 1.698 / 10 - hidden_s)


def test_the_verdict_is_by_what_a_step_computes_for():
    fast = predict(all_reduce_s=0.02, compute_s=0.5)
    assert (fast.verdict, fast.step.advice()) == ("compute-bound", [])
    assert predict(hosts=1).verdict == "communication-bound"
    assert predict(compute_s=3.7).verdict == "network-bound"
    assert predict(compute_s=3.8).verdict == "compute-bound"


def test_what_is_said_of_a_run(golden_page):
    """The exchange, and advice."""
    said = {"the recipe": predict(), "float16": predict("float16"), "one host": predict(hosts=1)}
    parts = ["\n".join([f"# {name}", *found.lines()]) for name, found in said.items()]
    golden_page("doctor-prediction.txt", "\n\n".join(parts) + "\n")


def test_the_exchange_is_that_of_the_configuration():
    narrow, islands = predict("float16").step, predict("islands").step
    assert narrow.total_s == pytest.approx(0.1 + 0.002 + 1.698 / 3 - HIDDEN_SHARE * 0.1)
    assert islands.total_s == pytest.approx(0.1 + (0.002 + 1.698 / 3) / 32)
