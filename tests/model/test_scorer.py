"""Scores of given translations, against the full decoder and against a model that copies."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.config import EOS, ModelConfig
from hvd_nmt.model.scorer import Scorer
from hvd_nmt.model.transformer import Transformer

VOCABULARY = 40


def sentences(lengths, seed):
    rng = np.random.default_rng(seed)
    return [np.append(rng.integers(3, VOCABULARY, n - 1), EOS).astype(np.int32) for n in lengths]


@pytest.mark.parametrize("batch_tokens", [1000, 1])
def test_scores_are_those_of_the_full_decoder(batch_tokens):
    model = Transformer(ModelConfig(2, 2, 16, 2, 32, max_length=24), VOCABULARY, seed=3)
    sources, targets = sentences([3, 12, 1, 7], 5), sentences([9, 2, 4, 1], 6)
    found = dict(Scorer(model).score(sources, targets, batch_tokens))
    assert sorted(found) == [0, 1, 2, 3]
    for index, (logp_T, _) in found.items():
        source, target = sources[index], targets[index]
        logits = model(tf.constant([source]), tf.constant([target]))
        expected = tf.nn.log_softmax(logits)[0].numpy()[np.arange(len(target)), target]
        np.testing.assert_allclose(logp_T, expected, rtol=1e-4)
        assert logp_T.dtype == np.float32


class Copier:
    """A model that looks at the source token it copies, with one head of two in its last layer."""

    max_length, vocabulary_size = 24, VOCABULARY

    def encode(self, source_BxS):
        return source_BxS

    def decode_with_attention(self, target_BxT, source_BxS):
        (B, T), S = tf.unstack(tf.shape(target_BxT)), tf.shape(source_BxS)[1]
        even = tf.ones([B, 1, T, S]) / tf.cast(S, tf.float32)
        here = tf.repeat(tf.eye(T, S)[None, None], B, 0)
        return source_BxS, (tf.reverse(here, [2]), tf.concat([even, here], 1))

    def logits(self, source_BxS):
        return tf.one_hot(source_BxS, VOCABULARY, on_value=20.0)


def test_a_copying_model_aligns_each_token_with_itself():
    sources = sentences([5, 9, 2], 5)
    for index, scores in Scorer(Copier()).score(sources, sources):
        assert scores.alignment_T.tolist() == list(range(len(sources[index])))
        np.testing.assert_allclose(scores.logp_T, 0, atol=1e-4)
