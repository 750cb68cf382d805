"""Bytes and seconds of each exchange, the one model of a step, and what is advised by it."""

import dataclasses
import re

import pytest

from hvd_nmt.config import TrainingConfig
from hvd_nmt.config.exchange import PLAIN, Exchange
from hvd_nmt.explain.exchange_cost import Step, sent_bytes_per_step

G = 243_523_584
"""bytes of the gradients of transformer-base in float32"""
FLOAT16, ISLANDS = Exchange("float16"), Exchange("islands", 8)
STEP = Step(others_s=0.6, compute_s=0.5, transfer_s=1.3, latency_s=0.2)
FOUR = dataclasses.replace(STEP, ranks_by_host=(2, 2))
OF_ISLANDS = Step(0.5, 0.5, 1.6, exchange=ISLANDS)
NETWORK, TOKENS = "a network 10 times as fast", "4 times as many tokens per step"
GRADIENTS = "gradients as float16, summed within each host first"


@pytest.mark.parametrize(
    ("exchange", "ranks_by_host", "share"),
    [
        (PLAIN, (1, 1), 1.0), (PLAIN, (2, 2), 1.5), (PLAIN, (2, 1), 4 / 3), (PLAIN, (4,), 0),
        (FLOAT16, (1, 1), 0.5), (FLOAT16, (2, 2), 0.5), (FLOAT16, (4, 4, 4), 2 / 3),
        (FLOAT16, (4,), 0), (ISLANDS, (2, 2), 0.5 / 8), (ISLANDS, (4,), 0),
    ],
)  # fmt: skip
def test_bytes_that_a_host_sends_in_a_step(exchange, ranks_by_host, share):
    assert sent_bytes_per_step(exchange, G, ranks_by_host) == pytest.approx(share * G)


def test_another_exchange_over_the_same_link_pays_the_same_latency():
    narrow = FOUR.under(FLOAT16)
    bytes_s = 1.7 * 1.1 / 3  # one way after the other
    assert narrow.transfer_s == pytest.approx(0.2 + bytes_s)
    assert narrow.under(PLAIN).transfer_s == pytest.approx(1.3)
    assert FOUR.under(Exchange("islands", 16)).total_s == pytest.approx(0.6 + (0.2 + bytes_s) / 16)
    assert dataclasses.replace(STEP, ranks_by_host=(4,)).under(FLOAT16).transfer_s == 1.3


def advised(step):
    """What is advised -> predicted seconds."""
    return {one.what: one.predicted_step_s for one in step.advice()}


def test_what_is_advised_and_what_it_would_bring():
    assert advised(STEP) == {
        NETWORK: pytest.approx(0.6 + 0.2 + 0.11),
        GRADIENTS: pytest.approx(0.6 + 0.2 + 1.7 * 0.55),
        # Four times the computing hides four times as much, once.
        TOKENS: pytest.approx(0.6 + 1.3 / 4),
        "islands (sync every 32)": pytest.approx(0.6 + (0.2 + 1.7 * 0.55) / 32),
    }
    assert advised(FOUR)[GRADIENTS] == pytest.approx(FOUR.under(FLOAT16).total_s)
    # Islands are to exchange less, and not to become islands.
    assert advised(OF_ISLANDS) == {
        "weights exchanged every 32 steps": pytest.approx(0.5 + 1.6 / 32),
        TOKENS: pytest.approx(0.5 + 1.6 / 8 / 4),
        NETWORK: pytest.approx(0.5 + 0.16 / 8),
    }
    times = [one.predicted_step_s for one in STEP.advice()]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("changed", "advice"),
    [
        # Where all is latency, exchanges that are seldom are left, and more work for each.
        ({"latency_s": 1.3}, {"islands (sync every 32)", TOKENS}),
        ({"ranks_by_host": (2,)}, {TOKENS}),
        ({"transfer_s": 0.02, "latency_s": 0.0}, set()),
    ],
)
def test_what_hardly_helps_is_not_advised(changed, advice):
    assert set(advised(dataclasses.replace(STEP, **changed))) == advice


def test_each_advice_names_its_option():
    said = {one.what: one.why for one in [*STEP.advice(), *OF_ISLANDS.advice()]}
    said.pop(NETWORK)
    assert len(said) == 4
    for why in said.values():
        options = re.findall(r"--training\.([a-z-]+)", why)
        assert options, why
        assert all(hasattr(TrainingConfig(), option.replace("-", "_")) for option in options)
