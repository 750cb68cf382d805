"""The blocks against tf_keras and plain NumPy."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from hvd_nmt.config import ModelConfig
from hvd_nmt.model import layers


def normal(*shape, seed=0, scale=1.0):
    return np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)


@pytest.mark.parametrize(("offset", "spread"), [(0.0, 1.0), (3.0, 0.01), (0.0, 100.0)])
def test_layer_norm_and_its_gradients_equal_kerass(offset, spread):
    shape = (2, 7, 16)
    x = normal(*shape, scale=spread) + np.float32(offset)
    dy, scale, shift = normal(*shape, seed=1), normal(16, seed=2), normal(16, seed=3)
    ours = layers.LayerNorm(ModelConfig(width=16), "norm")
    theirs = keras.layers.LayerNormalization(epsilon=1e-6)
    theirs.build(shape)
    found = []
    for layer, *weights in (ours, ours.scale, ours.offset), (theirs, theirs.gamma, theirs.beta):
        for weight, value in zip(weights, (scale, shift), strict=True):
            weight.assign(value)
        x_variable = tf.Variable(x)
        with tf.GradientTape() as tape:
            y = layer(x_variable)
            score = tf.reduce_sum(y * dy)
        found.append([y, *tape.gradient(score, [x_variable, *weights])])
    for name, mine, reference in zip(("y", "dx", "dscale", "doffset"), *found, strict=True):
        largest = np.abs(reference.numpy()).max()
        np.testing.assert_allclose(mine, reference, rtol=2e-4, atol=2e-4 * largest, err_msg=name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_layer_norm_computes_in_float32_and_gives_the_dtype_it_gets(dtype):
    x = tf.cast(normal(4, 16) + 30, dtype)  # in float16 the squares would be inexact
    y = layers.LayerNorm(ModelConfig(width=16), "norm")(x)
    assert y.dtype == dtype
    x = np.asarray(x).astype(np.float64)
    wanted = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(tf.cast(y, tf.float32), wanted, rtol=2**-8, atol=2**-10)


def test_gradients_of_a_tall_kernel_equal_those_of_a_plain_product():
    x, kernel, bias = normal(3, 5, 24), normal(24, 8, seed=1), normal(8, seed=2)
    found = gradients(layers.linear, x, kernel, bias)
    wanted = gradients(lambda x, kernel, bias: x @ kernel + bias, x, kernel, bias)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def gradients(f, *values):
    values = [tf.convert_to_tensor(value) for value in values]
    with tf.GradientTape() as tape:
        tape.watch(values)
        result = tf.reduce_sum(tf.sin(f(*values)))
    return tape.gradient(result, values)
