"""From a measured step and all-reduce to step time, run time, verdict and advice."""

import pytest

from hvd_nmt.config import TrainingConfig, presets
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.diagnosis import prediction
from hvd_nmt.explain.exchange_cost import HIDDEN_SHARE

BASE = presets()["base"][1]
PARAMETERS = 60_880_896


def predict(exchange="float32", **changes):
    values = {
        "training": TrainingConfig(max_steps=50_000, exchange=exchange),
        "tokens_per_step": 2 * BASE.training.tokens_per_step,
        "parameters": PARAMETERS, "ranks_by_host": (2, 2), "communication_s": 1.7,
        "latency_s": 0.002, "compute_s": 0.1,
    }  # fmt: skip
    return prediction.Prediction(**values | changes)


def test_the_recipe_on_two_hosts():
    found = predict()
    assert found.gradient_bytes == 243_523_584
    assert found.sent_bytes == pytest.approx(365.3e6, rel=1e-3)
    assert found.bandwidth_MB_per_s == pytest.approx(214.9, abs=0.1)
    step_s = 0.1 + 1.7 - HIDDEN_SHARE * 0.1
    assert found.step_s == pytest.approx(step_s)
    assert found.tokens_per_s == pytest.approx(2 * 31_200 / step_s)
    assert found.run_s / 3600 == pytest.approx(24.7, abs=0.05)  # they reported 22 to 28 h
    assert found.verdict == "network-bound"


def test_advice_is_what_shortens_the_communication_best_first():
    found = predict().step.advice()
    assert found[1].what == "a network 10 times as fast"
    hidden_s = HIDDEN_SHARE * 0.1
    assert found[1].predicted_step_s == pytest.approx(0.1 + 0.002 + 1.698 / 10 - hidden_s)


def test_the_verdict_is_by_what_a_step_computes_for():
    fast = predict(communication_s=0.02, compute_s=0.5)
    assert (fast.verdict, fast.step.advice()) == ("compute-bound", [])
    assert predict(ranks_by_host=(2,)).verdict == "communication-bound"
    assert predict(compute_s=3.7).verdict == "network-bound"
    assert predict(compute_s=3.8).verdict == "compute-bound"


def test_what_is_said_of_a_run(golden_page):
    """The exchange, and advice."""
    said = {
        "the recipe": predict(),
        "float16": predict("float16"),
        "one host": predict(ranks_by_host=(2,)),
    }
    parts = ["\n".join([f"# {name}", *found.lines()]) for name, found in said.items()]
    golden_page("doctor-prediction.txt", "\n\n".join(parts) + "\n")


def test_the_exchange_is_that_of_the_configuration():
    narrow, islands = predict("float16"), predict("islands")
    assert narrow.step_s == pytest.approx(0.1 + 0.002 + 1.698 / 3 - HIDDEN_SHARE * 0.1)
    assert islands.step_s == pytest.approx(0.1 + (0.002 + 1.698 / 3) / 32)
    assert islands.exchange == Exchange("islands", 32)
