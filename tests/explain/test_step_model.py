"""The one model of a step behind every prediction."""

import dataclasses

import pytest

from hvd_nmt.config import TrainingConfig
from hvd_nmt.explain import step_model
from hvd_nmt.explain.step_model import Step

HIDDEN_S = step_model.HIDDEN_SHARE * 0.5
STEP = Step(others_s=0.6, compute_s=0.5, transfer_s=1.3, latency_s=0.2)


def advised(step):
    """What is advised -> predicted seconds."""
    return {one.what: one.predicted_step_s for one in step.advice()}


def test_a_step_waits_for_what_does_not_hide_behind_its_computing():
    assert STEP.exposed_s == pytest.approx(1.3 - HIDDEN_S)
    assert STEP.total_s == pytest.approx(0.6 + 1.3 - HIDDEN_S)
    assert dataclasses.replace(STEP, transfer_s=0.05).total_s == 0.6
    assert step_model.travelling_s(STEP.exposed_s, 0.5) == pytest.approx(1.3)


def test_no_link_and_no_precision_shortens_the_latency():
    found = advised(STEP)
    assert found["a network 10 times as fast"] == pytest.approx(0.6 + 0.2 + 0.11 - HIDDEN_S)
    assert found["gradients as float16 on the wire"] == pytest.approx(0.6 + 0.2 + 0.55 - HIDDEN_S)
    only_latency = dataclasses.replace(STEP, latency_s=1.3)
    assert set(advised(only_latency)) == {
        "accumulate 4 batches per update", "4 times as many tokens per step"
    }  # fmt: skip


def test_fewer_exchanges_shorten_all_of_it():
    found = advised(STEP)
    assert found["accumulate 4 batches per update"] == pytest.approx(0.6 + (1.3 - HIDDEN_S) / 4)
    # Four times the computing hides four times as much, once.
    assert found["4 times as many tokens per step"] == pytest.approx(0.6 + 1.3 / 4 - HIDDEN_S)


def test_each_advice_names_its_option_or_says_that_there_is_none():
    why = {one.what: one.why for one in STEP.advice()}
    for what in ("accumulate 4 batches per update", "gradients as float16 on the wire"):
        assert "train has no option for it yet" in why[what]
    assert "--training.tokens-per-step" in why["4 times as many tokens per step"]
    assert hasattr(TrainingConfig(), "tokens_per_step")


def test_the_best_comes_first_and_what_hardly_helps_is_not_said():
    times = [one.predicted_step_s for one in STEP.advice()]
    assert times == sorted(times)
    assert len(times) == 4
    assert dataclasses.replace(STEP, transfer_s=HIDDEN_S + 0.02, latency_s=0.0).advice() == []


def test_on_one_host_no_network_is_advised():
    assert "a network 10 times as fast" not in advised(
        dataclasses.replace(STEP, crosses_network=False)
    )
