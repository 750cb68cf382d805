"""Multi-head attention, its masks, and the cache of a decoding step; letters as in `model`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_nmt.config import ModelConfig
from hvd_nmt.model.dropout import no_dropout
from hvd_nmt.model.layers import Drop, Layer, linear

Cache = tuple[tf.Tensor, tf.Tensor]
"""keys and values, each [B, H, positions, U]"""


class SelfAttention(Layer):
    """Multi-head attention of a sequence over itself; one fused query-key-value matrix."""

    def __init__(self, config: ModelConfig, seed: Iterator[int], name: str) -> None:
        super().__init__(name)
        self.heads, self.rate = config.heads, config.attention_dropout
        self.rotary = config.positions == "rotary"
        width, biased = config.width, config.biases == "all"
        self.qkv = self.kernel("qkv", width, width, seed, parts=3)
        self.output_kernel = self.kernel("output_kernel", width, width, seed)
        self.qkv_bias = self.bias_if(biased, "qkv_bias", 3 * width)
        self.output_bias = self.bias_if(biased, "output_bias", width)

    def call(self, x_BxTxD: tf.Tensor, bias_Bx1xTxT: tf.Tensor, drop: Drop) -> tf.Tensor:
        """All positions at once, [B, T, D]; the bias as in `attend`."""
        position_T = tf.range(tf.shape(x_BxTxD)[1])
        q_BxHxTxU, k_BxHxTxU, v_BxHxTxU = self.project(x_BxTxD, position_T)
        y_BxTxD, _ = attend(q_BxHxTxU, k_BxHxTxU, v_BxHxTxU, bias_Bx1xTxT, drop, self.rate)
        return linear(y_BxTxD, self.output_kernel, self.output_bias)

    def project(self, x_BxTxD: tf.Tensor, position_T: tf.Tensor) -> list[tf.Tensor]:
        """Queries, keys and values, each [B, H, T, U]; one position may stand for all T."""
        q, k, v = split_heads(linear(x_BxTxD, self.qkv, self.qkv_bias), 3, self.heads)
        return [rotated(q, position_T), rotated(k, position_T), v] if self.rotary else [q, k, v]

    def step(
        self, x_BxKxD: tf.Tensor, cache: Cache, position: tf.Tensor, bias_Bx1xKxL: tf.Tensor
    ) -> tuple[tf.Tensor, Cache]:
        """One new position of K hypotheses, which attend to their own past among the L cached ones.

        `position` is an int32 scalar, the bias is that of `history_bias`. The cache must have room.
        Returns [B, K, D], and the cache with the new keys and values in it.
        """
        q_BxHxKxU, *new = self.project(x_BxKxD, position[None])
        keys_BxHxLxU, values_BxHxLxU = (
            _put(old, position, x) for old, x in zip(cache, new, strict=True)
        )
        y_BxKxD, _ = attend(q_BxHxKxU, keys_BxHxLxU, values_BxHxLxU, bias_Bx1xKxL)
        y_BxKxD = linear(y_BxKxD, self.output_kernel, self.output_bias)
        return y_BxKxD, (keys_BxHxLxU, values_BxHxLxU)


class CrossAttention(Layer):
    """Multi-head attention of the target over the encoded source; see `SelfAttention`."""

    def __init__(self, config: ModelConfig, seed: Iterator[int], name: str) -> None:
        super().__init__(name)
        self.heads, self.rate = config.heads, config.attention_dropout
        width, biased = config.width, config.biases == "all"
        self.query = self.kernel("query", width, width, seed)
        self.key_value = self.kernel("key_value", width, width, seed, parts=2)
        self.output_kernel = self.kernel("output_kernel", width, width, seed)
        self.query_bias = self.bias_if(biased, "query_bias", width)
        self.key_value_bias = self.bias_if(biased, "key_value_bias", 2 * width)
        self.output_bias = self.bias_if(biased, "output_bias", width)

    def call(
        self, x_BxTxD: tf.Tensor, keys_values: Cache, bias_Bx1x1xS: tf.Tensor, drop: Drop
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Read the source: [B, T, D], and the attention weights [B, H, T, S] before dropout."""
        (q_BxHxTxU,) = split_heads(linear(x_BxTxD, self.query, self.query_bias), 1, self.heads)
        y_BxTxD, weights_BxHxTxS = attend(q_BxHxTxU, *keys_values, bias_Bx1x1xS, drop, self.rate)
        return linear(y_BxTxD, self.output_kernel, self.output_bias), weights_BxHxTxS


def cross_keys_values(
    source_BxSxD: tf.Tensor, attentions: list[CrossAttention]
) -> tuple[Cache, ...]:
    """[B, H, S, U] of the source for each decoder layer, by one product, wide enough to be fast."""
    kernel = tf.concat([attention.key_value for attention in attentions], 1)
    bias = None
    if attentions[0].key_value_bias is not None:
        bias = tf.concat([attention.key_value_bias for attention in attentions], 0)
    wide = linear(source_BxSxD, kernel, bias)
    keys_values = split_heads(wide, 2 * len(attentions), attentions[0].heads)
    return tuple(zip(keys_values[::2], keys_values[1::2], strict=True))


def split_heads(x_BxTxPD: tf.Tensor, parts: int, heads: int) -> list[tf.Tensor]:
    """[B, H, T, U] of each of P fused projections, which lie side by side: one transposition."""
    shape = tf.shape(x_BxTxPD)
    units = x_BxTxPD.shape[-1] // (parts * heads)
    x_BxTxPxHxU = tf.reshape(x_BxTxPD, [shape[0], shape[1], parts, heads, units])
    return tf.unstack(tf.transpose(x_BxTxPxHxU, [2, 0, 3, 1, 4]))


def rotated(x_BxHxTxU: tf.Tensor, position_T: tf.Tensor) -> tf.Tensor:
    """Queries or keys, turned in U / 2 planes by angles that grow with the position.

    So their products depend on the distance alone. Source: Su et al. 2021, eq. 34, in halves.
    """
    half = x_BxHxTxU.shape[-1] // 2
    rates_A = tf.constant(10_000.0 ** (-np.arange(half) / half), tf.float32)
    angle_TxA = tf.cast(position_T, tf.float32)[:, None] * rates_A
    cos_TxA, sin_TxA = (tf.cast(f(angle_TxA), x_BxHxTxU.dtype) for f in (tf.cos, tf.sin))
    x, y = tf.split(x_BxHxTxU, 2, -1)
    return tf.concat([x * cos_TxA - y * sin_TxA, x * sin_TxA + y * cos_TxA], -1)


def attend(
    q_BxHxQxU: tf.Tensor, k_BxHxTxU: tf.Tensor, v_BxHxTxU: tf.Tensor, bias: tf.Tensor,
    drop: Drop = no_dropout, rate: float = 0.0,
) -> tuple[tf.Tensor, tf.Tensor]:  # fmt: skip
    """Scaled dot-product attention (Vaswani et al. 2017, eq. 1).

    Queries are not yet scaled by U^-0.5. The bias, which broadcasts to [B, H, Q, T], is 0 where
    they may look and hugely negative elsewhere. Returns [B, Q, D], and the attention weights
    [B, H, Q, T] before dropout.
    """
    logits_BxHxQxT = tf.matmul(q_BxHxQxU, k_BxHxTxU, transpose_b=True)
    weights_BxHxQxT = _softmax(logits_BxHxQxT, q_BxHxQxU.shape[-1] ** -0.5, bias)
    y_BxHxQxU = tf.matmul(drop(weights_BxHxQxT, rate), v_BxHxTxU)
    _, heads, _, units = y_BxHxQxU.shape
    shape, y_BxQxHxU = tf.shape(y_BxHxQxU), tf.transpose(y_BxHxQxU, [0, 2, 1, 3])
    return tf.reshape(y_BxQxHxU, [shape[0], shape[2], heads * units]), weights_BxHxQxT


def _softmax(logits: tf.Tensor, scale: float, bias: tf.Tensor) -> tf.Tensor:
    """Softmax of (logits + bias) x scale; automatic gradients would look for broadcast shapes.

    The bias comes first: oneDNN takes a product that is scaled and then biased as one operation,
    which takes hundreds of times as long where the bias is as wide as the logits.
    """

    @tf.custom_gradient
    def weights(logits: tf.Tensor) -> Any:
        factor = tf.constant(scale, logits.dtype)
        p = tf.nn.softmax((logits + tf.cast(bias, logits.dtype)) * factor)

        def gradient(dp: tf.Tensor) -> tf.Tensor:
            return (dp - tf.reduce_sum(dp * p, -1, keepdims=True)) * p * factor

        return p, gradient

    return weights(logits)


def hidden(is_hidden: tf.Tensor) -> tf.Tensor:
    """A bias of -1e4 where one may not look: finite, so a row of padding alone gives no NaN.

    It fits float16, and scaled by U^-0.5 it still underflows to a weight of exactly 0.
    """
    return tf.where(is_hidden, -1e4, 0.0)


def history_bias(origins_BxKxT: tf.Tensor) -> tf.Tensor:
    """[B, 1, K, L = T x K]: 0 where a cached position belongs to a hypothesis' past, else -1e4.

    The cache holds what all K hypotheses of a sentence computed at each position. A hypothesis
    that changes its place keeps its past by looking elsewhere; nothing is moved. `origins_BxKxT`,
    int64, is the place 0..K-1 at which each hypothesis was at each position; -1: none yet.
    """
    shape, hypotheses = tf.shape(origins_BxKxT), origins_BxKxT.shape[1]
    allowed_BxKxTxK = tf.one_hot(origins_BxKxT, hypotheses, on_value=0.0, off_value=-1e4)
    return tf.reshape(allowed_BxKxTxK, [shape[0], 1, hypotheses, shape[2] * hypotheses])


def with_room(cache_BxHxLxU: tf.Tensor, slots: tf.Tensor) -> tf.Tensor:
    """The cache with room for this many keys of each head; as it is if it has it already."""
    more = slots - tf.shape(cache_BxHxLxU)[2]
    longer_BxHxLxU = tf.pad(cache_BxHxLxU, [[0, 0], [0, 0], [0, more], [0, 0]])
    _, heads, _, units = cache_BxHxLxU.shape
    return tf.ensure_shape(longer_BxHxLxU, [None, heads, None, units])


def _put(cache_BxHxLxU: tf.Tensor, position: tf.Tensor, new_BxHxKxU: tf.Tensor) -> tf.Tensor:
    # In place, with no copy of all that came before, as long as only it holds the old cache:
    # so its shape is not read here either. A scatter has no kernel for 16 bits on GPUs; a slice of
    # a matrix takes half the time of one of a tensor with four axes on CPUs.
    _, heads, _, units = cache_BxHxLxU.shape
    shape = tf.shape(new_BxHxKxU)
    rows, size = shape[0] * heads, shape[2] * units
    put = tf.raw_ops.TensorStridedSliceUpdate(
        input=tf.reshape(cache_BxHxLxU, [rows, -1]), value=tf.reshape(new_BxHxKxU, [rows, size]),
        begin=[0, position * size], end=[0, (position + 1) * size], strides=[1, 1],
        begin_mask=0b01, end_mask=0b01,
    )  # fmt: skip
    return tf.reshape(put, [shape[0], heads, -1, units])
