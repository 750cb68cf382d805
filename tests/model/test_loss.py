"""The fused loss against automatic differentiation of its definition."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.model import loss as loss_module
from hvd_nmt.model.loss import Loss, cross_entropy, smoothing_entropy

pytestmark = pytest.mark.usefixtures("on")
TOKENS, WIDTH, VOCABULARY = 13, 8, 24


def batch(tokens=TOKENS, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    states = rng.normal(0, scale, (tokens, WIDTH)).astype(np.float32)
    embedding = rng.normal(0, 0.7, (VOCABULARY, WIDTH)).astype(np.float32)
    labels = rng.integers(1, VOCABULARY, tokens).astype(np.int32)
    labels[::4] = 0
    return states, embedding, labels


def reference(states, embedding, labels, smoothing):
    """The definition, in float64: cross-entropy with the smoothed label minus its entropy."""
    logp = tf.nn.log_softmax(tf.matmul(states, embedding, transpose_b=True))
    size = embedding.shape[0]
    label = tf.one_hot(labels, size, 1 - smoothing, smoothing / (size - 1), dtype=tf.float64)
    entropy = -tf.reduce_sum(tf.math.multiply_no_nan(tf.math.log(label), label), -1)
    real = tf.cast(labels != 0, tf.float64)
    smoothed = -tf.reduce_sum(label * logp, -1) - entropy
    nll = -tf.gather(logp, labels, batch_dims=1)
    return Loss(tf.reduce_sum(smoothed * real), tf.reduce_sum(nll * real))


def with_gradients(function, states, embedding, labels, smoothing, dtype=tf.float32, factor=1.0):
    embedding_dtype = tf.float64 if dtype == tf.float64 else tf.float32
    states = tf.Variable(tf.cast(states, dtype))
    embedding = tf.Variable(tf.cast(embedding, embedding_dtype))
    with tf.GradientTape() as tape:
        found = function(states, embedding, tf.constant(labels), smoothing)
        score = found.smoothed * tf.cast(factor, found.smoothed.dtype)
    gradients = tape.gradient(score, [states, embedding])
    return [tf.cast(x, tf.float64).numpy() for x in (*found, *map(tf.convert_to_tensor, gradients))]


def found_of(*given, **more):
    """Value and gradients of the fused loss, of a batch of `batch()` unless one is given."""
    return with_gradients(cross_entropy, *(given or batch()), 0.1, **more)


def assert_close(found, wanted, rtol):
    names = "smoothed", "nll", "dstates", "dmatrix"
    for name, mine, right in zip(names, found, wanted, strict=True):
        largest = max(np.abs(right).max(), 1e-3)
        np.testing.assert_allclose(mine, right, rtol=rtol, atol=rtol * largest, err_msg=name)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_value_and_gradients_equal_the_definition(smoothing, scale):
    states, embedding, labels = batch(scale=scale)
    found = with_gradients(cross_entropy, states, embedding, labels, smoothing)
    wanted = with_gradients(reference, states, embedding, labels, smoothing, tf.float64)
    assert_close(found, wanted, 1e-5)


@pytest.mark.parametrize(
    ("rows", "in_graph"), [(1, True), (3, True), (3, False), (12, True), (13, True)]
)
def test_pieces_change_nothing(rows, in_graph, monkeypatch):
    wanted = found_of()
    for name in ("ON_CPU", "ON_GPU"):
        monkeypatch.setattr(loss_module, name, rows * VOCABULARY + VOCABULARY // 2)
    function = tf.function(cross_entropy, autograph=False) if in_graph else cross_entropy
    assert_close(with_gradients(function, *batch(), 0.1), wanted, 1e-6)


@pytest.mark.parametrize(("dtype", "bits"), [(tf.bfloat16, 8), (tf.float16, 11)])
def test_half_precision_is_close_over_a_real_vocabulary(dtype, bits):
    """Sums over 32,768 small probabilities must not lose what each of them adds."""
    rng = np.random.default_rng(3)
    embedding = rng.normal(0, 512**-0.5, (32_768, 16)).astype(np.float32)
    states = rng.normal(0, 5, (48, 16)).astype(np.float32)
    labels = rng.integers(1, 32_768, 48).astype(np.int32)
    found = found_of(states, embedding, labels, dtype=dtype)
    wanted = found_of(states, embedding, labels)
    np.testing.assert_allclose(found[:2], wanted[:2], rtol=2.0**-bits)
    for mine, right in zip(found[2:], wanted[2:], strict=True):
        assert np.linalg.norm(mine - right) < 2 * 2.0**-bits * np.linalg.norm(right)


def test_the_gradient_scales_with_what_comes_from_above():
    for found, wanted in zip(found_of(factor=0.25)[2:], found_of()[2:], strict=True):
        np.testing.assert_allclose(found, 0.25 * wanted, rtol=1e-6)


@pytest.mark.parametrize("labels", [np.zeros(TOKENS, np.int32), np.zeros(0, np.int32)])
def test_padding_alone_is_zero_with_zero_gradient(labels):
    states, embedding, _ = batch(len(labels))
    for x in found_of(states, embedding, labels):
        np.testing.assert_array_equal(x, 0)


def test_the_entropy_of_the_smoothed_label():
    assert smoothing_entropy(0.1, 32_768) == pytest.approx(1.36480, abs=5e-6)
    assert smoothing_entropy(0.0, 32_768) == 0
    labels = np.array([0.9, *[0.1 / 23] * 23])
    assert smoothing_entropy(0.1, 24) == pytest.approx(-(labels * np.log(labels)).sum(), rel=1e-12)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_extremely_confident_wrong_logits_stay_finite(smoothing, dtype):
    labels = np.arange(1, VOCABULARY, dtype=np.int32)
    states = 1000 * np.eye(VOCABULARY, dtype=np.float32)[(labels + 1) % VOCABULARY]
    embedding = np.eye(VOCABULARY, dtype=np.float32)
    found = with_gradients(cross_entropy, states, embedding, labels, smoothing, dtype)
    assert all(np.all(np.isfinite(x)) for x in found)
    assert found[1] / len(labels) > 80
    # The gradient is exact: the wrong token down, the right one up.
    wanted = with_gradients(reference, states, embedding, labels, smoothing, tf.float64)
    np.testing.assert_allclose(found[2], wanted[2], atol=1e-2)


def test_nan_is_not_hidden():
    states, embedding, labels = batch()
    states[1, 2] = np.nan
    assert np.all(np.isnan(found_of(states, embedding, labels)[:2]))
