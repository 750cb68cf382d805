"""The blocks a Transformer is made of, but for attention.

Weights are float32. Each block computes in the dtype of its input, so one cast at the embedding
decides the precision of the whole stack; layer normalisation always computes in float32.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.config import ModelConfig

Drop = Callable[[tf.Tensor, float], tf.Tensor]
_ACTIVATIONS = {"relu": tf.nn.relu, "swish": tf.nn.swish, "gelu": tf.nn.gelu}

_copies: contextvars.ContextVar[dict[Any, tf.Tensor]] = contextvars.ContextVar("copies")


@contextlib.contextmanager
def converted_once(models: Sequence[Any]) -> Iterator[None]:
    """Within it `converted` has its copies already: no loop makes them again in each step."""
    ways = [(model, turned) for model in models for turned in (False, True)]
    token = _copies.set({
        (weight.ref(), turned): converted(weight, model.activation_dtype, turned)
        for model, turned in ways for weight in model.trainable_variables
    })  # fmt: skip
    try:
        yield
    finally:
        _copies.reset(token)


def converted(weight: tf.Tensor, dtype: tf.DType, turned: bool = False) -> tf.Tensor:
    """A weight in another type, `turned`: the transpose of a matrix."""
    copy = _copies.get({}).get((weight.ref(), turned))
    if copy is not None:
        return copy
    return tf.transpose(tf.cast(weight, dtype)) if turned else tf.cast(weight, dtype)


class Layer(keras.layers.Layer):
    """Base of the blocks: float32 weights, inputs left in the dtype they come in."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, autocast=False, dtype="float32")

    def kernel(
        self, name: str, width_in: int, width_out: int, seed: Iterator[int], parts: int = 1
    ) -> tf.Variable:
        """The matrix of a projection, or of several (`parts`) with the same input, side by side.

        Uniform in +-sqrt(6 / (inputs + outputs)) of one of them (Glorot, Bengio 2010, eq. 16).
        """
        limit = math.sqrt(6 / (width_in + width_out))
        start = keras.initializers.RandomUniform(-limit, limit, seed=next(seed))
        return self.add_weight(name, [width_in, parts * width_out], initializer=start)

    def bias_if(self, biased: bool, name: str, width: int) -> tf.Variable | None:
        """A bias that begins with zeros; None if the block is not `biased`."""
        return self.add_weight(name, [width], initializer="zeros") if biased else None


class LayerNorm(Layer):
    """Layer normalisation over the last axis in float32 (Ba et al. 2016)."""

    def __init__(self, config: ModelConfig, name: str) -> None:
        super().__init__(name)
        self.epsilon = config.norm_epsilon
        self.scale = self.add_weight("scale", [config.width], initializer="ones")
        self.offset = self.add_weight("offset", [config.width], initializer="zeros")

    def call(self, x_BxTxD: tf.Tensor) -> tf.Tensor:
        y_BxTxD = _layer_norm(tf.cast(x_BxTxD, tf.float32), self.scale, self.offset, self.epsilon)
        return tf.cast(y_BxTxD, x_BxTxD.dtype)


class FeedForward(Layer):
    """Two affine maps with an activation, and dropout of the hidden units, between them."""

    def __init__(self, config: ModelConfig, seed: Iterator[int], name: str) -> None:
        super().__init__(name)
        width, hidden = config.width, config.feed_forward_width
        self.activation, self.rate = _ACTIVATIONS[config.activation], config.feed_forward_dropout
        self.inner = self.kernel("inner", width, hidden, seed)
        self.inner_bias = self.add_weight("inner_bias", [hidden], initializer="zeros")
        self.outer = self.kernel("outer", hidden, width, seed)
        self.outer_bias = self.add_weight("outer_bias", [width], initializer="zeros")

    def call(self, x_BxTxD: tf.Tensor, drop: Drop) -> tf.Tensor:
        h_BxTxF = self.activation(linear(x_BxTxD, self.inner, self.inner_bias))
        return linear(drop(h_BxTxF, self.rate), self.outer, self.outer_bias)


def linear(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None = None) -> tf.Tensor:
    """x [..., I] times kernel [I, O] plus a bias [O], if any: [..., O], in the dtype of x."""
    width_in, width_out = kernel.shape
    multiply = _narrowing_matmul if width_in > width_out else tf.matmul
    y = multiply(tf.reshape(x, [-1, width_in]), converted(kernel, x.dtype))
    if bias is not None:
        add = _add_bias if x.dtype == tf.bfloat16 else tf.nn.bias_add
        y = add(y, converted(bias, x.dtype))
    return tf.reshape(y, tf.concat([tf.shape(x)[:-1], [width_out]], 0))


@tf.custom_gradient
def _add_bias(y_NxO: tf.Tensor, bias_O: tf.Tensor) -> Any:
    """The sum; the gradient of a bias by a tree, not row after row: 256 + 1 is 256 in bfloat16."""
    # A product with ones takes a third of the time, but its bits depend on the number of threads.
    return tf.nn.bias_add(y_NxO, bias_O), lambda dy_NxO: (dy_NxO, tf.reduce_sum(dy_NxO, 0))


@tf.custom_gradient
def _narrowing_matmul(x_NxI: tf.Tensor, kernel_IxO: tf.Tensor) -> Any:
    """The product; the gradient of a tall kernel as its transpose, which is faster on a CPU."""

    def gradient(dy_NxO: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        dkernel_OxI = tf.matmul(dy_NxO, x_NxI, transpose_a=True)
        return tf.matmul(dy_NxO, kernel_IxO, transpose_b=True), tf.transpose(dkernel_OxI)

    return tf.matmul(x_NxI, kernel_IxO), gradient


def _layer_norm(
    x_BxTxD: tf.Tensor, scale_D: tf.Tensor, offset_D: tf.Tensor, epsilon: float
) -> tf.Tensor:
    """Layer normalisation with the closed-form gradient, half the passes of automatic ones."""

    @tf.custom_gradient
    def normalised(x_BxTxD: tf.Tensor, scale_D: tf.Tensor, offset_D: tf.Tensor) -> Any:
        mean_BxTx1, variance_BxTx1 = tf.nn.moments(x_BxTxD, [-1], keepdims=True)
        inverse_BxTx1 = tf.math.rsqrt(variance_BxTx1 + epsilon)
        unit_BxTxD = (x_BxTxD - mean_BxTx1) * inverse_BxTx1

        def gradient(dy_BxTxD: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            width = scale_D.shape[0]
            dy_NxD = tf.reshape(dy_BxTxD, [-1, width])
            dscale_NxD = dy_NxD * tf.reshape(unit_BxTxD, [-1, width])
            # Row means of dy x scale and of dy x unit x scale, as matrix-vector products.
            shape, share_Dx1 = tf.shape(inverse_BxTx1), scale_D[:, None] / width
            level_BxTx1 = tf.reshape(tf.matmul(dy_NxD, share_Dx1), shape)
            along_BxTx1 = tf.reshape(tf.matmul(dscale_NxD, share_Dx1), shape)
            dx_BxTxD = dy_BxTxD * scale_D - level_BxTx1 - unit_BxTxD * along_BxTx1
            return inverse_BxTx1 * dx_BxTxD, tf.reduce_sum(dscale_NxD, 0), tf.reduce_sum(dy_NxD, 0)

        return unit_BxTxD * scale_D + offset_D, gradient

    return normalised(x_BxTxD, scale_D, offset_D)
