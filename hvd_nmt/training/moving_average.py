"""The moving average of the weights."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf


def move(
    means: Iterable[tf.Variable], weights: Iterable[tf.Variable], decay: float, step: tf.Tensor
) -> None:
    """mean += r (weight - mean) with r = 1 - min(decay, (1 + t) / (10 + t)) at step t.

    The second term lets the average forget the first, random weights soon. Each rank computes it
    from equal weights, so it is equal everywhere without being sent. t is an int64 scalar, from 1.

    Source: `num_updates` of tf.train.ExponentialMovingAverage.
    """
    rate = tf.maximum(1 - decay, 9 / (10 + tf.cast(step, tf.float32)))
    for mean, weight in zip(means, weights, strict=True):
        # One pass in place; `assign` would make two more tensors of the weight's size.
        tf.raw_ops.ResourceApplyGradientDescent(var=mean.handle, alpha=rate, delta=mean - weight)
