"""Bytes and seconds of each exchange, and the sentence about a link."""

import pytest

from hvd_nmt.common.gradient import ring_bytes
from hvd_nmt.config.exchange import PLAIN, Exchange
from hvd_nmt.explain import exchange_cost
from hvd_nmt.explain.exchange_cost import sent_bytes_per_step, transfer_s

G = 243_523_584
"""bytes of the gradients of transformer-base in float32"""
FLOAT16, ISLANDS = Exchange("float16"), Exchange("islands", 8)


@pytest.mark.parametrize(
    ("exchange", "ranks_by_host", "share"),
    [
        (PLAIN, (1, 1), 1.0),
        (PLAIN, (2, 2), 1.5),
        (PLAIN, (2, 1), 4 / 3),
        (FLOAT16, (1, 1), 0.5),
        (FLOAT16, (2, 2), 0.5),
        (FLOAT16, (4, 4, 4), 2 / 3),
        (ISLANDS, (2, 2), 0.5 / 8),
    ],
)
def test_bytes_that_a_host_sends_in_a_step(exchange, ranks_by_host, share):
    assert sent_bytes_per_step(exchange, G, ranks_by_host) == pytest.approx(share * G)


def test_one_host_sends_nothing():
    for exchange in (PLAIN, FLOAT16, ISLANDS):
        assert sent_bytes_per_step(exchange, G, (4,)) == 0
        assert transfer_s(2.0, 0.0, PLAIN, exchange, (4,)) == 2.0


def test_plain_is_the_ring():
    assert sent_bytes_per_step(PLAIN, G, (2, 2)) == ring_bytes(G, 4)


def test_latency_is_paid_by_each_exchange_and_no_precision_shortens_it():
    assert transfer_s(2.0, 0.2, PLAIN, PLAIN, (2, 2)) == pytest.approx(2.0)
    assert transfer_s(2.0, 0.2, PLAIN, FLOAT16, (2, 2)) == pytest.approx(0.2 + 1.8 / 3)
    once_s = transfer_s(2.0, 0.2, PLAIN, ISLANDS, (2, 2))
    assert once_s == pytest.approx(0.2 + 1.8 / 3)
    assert exchange_cost.exposed_s(ISLANDS, once_s, 0.5) == pytest.approx(once_s / 8)
    assert exchange_cost.travelling_s(ISLANDS, once_s / 8, 0.5) == pytest.approx(once_s)


def test_the_sentence_about_a_link():
    """Of the computing of 0.5 s a fifth hides what travels, but for weights."""
    said = exchange_cost.link_sentence((2, 2), 2.0, 0.2, 0.5, 32)
    assert said == (
        "sums of float32 gradients take 2.00 s, the computing of a step 0.500 s; a step with "
        "training.exchange float32 2.40 s, float16 1.20 s, islands (sync every 32) 0.525 s; "
        "islands make other updates, which in the run of docs/slow-links.md ended at a "
        "validation loss of 0.2593 in place of 0.2020"
    )
