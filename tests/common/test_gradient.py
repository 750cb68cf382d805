"""Bytes of a gradient, and the ring law."""

import pytest

from hvd_nmt.common.gradient import bytes_of_gradients, ring_bytes


def test_gradients_are_float32():
    assert bytes_of_gradients(60_880_896) == 243_523_584


@pytest.mark.parametrize(
    ("gradient_bytes", "ranks", "sent"),
    [(100, 1, 0), (100, 2, 100), (100, 4, 150), (100, 8, 175), (30_300_000, 4, 45_450_000)],
)
def test_ring_law(gradient_bytes, ranks, sent):
    assert ring_bytes(gradient_bytes, ranks) == sent


def test_a_ring_counted_link_by_link():
    """N ranks pass pieces of 1/N: N-1 times to add them up, N-1 times to hand the sums around."""
    for ranks in range(2, 9):
        piece = 840 / ranks
        sent = sum(piece for _ in range(ranks - 1)) + sum(piece for _ in range(ranks - 1))
        assert ring_bytes(840, ranks) == pytest.approx(sent)
