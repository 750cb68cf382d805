"""The most that products can reach on this device: what a model's FLOP/s are a share of."""

from __future__ import annotations

import time

import tensorflow as tf

from hvd_nmt.model import device

_OF_A_CPU = ((2048, 2048, 2048), (8192, 512, 2048), (4096, 256, 1024), (2048, 8192, 256))
_OF_A_GPU = ((8192, 8192, 8192), (16384, 4096, 4096), (32768, 1024, 4096))
"""rows, inner and columns of products that take long against the time to start one"""
_LEAST_S = 0.05
"""a product that takes less is made several times before the clock is read"""


def flop_per_s(precision: str, rounds: int = 5) -> float:
    """The best rate of any large product, operations a second.

    Data sheets promise more than a device gives: this is measured where and when the model is.

    Args:
        precision: of the numbers.
        rounds: how often each product is measured.
    """
    shapes = _OF_A_GPU if device.is_gpu() else _OF_A_CPU
    return max(_rate(precision, *shape, rounds) for shape in shapes)


def _rate(precision: str, rows: int, inner: int, columns: int, rounds: int) -> float:
    a, b = (
        tf.cast(tf.random.stateless_normal(shape, [1, 2]), precision)
        for shape in ((rows, inner), (inner, columns))
    )

    def seconds(times: int) -> float:
        started_s = time.perf_counter()
        for _ in range(times):
            made = tf.matmul(a, b)
        made[0, 0].numpy()  # a GPU has then made all of them, one after the other
        return time.perf_counter() - started_s

    seconds(1)
    times = max(1, round(_LEAST_S / seconds(1)))
    return 2.0 * rows * inner * columns * times / min(seconds(times) for _ in range(rounds))
