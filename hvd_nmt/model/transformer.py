"""The Transformer (Vaswani et al. 2017), pre-norm, with one matrix for source, target and softmax.

B sentences, S source and T target positions, D model width, V vocabulary, H heads, K units per
head, N = B x beam hypotheses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from hvd_nmt.config import BOS, PAD, ModelConfig
from hvd_nmt.model import layers
from hvd_nmt.model.dropout import no_dropout
from hvd_nmt.model.layers import Cache, Drop


class Memory(NamedTuple):
    """What the decoder needs of the source: everything has one row per sentence."""

    keys_values: tuple[Cache, ...]
    """for each decoder layer the cross-attention keys and values, each [B, H, S, K]"""
    bias_Bx1x1xS: tf.Tensor


class EncoderLayer(layers.Block):
    """Self-attention and feed-forward, each normalised before and added to the stream."""

    def __init__(self, config: ModelConfig, seed: Iterator[int], name: str) -> None:
        super().__init__(name)
        width = config.width
        self.rate = config.dropout
        self.attention_norm = layers.LayerNorm(width, "attention_norm")
        self.attention = layers.SelfAttention(
            width, config.heads, config.attention_dropout, seed, "attention"
        )
        self.feed_forward_norm = layers.LayerNorm(width, "feed_forward_norm")
        self.feed_forward = layers.FeedForward(
            width, config.feed_forward_width, config.feed_forward_dropout, seed, "feed_forward"
        )

    def call(self, x_BxSxD: tf.Tensor, bias_Bx1x1xS: tf.Tensor, drop: Drop) -> tf.Tensor:
        y_BxSxD = self.attention(self.attention_norm(x_BxSxD), bias_Bx1x1xS, drop)
        x_BxSxD += drop(y_BxSxD, self.rate)
        y_BxSxD = self.feed_forward(self.feed_forward_norm(x_BxSxD), drop)
        return x_BxSxD + drop(y_BxSxD, self.rate)


class DecoderLayer(layers.Block):
    """Causal self-attention, attention over the source, feed-forward."""

    def __init__(self, config: ModelConfig, seed: Iterator[int], name: str) -> None:
        super().__init__(name)
        width, heads, rate = config.width, config.heads, config.attention_dropout
        self.rate = config.dropout
        self.attention_norm = layers.LayerNorm(width, "attention_norm")
        self.attention = layers.SelfAttention(width, heads, rate, seed, "attention")
        self.cross_attention_norm = layers.LayerNorm(width, "cross_attention_norm")
        self.cross_attention = layers.CrossAttention(width, heads, rate, seed, "cross_attention")
        self.feed_forward_norm = layers.LayerNorm(width, "feed_forward_norm")
        self.feed_forward = layers.FeedForward(
            width, config.feed_forward_width, config.feed_forward_dropout, seed, "feed_forward"
        )

    def call(
        self,
        x_BxTxD: tf.Tensor,
        keys_values: Cache,
        cross_bias_Bx1x1xS: tf.Tensor,
        causal_bias_1x1xTxT: tf.Tensor,
        drop: Drop,
    ) -> tf.Tensor:
        y_BxTxD = self.attention(self.attention_norm(x_BxTxD), causal_bias_1x1xTxT, drop)
        x_BxTxD += drop(y_BxTxD, self.rate)
        y_BxTxD = self.cross_attention(
            self.cross_attention_norm(x_BxTxD), keys_values, cross_bias_Bx1x1xS, drop
        )
        x_BxTxD += drop(y_BxTxD, self.rate)
        y_BxTxD = self.feed_forward(self.feed_forward_norm(x_BxTxD), drop)
        return x_BxTxD + drop(y_BxTxD, self.rate)

    def step(
        self,
        x_Nx1xD: tf.Tensor,
        keys_values: Cache,
        cross_bias_Bx1x1xS: tf.Tensor,
        cache: Cache,
    ) -> tuple[tf.Tensor, Cache]:
        """One position of N = B x beam hypotheses.

        The hypotheses of one sentence enter cross-attention as that sentence's queries, so the
        keys and values of the source are not repeated for each of them.
        """
        y_Nx1xD, cache = self.attention.step(self.attention_norm(x_Nx1xD), cache)
        x_Nx1xD += y_Nx1xD
        sentences, width = tf.shape(keys_values[0])[0], x_Nx1xD.shape[-1]
        x_BxQxD = tf.reshape(self.cross_attention_norm(x_Nx1xD), [sentences, -1, width])
        y_BxQxD = self.cross_attention(x_BxQxD, keys_values, cross_bias_Bx1x1xS, no_dropout)
        x_Nx1xD += tf.reshape(y_BxQxD, tf.shape(x_Nx1xD))
        return x_Nx1xD + self.feed_forward(self.feed_forward_norm(x_Nx1xD), no_dropout), cache


class Transformer(keras.Model):
    """Source ids and shifted target ids in, next-token logits out.

    Args:
        config: sizes and dropout.
        vocabulary_size: rows of the shared matrix.
        compute_dtype: float32, bfloat16 or float16: dtype of activations and matrix products.
            Weights, layer normalisation and logits are float32.
        seed: of the initial weights.

    Source of the choices: NVIDIA OpenSeq2Seq transformer-base, see the recipe's sizes in
    `config.presets`.
    """

    def __init__(
        self,
        config: ModelConfig,
        vocabulary_size: int,
        compute_dtype: str = "float32",
        seed: int = 1,
    ) -> None:
        super().__init__(name="transformer", autocast=False, dtype="float32")
        self.config, self.vocabulary_size = config, vocabulary_size
        self.activation_dtype = tf.as_dtype(compute_dtype)
        supply = layers.seeds(seed)
        self.embedding = self.add_weight(
            "embedding",
            [vocabulary_size, config.width],
            initializer=keras.initializers.RandomNormal(0, config.width**-0.5, seed=next(supply)),
        )
        self.positions = None
        if config.positions == "learned":
            self.positions = self.add_weight(
                "positions",
                [config.max_length, config.width],
                initializer=keras.initializers.RandomNormal(0, 0.02, seed=next(supply)),
            )
        self.encoder = [
            EncoderLayer(config, supply, f"encoder_{i}") for i in range(config.encoder_layers)
        ]
        self.encoder_norm = layers.LayerNorm(config.width, "encoder_norm")
        self.decoder = [
            DecoderLayer(config, supply, f"decoder_{i}") for i in range(config.decoder_layers)
        ]
        self.decoder_norm = layers.LayerNorm(config.width, "decoder_norm")
        self.built = True

    @property
    def max_length(self) -> int:
        """Longest source or target, tokens with eos."""
        return self.config.max_length

    def call(
        self, source_BxS: tf.Tensor, target_BxT: tf.Tensor, drop: Drop = no_dropout
    ) -> tf.Tensor:
        """Logits of every target token given the source and the tokens before it, float32 BxTxV."""
        return self.logits(self.decode(target_BxT, self.encode(source_BxS, drop), drop))

    def encode(self, source_BxS: tf.Tensor, drop: Drop = no_dropout) -> Memory:
        """Read the source; int32 ids, padded with 0."""
        is_pad_BxS = tf.equal(source_BxS, PAD)
        bias_Bx1x1xS = layers.padding_bias(is_pad_BxS)
        x_BxSxD = self._embed(source_BxS, tf.range(tf.shape(source_BxS)[1]))
        x_BxSxD = drop(x_BxSxD, self.config.dropout)
        for layer in self.encoder:
            x_BxSxD = layer(x_BxSxD, bias_Bx1x1xS, drop)
        x_BxSxD = self.encoder_norm(x_BxSxD)
        keys_values = layers.remember(x_BxSxD, [layer.cross_attention for layer in self.decoder])
        return Memory(keys_values, bias_Bx1x1xS)

    def decode(
        self, target_BxT: tf.Tensor, memory: Memory, drop: Drop = no_dropout
    ) -> tf.Tensor:
        """Final decoder states BxTxD that predict each target token; target ids end with eos."""
        shifted_BxT = tf.pad(target_BxT[:, :-1], [[0, 0], [1, 0]], constant_values=BOS)
        length = tf.shape(target_BxT)[1]
        x_BxTxD = drop(self._embed(shifted_BxT, tf.range(length)), self.config.dropout)
        causal_bias_1x1xTxT = layers.causal_bias(length)
        for layer, keys_values in zip(self.decoder, memory.keys_values, strict=True):
            x_BxTxD = layer(x_BxTxD, keys_values, memory.bias_Bx1x1xS, causal_bias_1x1xTxT, drop)
        return self.decoder_norm(x_BxTxD)

    def logits(self, x_BxTxD: tf.Tensor) -> tf.Tensor:
        """Scores of the next token, float32 BxTxV."""
        x_NxD = tf.reshape(x_BxTxD, [-1, self.config.width])
        logits_NxV = tf.matmul(x_NxD, tf.cast(self.embedding, x_NxD.dtype), transpose_b=True)
        shape = tf.concat([tf.shape(x_BxTxD)[:-1], [self.vocabulary_size]], 0)
        return tf.cast(tf.reshape(logits_NxV, shape), tf.float32)

    def initial_cache(self, rows: tf.Tensor) -> tuple[Cache, ...]:
        """Self-attention keys and values of `rows` hypotheses at no position yet, NxHx0xK each."""
        shape = [rows, self.config.heads, 0, self.config.width // self.config.heads]
        empty = tf.zeros(shape, self.activation_dtype)
        return tuple((empty, empty) for _ in self.decoder)

    def decode_step(
        self, ids_N: tf.Tensor, position: tf.Tensor, memory: Memory, cache: tuple[Cache, ...]
    ) -> tuple[tf.Tensor, tuple[Cache, ...]]:
        """Logits after one more token of each of N = B x beam hypotheses.

        Args:
            ids_N: the newest token of each hypothesis; bos at position 0. The hypotheses of a
                sentence are neighbours.
            position: int32 scalar, of this token.
            memory: of the B sentences.
            cache: of the N hypotheses, up to the position before.

        Returns:
            Logits NxV float32, and the cache one position longer.
        """
        x_Nx1xD = self._embed(ids_N[:, None], position[None])
        grown = []
        for layer, keys_values, layer_cache in zip(
            self.decoder, memory.keys_values, cache, strict=True
        ):
            x_Nx1xD, layer_cache = layer.step(
                x_Nx1xD, keys_values, memory.bias_Bx1x1xS, layer_cache
            )
            grown.append(layer_cache)
        return self.logits(self.decoder_norm(x_Nx1xD))[:, 0], tuple(grown)

    def _embed(self, ids_BxT: tf.Tensor, position_T: tf.Tensor) -> tf.Tensor:
        """Embeddings x sqrt(D), zero at padding, plus the position signal."""
        x_BxTxD = tf.gather(self.embedding, ids_BxT) * self.config.width**0.5
        x_BxTxD *= tf.cast(tf.not_equal(ids_BxT, PAD), x_BxTxD.dtype)[:, :, None]
        if self.positions is None:
            signal_TxD = sinusoids(position_T, self.config.width)
        else:
            signal_TxD = tf.gather(self.positions, position_T)
        return tf.cast(x_BxTxD + signal_TxD, self.activation_dtype)


def sinusoids(position_T: tf.Tensor, width: int) -> tf.Tensor:
    """Position signal TxD, [sin | cos] halves with wavelengths from 2 pi to 10,000 x 2 pi.

    Source: Vaswani et al. 2017, section 3.5, in the layout of the recipe (halves, not pairs).
    """
    half = width // 2
    rates_D = 10_000.0 ** (-np.arange(half) / max(half - 1, 1))
    angle_TxD = tf.cast(position_T, tf.float32)[:, None] * rates_D.astype(np.float32)
    return tf.concat([tf.sin(angle_TxD), tf.cos(angle_TxD)], -1)
