"""The one model of a step behind every prediction."""

import dataclasses
import re

import pytest

from hvd_nmt.config import TrainingConfig
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.explain import exchange_cost
from hvd_nmt.explain.step_model import Step

HIDDEN_S = exchange_cost.HIDDEN_SHARE * 0.5
STEP = Step(others_s=0.6, compute_s=0.5, transfer_s=1.3, latency_s=0.2)
ISLANDS = Step(0.5, 0.5, 1.6, exchange=Exchange("islands", 8))


def advised(step):
    """What is advised -> predicted seconds."""
    return {one.what: one.predicted_step_s for one in step.advice()}


def test_a_step_waits_for_what_does_not_hide_behind_its_computing():
    assert STEP.exposed_s == pytest.approx(1.3 - HIDDEN_S)
    assert STEP.total_s == pytest.approx(0.6 + 1.3 - HIDDEN_S)
    assert dataclasses.replace(STEP, transfer_s=0.05).total_s == 0.6
    travelled_s = exchange_cost.travelling_s(STEP.exchange, STEP.exposed_s, 0.5)
    assert travelled_s == pytest.approx(1.3)


def test_no_link_and_no_precision_shortens_the_latency():
    found = advised(STEP)
    assert found["a network 10 times as fast"] == pytest.approx(0.6 + 0.2 + 0.11 - HIDDEN_S)
    what = "gradients as float16, summed within each host first"
    assert found[what] == pytest.approx(0.6 + 0.2 + 0.55 - HIDDEN_S)
    only_latency = dataclasses.replace(STEP, latency_s=1.3)
    # Exchanges that are as seldom as can be are left, and more work for each.
    assert set(advised(only_latency)) == {
        "islands (sync every 32)", "4 times as many tokens per step"
    }  # fmt: skip


def test_fewer_exchanges_shorten_all_of_it():
    # Four times the computing hides four times as much, once.
    more_tokens_s = advised(STEP)["4 times as many tokens per step"]
    assert more_tokens_s == pytest.approx(0.6 + 1.3 / 4 - HIDDEN_S)


def test_another_exchange_over_the_same_link():
    four = dataclasses.replace(STEP, ranks_by_host=(2, 2))
    narrow = four.under(Exchange("float16"))
    assert narrow.transfer_s == pytest.approx(0.2 + 1.1 / 3)
    assert narrow.under(Exchange()) == dataclasses.replace(
        four, transfer_s=pytest.approx(1.3), others_s=pytest.approx(0.6)
    )
    found = advised(four)
    what = "gradients as float16, summed within each host first"
    assert found[what] == pytest.approx(narrow.total_s)
    islands = four.under(Exchange("islands", 16))
    assert islands.total_s == pytest.approx(0.6 + (0.2 + 1.1 / 3) / 16)


def test_each_advice_names_its_option():
    four = dataclasses.replace(STEP, ranks_by_host=(2, 2))
    said = {one.what: one.why for one in [*STEP.advice(), *four.advice(), *ISLANDS.advice()]}
    said.pop("a network 10 times as fast")
    assert len(said) == 4
    for why in said.values():
        options = re.findall(r"--training\.([a-z-]+)", why)
        assert options, why
        assert all(hasattr(TrainingConfig(), option.replace("-", "_")) for option in options)


def test_islands_are_advised_to_exchange_less_and_not_to_become_islands():
    assert ISLANDS.total_s == pytest.approx(0.5 + 1.6 / 8)
    found = advised(ISLANDS)
    assert found["weights exchanged every 32 steps"] == pytest.approx(0.5 + 1.6 / 32)
    assert found["4 times as many tokens per step"] == pytest.approx(0.5 + 1.6 / 8 / 4)
    assert not any("islands" in what or "gradients" in what for what in found)


def test_the_best_comes_first_and_what_hardly_helps_is_not_said():
    times = [one.predicted_step_s for one in STEP.advice()]
    assert times == sorted(times)
    assert dataclasses.replace(STEP, transfer_s=HIDDEN_S + 0.02, latency_s=0.0).advice() == []


def test_on_one_host_nothing_is_advised_that_is_between_hosts():
    found = advised(dataclasses.replace(STEP, ranks_by_host=(2,)))
    assert set(found) == {"4 times as many tokens per step"}
