"""Several models as one: the mean of their probabilities."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_nmt.common.errors import ConfigError


def members(models: Any) -> tuple[Any, ...]:
    """The models of an ensemble; of one model, that one."""
    each = tuple(models) if isinstance(models, Sequence) else (models,)
    sizes = sorted({model.vocabulary_size for model in each})
    if len(sizes) != 1:
        raise ConfigError(
            f"An ensemble needs models of one vocabulary, and these have {sizes or 'no'} tokens:"
            " take checkpoints of runs with the same spm.model."
        )
    return each


def mean_attention(attentions: Sequence[tuple[tf.Tensor, ...]]) -> tf.Tensor:
    """Where models look in the source, BxTxS: mean over them and the heads of their last layer.

    `attentions` has for each model the cross-attention weights of its layers, [B, H, T, S].
    """
    last = [tf.reduce_mean(tf.cast(layers[-1], tf.float32), 1) for layers in attentions]
    return tf.add_n(last) / len(last)


def mean_probability(logp: list[tf.Tensor]) -> tf.Tensor:
    """The logarithm of the mean of the probabilities, of log-probabilities of equal shape."""
    if len(logp) == 1:
        return logp[0]
    return tf.reduce_logsumexp(tf.stack(logp), 0) - math.log(len(logp))
