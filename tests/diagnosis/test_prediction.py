"""From a measured all-reduce to step time, run time, cost, verdict and advice."""

import dataclasses

import pytest

from hvd_nmt import config as configuration
from hvd_nmt.config import presets
from hvd_nmt.diagnosis import prediction
from hvd_nmt.errors import ConfigError, RunError
from hvd_nmt.telemetry.events import EventStore

BASE = presets()["base"][1]
PARAMETERS = 60_880_896


def predict(**changes):
    values = {
        "config": dataclasses.replace(
            BASE, training=dataclasses.replace(BASE.training, max_steps=50_000)
        ),
        "parameters": PARAMETERS, "ranks": 4, "communication_s": 1.7, "latency_s": 0.002,
        "compute_s": 0.1, "source_per_target_token": 1.0, "price_per_hour": None,
    }  # fmt: skip
    return prediction.predict(**values | changes)


def test_the_recipe_on_two_hosts():
    found = predict(price_per_hour=10.0)
    assert found.gradient_bytes == 243_523_584
    assert found.sent_bytes == pytest.approx(365.3e6, rel=1e-3)
    assert found.bandwidth_MB_per_s == pytest.approx(214.9, abs=0.1)
    assert found.step_s == pytest.approx(1.8)
    assert found.tokens_per_s == pytest.approx(2 * 31_200 / 1.8)
    assert found.run_s / 3600 == pytest.approx(25.0)  # they reported 22 to 28 h
    assert found.cost == pytest.approx(250.0)
    assert found.verdict == "network-bound"
    text = "\n".join(found.lines())
    assert "network-bound: 1.70 of 1.80 s is communication" in text
    assert "250.00 in money" in text


def test_advice_is_what_shortens_the_communication_best_first():
    steps = [advice.predicted_step_s for advice in predict().advice]
    assert steps == pytest.approx([0.1 + 0.17, 0.1 + 1.7 / 4, 0.1 + 1.7 / 2])
    assert "float16" in predict().advice[-1].what


def test_a_fast_network_needs_no_advice():
    found = predict(communication_s=0.02, compute_s=0.5)
    assert (found.verdict, found.advice) == ("compute-bound", [])


def test_without_the_computation_only_bounds_are_given():
    found = predict(compute_s=None, price_per_hour=1.0)
    assert found.verdict == "unknown"
    text = "\n".join(found.lines())
    assert "at least 1.700 s, at most" in text
    assert "network-bound unless a step computes for 6.8 s or more" in text
    assert "--compute-s" in text


def test_everything_is_plain_for_json():
    plain = predict().as_plain()
    assert plain["verdict"] == "network-bound"
    assert plain["step_s"] == pytest.approx(1.8)
    assert len(plain["advice"]) == 3
    assert plain["cost"] is None


def a_run(folder, config, no_network_s, hosts=("vm",)):
    folder.mkdir()
    configuration.save(config, folder / "config.yaml")
    store = EventStore(folder)
    store.record("start", {"hosts": list(hosts)})
    for step, seconds in enumerate(no_network_s, 1):
        store.scalars(step, {
            "step_time/compute_s": 0.75 * seconds, "step_time/straggler_wait_s": 0.25 * seconds,
            "step_time/communication_s": 7.0, "step_time/total_s": seconds + 7.0,
        })  # fmt: skip
    store.close()
    return folder


def test_the_computation_of_an_earlier_run(tmp_path):
    config = presets()["demo"][1]
    run = a_run(tmp_path / "run", config, [9.0, 0.4, 0.5, 0.6])
    assert prediction.compute_s_of(run, config, ranks=1) == pytest.approx(0.5)
    assert prediction.compute_s_of(run, config, ranks=2) == pytest.approx(0.25)
    double = dataclasses.replace(
        config, training=dataclasses.replace(config.training, tokens_per_step=4096)
    )
    assert prediction.compute_s_of(run, double, ranks=1) == pytest.approx(1.0)
    two = a_run(tmp_path / "two", config, [9.0, 0.5], hosts=("a", "b"))
    assert prediction.compute_s_of(two, config, ranks=1) == pytest.approx(1.0)


def test_a_run_that_tells_nothing(tmp_path):
    config = presets()["demo"][1]
    with pytest.raises(RunError, match="no run directory"):
        prediction.compute_s_of(tmp_path, config, 1)
    with pytest.raises(RunError, match="no step yet"):
        prediction.compute_s_of(a_run(tmp_path / "new", config, []), config, 1)
    with pytest.raises(ConfigError, match="another model"):
        prediction.compute_s_of(a_run(tmp_path / "run", config, [1.0]), BASE, 1)
