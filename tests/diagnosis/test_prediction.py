"""From a measured step and all-reduce to step time, run time, verdict and advice."""

import pytest

from hvd_nmt.config import TrainingConfig, presets
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.diagnosis import prediction
from hvd_nmt.explain.exchange_cost import HIDDEN_SHARE

BASE = presets()["base"][1]
PARAMETERS = 60_880_896


PLAIN = {"wire": "float32", "hierarchical": "off", "islands": "off"}
"""options of the recipe's exchange"""


def predict(exchange=PLAIN, **changes):
    values = {
        "training": TrainingConfig(max_steps=50_000, **exchange),
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
    """The exchange that auto takes, and advice."""
    said = {
        "the recipe": predict(),
        "auto": predict({}),
        "summed within each host": predict(PLAIN | {"hierarchical": "on"}),
        "one host": predict(ranks_by_host=(2,)),
        "auto on one host": predict({}, ranks_by_host=(4,)),
    }
    parts = ["\n".join([f"# {name}", *found.lines()]) for name, found in said.items()]
    golden_page("doctor-prediction.txt", "\n\n".join(parts) + "\n")


def test_the_run_is_predicted_with_what_auto_will_take():
    found = predict({})
    assert found.exchange == Exchange(
        wire="float16", hierarchical=True, islands=True, sync_every=25, streaming=True
    )
    assert found.step_s == pytest.approx(0.1)
    assert found.verdict == "compute-bound"
    assert predict({}, communication_s=0.02).exchange == Exchange()


def test_every_cure_is_predicted_and_the_one_of_the_run_is_marked():
    cures = {cure.name: cure for cure in predict({}).cures}
    hidden_s, bytes_s = HIDDEN_SHARE * 0.1, 1.698
    assert {name: cure.step_s for name, cure in cures.items()} == pytest.approx({
        "float32 gradients in each step": 0.1 + 0.002 + bytes_s - hidden_s,
        "float16 gradients in each step": 0.1 + 0.002 + bytes_s * 0.875 / 1.5 - hidden_s,
        "float16 gradients in each step, summed within each host first":
            0.1 + 0.002 + bytes_s / 3 - hidden_s,
        "islands, sync every 71, float16": 0.1 + (0.002 + bytes_s / 3) / 71,
        "islands, sync every 25, streamed, float16": 0.1,
    })  # fmt: skip
    assert [name for name, cure in cures.items() if cure.is_chosen] == [
        "islands, sync every 25, streamed, float16"
    ]
    one_rank_each = predict({}, ranks_by_host=(1, 1))
    assert not any("host first" in cure.name for cure in one_rank_each.cures)
