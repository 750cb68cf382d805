"""The blocks a Transformer is made of.

B sentences, S source and T target positions, D model width, H heads, K units per head,
F hidden units of the feed-forward block, Q query positions.

Weights are float32. Each block computes in the dtype of its input, so one cast at the embedding
decides the precision of the whole stack; layer normalisation always computes in float32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras as keras

Drop = Callable[[tf.Tensor, float], tf.Tensor]


def seeds(seed: int) -> Iterator[int]:
    """An endless supply of different seeds, one for each initialised weight."""
    return itertools.count(seed * 100_000)


def glorot(fan_in: int, fan_out: int, seed: int) -> keras.initializers.Initializer:
    """Uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, eq. 16).

    The fans are arguments because one fused matrix holds several projections.
    """
    limit = math.sqrt(6 / (fan_in + fan_out))
    return keras.initializers.RandomUniform(-limit, limit, seed=seed)


class Block(keras.layers.Layer):
    """Base of the blocks: float32 weights, inputs left in the dtype they come in."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, autocast=False, dtype="float32")


class LayerNorm(Block):
    """Layer normalisation over the last axis in float32 (Ba et al. 2016), epsilon 1e-6."""

    def __init__(self, width: int, name: str) -> None:
        super().__init__(name)
        self.scale = self.add_weight("scale", [width], initializer="ones")
        self.offset = self.add_weight("offset", [width], initializer="zeros")

    def call(self, x_BxTxD: tf.Tensor) -> tf.Tensor:
        y_BxTxD = _layer_norm(tf.cast(x_BxTxD, tf.float32), self.scale, self.offset)
        return tf.cast(y_BxTxD, x_BxTxD.dtype)


class SelfAttention(Block):
    """Multi-head attention of a sequence over itself; one fused query-key-value matrix."""

    def __init__(self, width: int, heads: int, rate: float, seed: Iterator[int], name: str):
        super().__init__(name)
        self.heads, self.rate = heads, rate
        self.qkv = self.add_weight(
            "qkv", [width, 3 * width], initializer=glorot(width, width, next(seed))
        )
        self.output_kernel = self.add_weight(
            "output_kernel", [width, width], initializer=glorot(width, width, next(seed))
        )

    def call(self, x_BxTxD: tf.Tensor, bias_Bx1xTxT: tf.Tensor, drop: Drop) -> tf.Tensor:
        q_BxHxTxK, k_BxHxTxK, v_BxHxTxK = self.project(x_BxTxD)
        y_BxHxTxK = attend(q_BxHxTxK, k_BxHxTxK, v_BxHxTxK, bias_Bx1xTxT, drop, self.rate)
        return linear(merge_heads(y_BxHxTxK), self.output_kernel)

    def project(self, x_BxTxD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Queries, keys and values, each [B, H, T, K]."""
        return tuple(tf.unstack(split_heads(linear(x_BxTxD, self.qkv), 3, self.heads)))

    def step(self, x_Bx1xD: tf.Tensor, cache: Cache) -> tuple[tf.Tensor, Cache]:
        """One new position that attends to the cached ones and itself."""
        q_BxHx1xK, k_BxHx1xK, v_BxHx1xK = self.project(x_Bx1xD)
        keys_BxHxTxK = tf.concat([cache[0], k_BxHx1xK], 2)
        values_BxHxTxK = tf.concat([cache[1], v_BxHx1xK], 2)
        y_BxHx1xK = attend(q_BxHx1xK, keys_BxHxTxK, values_BxHxTxK)
        return linear(merge_heads(y_BxHx1xK), self.output_kernel), (keys_BxHxTxK, values_BxHxTxK)


class CrossAttention(Block):
    """Multi-head attention of the target over the encoded source."""

    def __init__(self, width: int, heads: int, rate: float, seed: Iterator[int], name: str):
        super().__init__(name)
        self.heads, self.rate = heads, rate
        self.query = self.add_weight(
            "query", [width, width], initializer=glorot(width, width, next(seed))
        )
        self.key_value = self.add_weight(
            "key_value", [width, 2 * width], initializer=glorot(width, width, next(seed))
        )
        self.output_kernel = self.add_weight(
            "output_kernel", [width, width], initializer=glorot(width, width, next(seed))
        )

    def call(
        self, x_BxTxD: tf.Tensor, memory: Cache, bias_Bx1x1xS: tf.Tensor, drop: Drop
    ) -> tf.Tensor:
        (q_BxHxTxK,) = tf.unstack(split_heads(linear(x_BxTxD, self.query), 1, self.heads))
        y_BxHxTxK = attend(q_BxHxTxK, *memory, bias_Bx1x1xS, drop, self.rate)
        return linear(merge_heads(y_BxHxTxK), self.output_kernel)



class FeedForward(Block):
    """Two affine maps with a ReLU between them."""

    def __init__(self, width: int, hidden: int, rate: float, seed: Iterator[int], name: str):
        super().__init__(name)
        self.rate = rate
        self.inner = self.add_weight(
            "inner", [width, hidden], initializer=glorot(width, hidden, next(seed))
        )
        self.inner_bias = self.add_weight("inner_bias", [hidden], initializer="zeros")
        self.outer = self.add_weight(
            "outer", [hidden, width], initializer=glorot(hidden, width, next(seed))
        )
        self.outer_bias = self.add_weight("outer_bias", [width], initializer="zeros")

    def call(self, x_BxTxD: tf.Tensor, drop: Drop) -> tf.Tensor:
        h_BxTxF = tf.nn.relu(linear(x_BxTxD, self.inner, self.inner_bias))
        return linear(drop(h_BxTxF, self.rate), self.outer, self.outer_bias)


Cache = tuple[tf.Tensor, tf.Tensor]


def remember(memory_BxSxD: tf.Tensor, attentions: list[CrossAttention]) -> tuple[Cache, ...]:
    """Keys and values of the encoded source for each decoder layer, each [B, H, S, K].

    One product with the matrices of all layers side by side, wide enough to be fast.
    """
    kernel = tf.concat([attention.key_value for attention in attentions], 1)
    parts = split_heads(linear(memory_BxSxD, kernel), 2 * len(attentions), attentions[0].heads)
    keys_values = tf.unstack(parts)
    return tuple(zip(keys_values[::2], keys_values[1::2], strict=True))


def linear(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None = None) -> tf.Tensor:
    """x [..., I] times kernel [I, O] plus bias [O], in the dtype of x."""
    width_in, width_out = kernel.shape
    multiply = _narrowing_matmul if width_in > width_out else tf.matmul
    y = multiply(tf.reshape(x, [-1, width_in]), tf.cast(kernel, x.dtype))
    if bias is not None:
        y = tf.nn.bias_add(y, tf.cast(bias, x.dtype))
    return tf.reshape(y, tf.concat([tf.shape(x)[:-1], [width_out]], 0))


@tf.custom_gradient
def _narrowing_matmul(x_NxI: tf.Tensor, kernel_IxO: tf.Tensor) -> Any:
    """The product, with the gradient of a tall kernel computed as its transpose.

    A product with few columns and many rows is slow on a CPU; the same with many columns is not.
    """

    def gradient(dy_NxO: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        dkernel_OxI = tf.matmul(dy_NxO, x_NxI, transpose_a=True)
        return tf.matmul(dy_NxO, kernel_IxO, transpose_b=True), tf.transpose(dkernel_OxI)

    return tf.matmul(x_NxI, kernel_IxO), gradient


def split_heads(x_BxTxPD: tf.Tensor, parts: int, heads: int) -> tf.Tensor:
    """[B, T, P x D] to [P, B, H, T, K]: one transposition for all P fused projections."""
    shape = tf.shape(x_BxTxPD)
    units = x_BxTxPD.shape[-1] // (parts * heads)
    x_BxTxPxHxK = tf.reshape(x_BxTxPD, [shape[0], shape[1], parts, heads, units])
    return tf.transpose(x_BxTxPxHxK, [2, 0, 3, 1, 4])


def merge_heads(x_BxHxTxK: tf.Tensor) -> tf.Tensor:
    """[B, H, T, K] to [B, T, D]."""
    _, heads, _, units = x_BxHxTxK.shape
    shape = tf.shape(x_BxHxTxK)
    return tf.reshape(tf.transpose(x_BxHxTxK, [0, 2, 1, 3]), [shape[0], shape[2], heads * units])


def attend(
    q_BxHxQxK: tf.Tensor,
    k_BxHxTxK: tf.Tensor,
    v_BxHxTxK: tf.Tensor,
    bias: tf.Tensor | None = None,
    drop: Drop | None = None,
    rate: float = 0.0,
) -> tf.Tensor:
    """Scaled dot-product attention (Vaswani et al. 2017, eq. 1).

    Args:
        q_BxHxQxK: queries, not yet scaled by K^-0.5.
        k_BxHxTxK: keys.
        v_BxHxTxK: values.
        bias: 0 where a query may look, hugely negative elsewhere; broadcasts to [B, H, Q, T].
            None: everywhere.
        drop: dropout of the attention weights.
        rate: share of them to drop.

    Returns:
        [B, H, Q, K].
    """
    logits_BxHxQxT = tf.matmul(q_BxHxQxK, k_BxHxTxK, transpose_b=True)
    # Scaled here and not at the queries: Q x T numbers a head instead of Q x K.
    logits_BxHxQxT *= tf.constant(q_BxHxQxK.shape[-1] ** -0.5, q_BxHxQxK.dtype)
    if bias is not None:
        logits_BxHxQxT += tf.cast(bias, logits_BxHxQxT.dtype)
    weights_BxHxQxT = tf.nn.softmax(logits_BxHxQxT)
    if drop is not None:
        weights_BxHxQxT = drop(weights_BxHxQxT, rate)
    return tf.matmul(weights_BxHxQxT, v_BxHxTxK)


def padding_bias(is_pad_BxS: tf.Tensor) -> tf.Tensor:
    """[B, 1, 1, S]: -1e4 at padding. Finite, so a row of padding alone gives no NaN.

    -1e4 fits float16 and underflows to a weight of exactly 0 beside any real logit.
    """
    return tf.where(is_pad_BxS, -1e4, 0.0)[:, None, None, :]


def causal_bias(length: tf.Tensor) -> tf.Tensor:
    """[1, 1, T, T]: -1e4 where a position would look ahead."""
    position_T = tf.range(length)
    return tf.where(position_T[None, :] > position_T[:, None], -1e4, 0.0)[None, None]


@tf.custom_gradient
def _layer_norm(x_BxTxD: tf.Tensor, scale_D: tf.Tensor, offset_D: tf.Tensor) -> Any:
    """Layer normalisation with the closed-form gradient, half the passes of automatic ones."""
    mean_BxTx1, variance_BxTx1 = tf.nn.moments(x_BxTxD, [-1], keepdims=True)
    inverse_BxTx1 = tf.math.rsqrt(variance_BxTx1 + 1e-6)
    unit_BxTxD = (x_BxTxD - mean_BxTx1) * inverse_BxTx1

    def gradient(dy_BxTxD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        width = scale_D.shape[0]
        dy_NxD = tf.reshape(dy_BxTxD, [-1, width])
        dscale_NxD = dy_NxD * tf.reshape(unit_BxTxD, [-1, width])
        # Row means of dy x scale and of dy x unit x scale, as matrix-vector products.
        shape, share_Dx1 = tf.shape(inverse_BxTx1), scale_D[:, None] / width
        level_BxTx1 = tf.reshape(tf.matmul(dy_NxD, share_Dx1), shape)
        along_BxTx1 = tf.reshape(tf.matmul(dscale_NxD, share_Dx1), shape)
        dx_BxTxD = inverse_BxTx1 * (dy_BxTxD * scale_D - level_BxTx1 - unit_BxTxD * along_BxTx1)
        return dx_BxTxD, tf.reduce_sum(dscale_NxD, 0), tf.reduce_sum(dy_NxD, 0)

    return unit_BxTxD * scale_D + offset_D, gradient
