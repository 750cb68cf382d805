"""Bytes of a gradient, and the ring law."""

import pytest

from hvd_nmt.common.gradient import bytes_of_gradients, ring_bytes


def test_gradients_are_float32():
    assert bytes_of_gradients(60_880_896) == 243_523_584


def test_ring_law():
    assert [ring_bytes(100, ranks) for ranks in (1, 2, 4, 8)] == [0, 100, 150, 175]


@pytest.mark.parametrize("ranks", range(2, 9))
def test_a_ring_counted_link_by_link(ranks):
    """N ranks pass pieces of 1/N: N-1 times to add them up, N-1 times to hand the sums around."""
    assert ring_bytes(840, ranks) == pytest.approx(sum([840 / ranks] * (ranks - 1) * 2))
