"""The Transformer: what may influence what, the cached step, dtypes, initial weights."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.config import BOS, EOS, PAD, ModelConfig
from hvd_nmt.model.attention import rotated
from hvd_nmt.model.loss import cross_entropy
from hvd_nmt.model.transformer import Transformer, build_transformer

VOCABULARY = 40
PLAIN = ModelConfig(2, 2, 16, 2, 32, max_length=24)
MARIAN = dataclasses.replace(
    PLAIN, norm="post", norm_epsilon=1e-5, activation="swish", biases="all", positions="marian"
)
OWN = {"sinusoidal": PLAIN} | {
    positions: dataclasses.replace(PLAIN, positions=positions)
    for positions in ("learned", "rotary")
}
IMPORTED = {
    "openseq2seq": dataclasses.replace(PLAIN, start="openseq2seq"),
    "marian": MARIAN,
    "both": dataclasses.replace(MARIAN, start="openseq2seq", activation="gelu"),
}
KINDS = OWN | IMPORTED
MOST_KINDS = [
    pytest.param(kind, marks=pytest.mark.long if kind in ("openseq2seq", "marian") else ())
    for kind in KINDS
]  # "both" is both of them


def tiny(kind="sinusoidal", dtype="float32"):
    """A tiny model whose norms and biases are random too, so that nothing cancels by symmetry."""
    model = build_transformer(KINDS[kind], VOCABULARY, dtype, seed=3)
    rng = np.random.default_rng(3)
    for weight in model.trainable_variables:
        if len(weight.shape) == 1:
            weight.assign_add(rng.normal(0, 0.2, weight.shape))
    return model


def ids(lengths, seed=5, width=None):
    """Random sentences that end with eos, padded to the longest or to `width`."""
    rng = np.random.default_rng(seed)
    rows = np.full((len(lengths), width or max(lengths)), PAD, np.int32)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = np.append(rng.integers(3, VOCABULARY, max(0, length - 1)), EOS)[:length]
    return rows


def padded_to(rows, width):
    return np.pad(rows, [(0, 0), (0, width - rows.shape[1])])


# What may influence what


@pytest.mark.parametrize("kind", OWN)
def test_no_gradient_flows_from_a_target_token_to_an_earlier_position(kind):
    model = tiny(kind)
    memory = model.encode(ids([5]))
    target_T = np.arange(10, 17, dtype=np.int32)  # all different: one embedding row per position
    inputs_T = [BOS, *target_T[:-1]]
    direction_D = tf.random.stateless_normal([16], [1, 2])
    for position in range(len(target_T)):
        with tf.GradientTape() as tape:
            states_BxTxD = model.decode(target_T[None], memory)
            score = tf.tensordot(states_BxTxD[0, position], direction_D, 1)
        slices = tape.gradient(score, model.embedding)
        rows_VxD = np.zeros([VOCABULARY, 16], np.float32)
        np.add.at(rows_VxD, slices.indices.numpy(), slices.values.numpy())
        influence_T = np.abs(rows_VxD[inputs_T]).max(-1)
        assert np.all(influence_T[: position + 1] > 1e-6)
        assert np.all(influence_T[position + 1 :] == 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_company_change_nothing(kind):
    model, lengths_S, lengths_T = tiny(kind), [5, 9, 2], [7, 3, 8]
    source, target = ids(lengths_S), ids(lengths_T, seed=6)
    together = model(padded_to(source, 17), padded_to(target, 20)).numpy()
    for row, (length_S, length_T) in enumerate(zip(lengths_S, lengths_T, strict=True)):
        alone = model(source[row : row + 1, :length_S], target[row : row + 1, :length_T]).numpy()
        np.testing.assert_allclose(together[row, :length_T], alone[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_row_of_padding_alone_is_finite_and_disturbs_no_other(dtype):
    model = tiny(dtype=dtype)
    source, target = ids([5, 0]), ids([6, 0])
    with tf.GradientTape() as tape:
        logits = model(source, target)
        loss = tf.reduce_sum(logits[0])
    assert np.all(np.isfinite(logits.numpy()))
    alone = model(source[:1], target[:1]).numpy()
    tolerance = {"float32": 2e-5, "float16": 5e-3, "bfloat16": 5e-2}[dtype]
    np.testing.assert_allclose(logits[0], alone[0], rtol=0, atol=tolerance)
    for gradient in tape.gradient(loss, model.trainable_variables):
        assert np.all(np.isfinite(tf.convert_to_tensor(gradient).numpy()))


# The cached step


@pytest.mark.parametrize("kind", MOST_KINDS)
def test_the_cached_step_equals_the_full_decoder_at_every_position(kind):
    """Hypotheses change places before every position, as they do in a beam search."""
    model, source, length, room, beams = tiny(kind), ids([6, 9]), 8, 11, 3
    rng = np.random.default_rng(beams)
    memory, cache = model.encode(source), model.initial_cache(2)
    tokens_BxKxT = np.zeros([2, beams, 0], np.int32)
    origins_BxKxT = np.full([2, beams, room], -1, np.int32)
    for position in range(length):
        parent_BxKx1 = rng.integers(0, beams, [2, beams, 1])
        tokens_BxKxT = np.take_along_axis(tokens_BxKxT, parent_BxKx1, 1)
        origins_BxKxT = np.take_along_axis(origins_BxKxT, parent_BxKx1, 1)
        origins_BxKxT[:, :, position] = np.arange(beams)
        newest_BxK = tokens_BxKxT[:, :, -1] if position else np.full([2, beams], BOS, np.int32)
        given = map(tf.constant, (newest_BxK, position, origins_BxKxT))
        logits_BxKxV, attention, cache = model.decode_step(*given, memory, cache)
        assert logits_BxKxV.dtype == tf.float32
        next_BxKx1 = rng.integers(3, VOCABULARY, [2, beams, 1]).astype(np.int32)
        tokens_BxKxT = np.concatenate([tokens_BxKxT, next_BxKx1], 2)
        for q in range(beams):
            states_BxTxD, wanted = model.decode_with_attention(tokens_BxKxT[:, q], memory)
            full_BxTxV = model.logits(states_BxTxD)
            np.testing.assert_allclose(logits_BxKxV[:, q], full_BxTxV[:, position], 0, 2e-5)
            for looks, looked in zip(attention, wanted, strict=True):  # of each layer
                np.testing.assert_allclose(looks[:, :, q], looked[:, :, position], 0, 1e-6)


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 8), ("float16", 11)])
@pytest.mark.parametrize("kind", MOST_KINDS)
def test_half_precision_is_close_and_its_logits_are_float32(dtype, bits, kind):
    source, target = ids([5, 9]), ids([7, 8], seed=6)
    exact = tiny(kind)(source, target).numpy()
    model = tiny(kind, dtype)
    assert model.decode(target, model.encode(source)).dtype == dtype
    assert model.initial_cache(2)[0][0].dtype == dtype
    logits = model(source, target)
    assert logits.dtype == tf.float32
    assert all(weight.dtype == tf.float32 for weight in model.variables)
    error = np.sqrt(np.mean((logits.numpy() - exact) ** 2)) / exact.std()
    assert 0 < error < (4 if kind in OWN else 6) * 2.0**-bits


def test_a_seed_decides_the_initial_weights():
    one, same, other = (Transformer(OWN["learned"], VOCABULARY, seed=seed) for seed in (1, 1, 2))
    weights = one.trainable_variables
    for a, b, c in zip(weights, same.variables, other.variables, strict=True):
        np.testing.assert_array_equal(a, b)
        if len(a.shape) == 2:
            assert np.all(a.numpy() != c.numpy())
    starts = [weight.numpy().ravel()[:9].tobytes() for weight in weights if len(weight.shape) == 2]
    assert len(set(starts)) == len(starts)  # no two of a model begin alike


def test_initial_distributions():
    width, hidden, vocabulary = 128, 320, 1000
    model = Transformer(ModelConfig(1, 1, width, 4, hidden), vocabulary, seed=11)
    embedding = model.embedding.numpy() * width**0.5  # standard normal
    assert abs(embedding.mean()) < 0.015
    assert abs(embedding.std() - 1) < 0.015
    assert np.abs(embedding).max() > 3.5  # not truncated
    for weight in model.variables:
        name = weight.name.rpartition("/")[-1].removesuffix(":0")
        if len(weight.shape) == 1:
            np.testing.assert_array_equal(weight, float(name == "scale"))
        elif name != "embedding":
            limit = (6 / (width + (hidden if name in ("inner", "outer") else width))) ** 0.5
            parts = {"qkv": 3, "key_value": 2}.get(name, 1)
            for kernel in np.split(weight.numpy(), parts, axis=1):
                assert 0.99 * limit < np.abs(kernel).max() <= limit
                assert abs(kernel.std() / (limit / 3**0.5) - 1) < 0.02
                assert abs(kernel.mean()) < 0.02 * limit


@pytest.mark.parametrize("kind", IMPORTED)
def test_the_loss_adds_the_bias_of_the_softmax_and_every_weight_has_a_gradient(kind):
    source, target = ids([5, 9]), ids([7, 8], seed=6)
    model, labels_N = tiny(kind), target.reshape(-1)
    with tf.GradientTape(persistent=True) as tape:
        states_BxTxD = model.decode(target, model.encode(source))
        fused = cross_entropy(
            tf.reshape(states_BxTxD, [-1, 16]), model.embedding, labels_N, 0.1, model.logits_bias
        ).smoothed
        logp_NxV = tf.reshape(tf.nn.log_softmax(model.logits(states_BxTxD)), [-1, VOCABULARY])
        right_NxV = tf.one_hot(labels_N, VOCABULARY, 0.9, 0.1 / (VOCABULARY - 1))
        terms_N = tf.reduce_sum(right_NxV * (tf.math.log(right_NxV) - logp_NxV), -1)
        plain = tf.reduce_sum(tf.where(labels_N != PAD, terms_N, 0.0))
    assert float(fused) == pytest.approx(float(plain), rel=1e-5)
    weights = model.trainable_variables
    ours, automatic = (tape.gradient(loss, weights) for loss in (fused, plain))
    for one, other in zip(ours, automatic, strict=True):
        one, other = (tf.convert_to_tensor(gradient).numpy() for gradient in (one, other))
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-4)
        assert np.abs(one).max() > 0


@pytest.mark.parametrize("kind", ["sinusoidal", "marian"])
@pytest.mark.parametrize(
    ("dtype", "most"), [("float32", 1e-5), ("bfloat16", 0.1), ("float16", 0.01)]
)
def test_gradients_over_many_rows_are_those_of_float64(kind, dtype, most):
    """8,192 target tokens: a sum in 16 bits, term by term, would stand still."""
    source, target = (ids([64] * 128, seed) for seed in (5, 6))

    def gradients(dtype):
        model = tiny(kind, dtype)
        with tf.GradientTape() as tape:
            states_NxD = tf.reshape(model.decode(target, model.encode(source)), [-1, 16])
            loss = cross_entropy(
                states_NxD, model.embedding, target.reshape(-1), 0.1, model.logits_bias
            ).smoothed
        found = tape.gradient(loss, model.trainable_variables)
        return [tf.convert_to_tensor(gradient).numpy() for gradient in found]

    for ours, wanted in zip(gradients(dtype), gradients("float64"), strict=True):
        assert np.linalg.norm(ours - wanted) < most * np.linalg.norm(wanted)


def test_each_place_has_its_rate_of_dropout():
    config = ModelConfig(
        1, 1, 16, 2, 32, dropout=0.1, attention_dropout=0.2, feed_forward_dropout=0.3
    )
    found = []

    def drop(x, rate):
        found.append((rate, *x.shape[1:]))
        return x

    Transformer(config, VOCABULARY)(ids([5]), ids([7]), drop)
    encoder = [(0.1, 5, 16), (0.2, 2, 5, 5), (0.1, 5, 16), (0.3, 5, 32), (0.1, 5, 16)]
    decoder = [(0.1, 7, 16), (0.2, 2, 7, 7), (0.1, 7, 16), (0.2, 2, 7, 5), (0.1, 7, 16)]
    assert found == [*encoder, *decoder, (0.3, 7, 32), (0.1, 7, 16)]


def test_rotary_products_are_those_of_complex_numbers_and_know_distances_alone():
    q, k = np.random.default_rng(7).normal(size=(2, 1, 1, 6, 8)).astype(np.float32)
    places = np.arange(6)
    turn = np.exp(1j * places[:, None] * 10_000.0 ** (-np.arange(4) / 4))

    def products(first):
        turned = [rotated(tf.constant(x), tf.constant(places + first)) for x in (q, k)]
        return tf.matmul(*turned, transpose_b=True).numpy()[0, 0]

    one, other = ((x[0, 0, :, :4] + 1j * x[0, 0, :, 4:]) * turn for x in (q, k))
    np.testing.assert_allclose(products(0), (one @ other.conj().T).real, atol=1e-5)
    np.testing.assert_allclose(products(0), products(9), atol=1e-4)
