"""Ids in, log-probabilities out. Letters as in `model`."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.model import device
from hvd_nmt.model.batching import batches, cut, padded
from hvd_nmt.model.transformer import Transformer

# Logits held at a time by all searches, 128 MB in float32: batches are made smaller for it.
ELEMENTS_AT_ONCE = 1 << 25


class TokenScores(NamedTuple):
    """What a model gives a translation."""

    logp_T: np.ndarray  # float32, natural logarithm of the probability of each token
    alignment_T: np.ndarray  # int32, the source position that a token gets most attention from


class Scorer:
    """Scores with the weights models have at the call; of several with their mean probability."""

    def __init__(self, models: Transformer | Sequence[Transformer]) -> None:
        self._models = members(models)
        self.max_length = min(model.max_length for model in self._models)
        """longest source and target, tokens with eos"""
        any_batch = tf.TensorSpec([None, None], tf.int32)
        self._graph = tf.function(
            self._score, input_signature=[any_batch, any_batch], autograph=False
        )

    def score(
        self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], batch_tokens: int = 4096
    ) -> Iterator[tuple[int, TokenScores]]:
        """Log-probabilities and alignments of given translations.

        Args:
            sources: ids, ending with eos; more than `max_length` are cut to it.
            targets: at most `max_length` ids each.
            batch_tokens: scored at once, padding included; fewer where the vocabulary is large.

        Yields:
            (index, scores of its tokens), long sentences first.
        """
        source_ids = [cut(ids, self.max_length) for ids in sources]
        longer = [max(len(a), len(b)) for a, b in zip(source_ids, targets, strict=True)]
        room = ELEMENTS_AT_ONCE // self._models[0].vocabulary_size // device.searches()
        for batch in batches(longer, max(1, min(batch_tokens, room)), least=1):
            tensors = (tf.constant(padded([x[i] for i in batch])) for x in (source_ids, targets))
            scores = [tensor.numpy() for tensor in self._graph(*tensors)]
            for index, logp_T, alignment_T in zip(batch, *scores, strict=True):
                length = len(targets[index])
                yield index, TokenScores(logp_T[:length], alignment_T[:length])

    def _score(self, source_BxS: tf.Tensor, target_BxT: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        scores, attentions = [], []
        for model in self._models:
            states_BxTxD, attention = model.decode_with_attention(
                target_BxT, model.encode(source_BxS)
            )
            logits_BxTxV = model.logits(states_BxTxD)
            scores.append(-tf.nn.sparse_softmax_cross_entropy_with_logits(target_BxT, logits_BxTxV))
            attentions.append(attention)
        alignment_BxT = tf.argmax(mean_attention(attentions), -1, output_type=tf.int32)
        return mean_probability(scores), alignment_BxT


def members(models: Any) -> tuple[Any, ...]:
    """The models of an ensemble; of one model, that one."""
    ensemble = tuple(models) if isinstance(models, Sequence) else (models,)
    sizes = sorted({model.vocabulary_size for model in ensemble})
    if len(sizes) != 1:
        raise ConfigError(
            f"An ensemble needs models of one vocabulary, but these have {sizes or 'no'} tokens:"
            " use checkpoints of runs with the same spm.model."
        )
    return ensemble


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
