"""Bytes of a step's gradients, and of their way around a ring of ranks."""

from __future__ import annotations

_BYTES_PER_VALUE = 4


def bytes_of_gradients(trained_parameters: int) -> int:
    """Bytes of a step's gradients, float32 whatever the precision; frozen weights have none."""
    return _BYTES_PER_VALUE * trained_parameters


def ring_bytes(gradient_bytes: float, ranks: int) -> float:
    """Bytes each rank sends in one ring all-reduce: 2 (N-1)/N x the gradients.

    Where a host holds neighbours of the ring, this is also what the host sends over its network.
    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms".
    """
    return 2 * (ranks - 1) / ranks * gradient_bytes
