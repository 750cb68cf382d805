"""Scores of given translations by a model that copies; a real one is in test_translator."""

import numpy as np
import tensorflow as tf

from hvd_nmt.config import EOS
from hvd_nmt.model.scorer import Scorer

VOCABULARY = 40


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
    rng = np.random.default_rng(5)
    sources = [np.append(rng.integers(3, VOCABULARY, n), EOS).astype(np.int32) for n in (4, 8, 1)]
    for index, scores in Scorer(Copier()).score(sources, sources):
        assert scores.alignment_T.tolist() == list(range(len(sources[index])))
        np.testing.assert_allclose(scores.logp_T, 0, atol=1e-4)
