"""The kinds of Transformer that only imported weights need."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.checkpoints.size import predict
from hvd_nmt.checkpoints.state import weights_by_path
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import BOS, EOS, PAD, ModelConfig
from hvd_nmt.model import architectures
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.loss import cross_entropy
from hvd_nmt.model.transformer import sinusoids
from hvd_nmt.model.translator import Translator

VOCABULARY = 40
PLAIN = ModelConfig(2, 2, 16, 2, 32, max_length=24)
MARIAN = dataclasses.replace(
    PLAIN, norm="post", norm_epsilon=1e-5, activation="swish", biases="all", positions="marian"
)
VARIANTS = {
    "openseq2seq": dataclasses.replace(PLAIN, start="openseq2seq"),
    "marian": MARIAN,
    "both": dataclasses.replace(MARIAN, start="openseq2seq", activation="gelu"),
}


@pytest.fixture(scope="module", params=VARIANTS)
def model(request):
    """A tiny model with random norms and biases, so that nothing cancels by symmetry."""
    model = architectures.build(VARIANTS[request.param], VOCABULARY, seed=3)
    rng = np.random.default_rng(3)
    for weight in model.trainable_variables:
        if len(weight.shape) == 1:
            weight.assign_add(rng.normal(0, 0.2, weight.shape))
    return model


def ids(lengths, seed=5):
    rng = np.random.default_rng(seed)
    rows = np.full((len(lengths), max(lengths)), PAD, np.int32)
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = np.append(rng.integers(3, VOCABULARY, length - 1), EOS)
    return rows


def test_weights_are_counted(model):
    weights = weights_by_path(model)
    predicted = predict(model.config, VOCABULARY).parameters
    assert sum(int(np.prod(weight.shape)) for weight in weights.values()) == predicted


def test_scores_of_a_beam_are_those_of_the_full_decoder(model):
    (source_S,) = ids([7])
    decoding = Decoding(beam_size=3, n_best=3, length_penalty=0.0, max_length=10)
    ((_, found),) = Translator(model, decoding).translate([source_S])
    for translation in found:
        logits = model(source_S[None], translation.ids[None])
        logp = tf.nn.log_softmax(logits[0]).numpy()
        right = logp[np.arange(len(translation.ids)), translation.ids]
        assert translation.score == pytest.approx(right.sum(), abs=1e-4)


def test_padding_and_company_change_nothing(model):
    source, target = ids([5, 9, 2]), ids([7, 3, 8], seed=6)
    together = model(np.pad(source, [(0, 0), (0, 8)]), np.pad(target, [(0, 0), (0, 9)])).numpy()
    for row, (length_S, length_T) in enumerate(((5, 7), (9, 3), (2, 8))):
        alone = model(source[row : row + 1, :length_S], target[row : row + 1, :length_T]).numpy()
        np.testing.assert_allclose(together[row, :length_T], alone[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close(model, dtype):
    source, target = ids([5, 9]), ids([7, 8], seed=6)
    half = architectures.build(model.config, VOCABULARY, dtype, seed=3)
    for weight, value in zip(half.variables, model.variables, strict=True):
        weight.assign(value)
    exact, logits = model(source, target).numpy(), half(source, target).numpy()
    bits = {"bfloat16": 8, "float16": 11}[dtype]
    assert 0 < np.sqrt(np.mean((logits - exact) ** 2)) / exact.std() < 6 * 2.0**-bits


def test_the_loss_adds_the_bias_of_the_softmax_and_every_weight_has_a_gradient(model):
    source, target = ids([5, 9]), ids([7, 8], seed=6)
    labels_N = target.reshape(-1)
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


def test_openseq2seq_reads_a_zero_vector_and_bos_first():
    config = VARIANTS["openseq2seq"]
    model, plain = (architectures.build(c, VOCABULARY, seed=3) for c in (config, PLAIN))
    source, target = ids([5]), ids([7], seed=6)
    memory = plain.encode(np.concatenate([[[BOS]], source], 1))
    inputs_1xT = np.concatenate([[[PAD, BOS]], target[:, :-1]], 1)
    states_1xTxD = plain.states(inputs_1xT, memory)[0][:, 1:]
    np.testing.assert_allclose(model(source, target), plain.logits(states_1xTxD), atol=1e-6)


def test_sinusoids_of_marian_follow_the_papers_formula():
    signal_TxD = sinusoids(tf.range(50), 12, open_ended=True).numpy()
    for position in (0, 1, 7, 49):
        for unit in range(6):
            angle = position / 10_000 ** (2 * unit / 12)
            assert signal_TxD[position, unit] == pytest.approx(np.sin(angle), abs=2e-5)
            assert signal_TxD[position, 6 + unit] == pytest.approx(np.cos(angle), abs=2e-5)


def test_learned_positions_have_no_place_for_the_zero_vector():
    with pytest.raises(ConfigError, match="sinusoidal"):
        dataclasses.replace(PLAIN, start="openseq2seq", positions="learned")
