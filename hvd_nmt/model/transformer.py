"""The Transformer (Vaswani et al. 2017), with one matrix for source, target and softmax.

A source with another vocabulary than the target has its own matrix, too. Letters as in `model`.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from hvd_nmt.config import BOS, PAD, ModelConfig
from hvd_nmt.model import attention
from hvd_nmt.model.attention import Cache, CrossAttention, SelfAttention
from hvd_nmt.model.dropout import no_dropout
from hvd_nmt.model.layers import Drop, FeedForward, Layer, LayerNorm, converted
from hvd_nmt.model.loss import Loss, cross_entropy

Attention = tuple[tf.Tensor, ...]
"""cross-attention weights of each decoder layer, [B, H, T, S] before dropout"""


class TransformerLayer(Layer):
    """Self-attention, attention over the source if it `reads_source`, and feed-forward.

    Each is added to the stream. Pre-norm: x + f(norm(x)). Post-norm: norm(x + f(x)).
    """

    def __init__(
        self, config: ModelConfig, seed: Iterator[int], name: str, *, reads_source: bool = False
    ) -> None:
        super().__init__(name)
        self.rate, self.pre_norm = config.dropout, config.norm == "pre"
        self.attention_norm = LayerNorm(config, "attention_norm")
        self.attention = SelfAttention(config, seed, "attention")
        if reads_source:
            self.cross_attention_norm = LayerNorm(config, "cross_attention_norm")
            self.cross_attention = CrossAttention(config, seed, "cross_attention")
        self.feed_forward_norm = LayerNorm(config, "feed_forward_norm")
        self.feed_forward = FeedForward(config, seed, "feed_forward")

    def call(
        self, x_BxTxD: tf.Tensor, bias: tf.Tensor, drop: Drop, keys_values: Cache | None = None,
        cross_bias_Bx1x1xS: tf.Tensor = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:  # fmt: skip
        """All T positions at once: the stream after this layer, and its cross-attention weights.

        These are [B, H, T, S], None in an encoder. The biases hide padding and what comes later.
        """
        y_BxTxD = self.attention(self._read(self.attention_norm, x_BxTxD), bias, drop)
        x_BxTxD = self._added(self.attention_norm, x_BxTxD, y_BxTxD, drop)
        return self._after_self_attention(x_BxTxD, keys_values, cross_bias_Bx1x1xS, drop)

    def step(
        self, x_BxKxD: tf.Tensor, keys_values: Cache, cross_bias_Bx1x1xS: tf.Tensor,
        cache: Cache, position: tf.Tensor, history_bias_Bx1xKxL: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, Cache]:  # fmt: skip
        """One position of K hypotheses of each sentence, as in `call` and `SelfAttention.step`.

        They are the queries of their sentence, so the keys and values of the source are not
        repeated for each of them. Weights are [B, H, K, S]; the cache gets this position.
        """
        y_BxKxD = self._read(self.attention_norm, x_BxKxD)
        y_BxKxD, cache = self.attention.step(y_BxKxD, cache, position, history_bias_Bx1xKxL)
        x_BxKxD = self._added(self.attention_norm, x_BxKxD, y_BxKxD, no_dropout)
        x_BxKxD, weights_BxHxKxS = self._after_self_attention(
            x_BxKxD, keys_values, cross_bias_Bx1x1xS, no_dropout
        )
        return x_BxKxD, weights_BxHxKxS, cache

    def _after_self_attention(
        self, x_BxTxD: tf.Tensor, keys_values: Cache | None, cross_bias: tf.Tensor, drop: Drop
    ) -> tuple[tf.Tensor, tf.Tensor]:
        weights_BxHxTxS = None
        if keys_values is not None:
            y_BxTxD, weights_BxHxTxS = self.cross_attention(
                self._read(self.cross_attention_norm, x_BxTxD), keys_values, cross_bias, drop
            )
            x_BxTxD = self._added(self.cross_attention_norm, x_BxTxD, y_BxTxD, drop)
        y_BxTxD = self.feed_forward(self._read(self.feed_forward_norm, x_BxTxD), drop)
        return self._added(self.feed_forward_norm, x_BxTxD, y_BxTxD, drop), weights_BxHxTxS

    def _read(self, norm: LayerNorm, x_BxTxD: tf.Tensor) -> tf.Tensor:
        return norm(x_BxTxD) if self.pre_norm else x_BxTxD

    def _added(
        self, norm: LayerNorm, x_BxTxD: tf.Tensor, y_BxTxD: tf.Tensor, drop: Drop
    ) -> tf.Tensor:
        # The automatic gradient of + would see whether one is broadcast.
        x_BxTxD = tf.add_n([x_BxTxD, drop(y_BxTxD, self.rate)])
        return x_BxTxD if self.pre_norm else norm(x_BxTxD)


class Memory(NamedTuple):
    """What the decoder needs of the source: everything has one row per sentence."""

    keys_values: tuple[Cache, ...]
    """cross-attention keys and values of each decoder layer, each [B, H, S, U]"""
    bias_Bx1x1xS: tf.Tensor


class Transformer(keras.Model):
    """Source ids and shifted target ids in, next-token logits out.

    Args:
        vocabulary_size: rows of the matrix of target and softmax, which the source shares.
        compute_dtype: float32, bfloat16 or float16: dtype of activations and matrix products.
            Weights, layer normalisation and logits are float32.
        source_vocabulary_size: rows of the source's own matrix; 0: it has none.

    Source of the choices: NVIDIA OpenSeq2Seq transformer-base, see `config.presets`.
    """

    extra_positions = 0
    """positions that a sequence needs beyond its tokens"""

    def __init__(
        self, config: ModelConfig, vocabulary_size: int, compute_dtype: str = "float32",
        seed: int = 1, *, source_vocabulary_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(name="transformer", autocast=False, dtype="float32")
        self.config, self.vocabulary_size = config, vocabulary_size
        self.source_vocabulary_size = source_vocabulary_size
        self.max_length = config.max_length
        """longest source or target, tokens with eos"""
        self.activation_dtype = tf.as_dtype(compute_dtype)
        supply = itertools.count(seed * 100_000)
        """a seed for each initial weight"""

        def matrix(name: str, rows: int, deviation: float = config.width**-0.5) -> tf.Variable:
            normal = keras.initializers.RandomNormal(0, deviation, seed=next(supply))
            return self.add_weight(name, [rows, config.width], initializer=normal)

        self.embedding = matrix("embedding", vocabulary_size)
        rows, learned = source_vocabulary_size, config.positions == "learned"
        self.source_embedding = matrix("source_embedding", rows) if rows else None
        self.positions = matrix("positions", config.max_length, 0.02) if learned else None
        self.encoder = [
            TransformerLayer(config, supply, f"encoder_{i}") for i in range(config.encoder_layers)
        ]
        # A post-norm stack ends with a norm already.
        pre_norm = config.norm == "pre"
        self.encoder_norm = LayerNorm(config, "encoder_norm") if pre_norm else tf.identity
        self.decoder = [
            TransformerLayer(config, supply, f"decoder_{i}", reads_source=True)
            for i in range(config.decoder_layers)
        ]
        self.decoder_norm = LayerNorm(config, "decoder_norm") if pre_norm else tf.identity
        self.logits_bias = None
        if config.biases == "all":
            shape = [vocabulary_size]
            self.logits_bias = self.add_weight("logits_bias", shape, initializer="zeros")
        self.built = True

    def call(
        self, source_BxS: tf.Tensor, target_BxT: tf.Tensor, drop: Drop = no_dropout
    ) -> tf.Tensor:
        """Logits BxTxV, float32, of every target token, given the source and the tokens before it.

        Both are int32 ids, each row ending with eos and padded with 0.
        """
        return self.logits(self.decode(target_BxT, self.encode(source_BxS, drop), drop))

    def encode(self, source_BxS: tf.Tensor, drop: Drop = no_dropout) -> Memory:
        """Read the source; int32 ids, padded with 0."""
        bias_Bx1x1xS = attention.hidden(tf.equal(source_BxS, PAD))[:, None, None, :]
        embedding_VxD = self.embedding
        if self.source_embedding is not None:
            embedding_VxD = self.source_embedding
        x_BxSxD = self._embed(source_BxS, tf.range(tf.shape(source_BxS)[1]), embedding_VxD)
        x_BxSxD = drop(x_BxSxD, self.config.dropout)
        for layer in self.encoder:
            x_BxSxD, _ = layer(x_BxSxD, bias_Bx1x1xS, drop)
        x_BxSxD = self.encoder_norm(x_BxSxD)
        keys_values = attention.cross_keys_values(
            x_BxSxD, [layer.cross_attention for layer in self.decoder]
        )
        return Memory(keys_values, bias_Bx1x1xS)

    def decode(self, target_BxT: tf.Tensor, memory: Memory, drop: Drop = no_dropout) -> tf.Tensor:
        """Final decoder states [B, T, D] that predict each target token; target as in `call`."""
        return self.decode_with_attention(target_BxT, memory, drop)[0]

    def decode_with_attention(
        self, target_BxT: tf.Tensor, memory: Memory, drop: Drop = no_dropout
    ) -> tuple[tf.Tensor, Attention]:
        """What `decode` gives, and where each layer looks in the source to predict each token."""
        return self.states(shifted(target_BxT), memory, drop)

    def states(
        self, inputs_BxT: tf.Tensor, memory: Memory, drop: Drop = no_dropout
    ) -> tuple[tf.Tensor, Attention]:
        """Decoder states [B, T, D] after each token read, and the cross-attention of each layer.

        The tokens are int32 ids, usually bos and the target without its last token.
        """
        position_T = tf.range(tf.shape(inputs_BxT)[1])
        x_BxTxD = self._embed(inputs_BxT, position_T, self.embedding)
        x_BxTxD = drop(x_BxTxD, self.config.dropout)
        is_later_TxT = position_T[None, :] > position_T[:, None]
        causal_bias_1x1xTxT = attention.hidden(is_later_TxT)[None, None]
        weights_by_layer = []
        for layer, keys_values in zip(self.decoder, memory.keys_values, strict=True):
            x_BxTxD, weights_BxHxTxS = layer(
                x_BxTxD, causal_bias_1x1xTxT, drop, keys_values, memory.bias_Bx1x1xS
            )
            weights_by_layer.append(weights_BxHxTxS)
        return self.decoder_norm(x_BxTxD), tuple(weights_by_layer)

    def logits(self, x_BxTxD: tf.Tensor) -> tf.Tensor:
        """Scores of the next token, float32 BxTxV."""
        x_NxD = tf.reshape(x_BxTxD, [-1, self.config.width])
        logits_NxV = tf.matmul(x_NxD, converted(self.embedding, x_NxD.dtype, turned=True))
        if self.logits_bias is not None:
            logits_NxV += converted(self.logits_bias, x_NxD.dtype)
        shape = tf.concat([tf.shape(x_BxTxD)[:-1], [self.vocabulary_size]], 0)
        return tf.cast(tf.reshape(logits_NxV, shape), tf.float32)

    def target_loss(
        self, states_BxTxD: tf.Tensor, target_BxT: tf.Tensor, label_smoothing: float
    ) -> Loss:
        """Loss of the decoder's states against the target, see `cross_entropy`."""
        states_NxD = tf.reshape(states_BxTxD, [-1, self.config.width])
        target_N = tf.reshape(target_BxT, [-1])
        return cross_entropy(
            states_NxD, self.embedding, target_N, label_smoothing, self.logits_bias
        )

    def initial_cache(self, sentences: tf.Tensor) -> tuple[Cache, ...]:
        """Self-attention keys and values of hypotheses at no position yet, [B, H, 0, U] each."""
        shape = [sentences, self.config.heads, 0, self.config.width // self.config.heads]
        empty = tf.zeros(shape, self.activation_dtype)
        return tuple((empty, empty) for _ in self.decoder)

    def decode_step(
        self, ids_BxK: tf.Tensor, position: tf.Tensor, origins_BxKxT: tf.Tensor, memory: Memory,
        cache: tuple[Cache, ...],
    ) -> tuple[tf.Tensor, Attention, tuple[Cache, ...]]:  # fmt: skip
        """Logits after one more token of each of K hypotheses per sentence.

        Args:
            ids_BxK: the newest token of each hypothesis; bos at position 0.
            position: int32 scalar, of this token.
            origins_BxKxT: int64, see `attention.history_bias`. T is at least position + 1.
            cache: of all hypotheses of the positions before; `initial_cache` at position 0.

        Returns:
            Logits BxKxV float32, the cross-attention weights [B, H, K, S] of each layer, and the
            cache with this position in it.
        """
        shape = tf.shape(origins_BxKxT)
        cache = tf.nest.map_structure(lambda x: attention.with_room(x, shape[1] * shape[2]), cache)
        x_BxKxD = self._embed(ids_BxK, position[None], self.embedding)
        bias_Bx1xKxL = attention.history_bias(origins_BxKxT)
        weights_by_layer, grown = [], []
        parts = zip(self.decoder, memory.keys_values, cache, strict=True)
        for layer, keys_values, layer_cache in parts:
            x_BxKxD, weights_BxHxKxS, layer_cache = layer.step(
                x_BxKxD, keys_values, memory.bias_Bx1x1xS, layer_cache, position, bias_Bx1xKxL
            )
            weights_by_layer.append(weights_BxHxKxS)
            grown.append(layer_cache)
        return self.logits(self.decoder_norm(x_BxKxD)), tuple(weights_by_layer), tuple(grown)

    def position_signal(self, position_T: tf.Tensor) -> tf.Tensor:
        """What makes positions differ, float32 TxD: learned, or [sin | cos] halves.

        Their wavelengths go from 2 pi to 10,000 x 2 pi in the recipe. In the paper's own formula,
        which Marian follows, the longest stays one step below.

        Source: Vaswani et al. 2017, section 3.5, in the layout of the recipe (halves, not pairs).
        """
        if self.positions is not None:
            return tf.gather(self.positions, position_T)
        half = self.config.width // 2
        steps = half if self.config.positions == "marian" else max(half - 1, 1)
        rates_D = 10_000.0 ** (-np.arange(half) / steps)
        angle_TxD = tf.cast(position_T, tf.float32)[:, None] * rates_D.astype(np.float32)
        return tf.concat([tf.sin(angle_TxD), tf.cos(angle_TxD)], -1)

    def _embed(
        self, ids_BxT: tf.Tensor, position_T: tf.Tensor, embedding_VxD: tf.Variable
    ) -> tf.Tensor:
        """Embeddings x sqrt(D), zero at padding, plus the position signal."""
        # Not from the variable itself: TensorFlow would copy it in every decoding step.
        table_VxD = tf.convert_to_tensor(embedding_VxD)
        x_BxTxD = tf.gather(table_VxD, ids_BxT) * self.config.width**0.5
        x_BxTxD *= tf.cast(tf.not_equal(ids_BxT, PAD), x_BxTxD.dtype)[:, :, None]
        if self.config.positions != "rotary":
            x_BxTxD += self.position_signal(position_T)
        return tf.cast(x_BxTxD, self.activation_dtype)


class OpenSeq2SeqTransformer(Transformer):
    """A Transformer for weights of NVIDIA OpenSeq2Seq.

    That reads a source between bos and eos, and its decoder a zero vector first, after which it is
    to predict bos; so everything lies one position later, in the source and in the target. Ids,
    states and attention weights of the methods are those of the sentences alone.

    Source: open_seq2seq/decoders/transformer_decoder.py of NVIDIA/OpenSeq2Seq.
    """

    extra_positions = 1

    def encode(self, source_BxS: tf.Tensor, drop: Drop = no_dropout) -> Memory:
        """Read bos and the source."""
        return super().encode(tf.pad(source_BxS, [[0, 0], [1, 0]], constant_values=BOS), drop)

    def decode_with_attention(
        self, target_BxT: tf.Tensor, memory: Memory, drop: Drop = no_dropout
    ) -> tuple[tf.Tensor, Attention]:
        """See `Transformer.decode_with_attention`; what bos gets is no part of the weights."""
        # Padding is embedded as a zero vector; what follows it is bos, which is given.
        inputs_BxT = tf.pad(shifted(target_BxT), [[0, 0], [1, 0]], constant_values=PAD)
        states_BxTxD, attention = self.states(inputs_BxT, memory, drop)
        return states_BxTxD[:, 1:], tuple(weights[:, :, 1:, 1:] for weights in attention)

    def decode_step(
        self, ids_BxK: tf.Tensor, position: tf.Tensor, origins_BxKxT: tf.Tensor, memory: Memory,
        cache: tuple[Cache, ...],
    ) -> tuple[tf.Tensor, Attention, tuple[Cache, ...]]:  # fmt: skip
        """See `Transformer.decode_step`; what bos gets is no part of the weights."""
        # The zero vector that the decoder reads first is the same for all hypotheses.
        zero_BxKx1 = tf.zeros_like(origins_BxKxT[:, :, :1])
        first_BxKxT = tf.concat([zero_BxKx1, -tf.ones_like(origins_BxKxT)], 2)
        origins_BxKxT = tf.concat([zero_BxKx1, origins_BxKxT], 2)
        step, zero_vector_BxK = super().decode_step, tf.zeros_like(ids_BxK)
        cache = tf.cond(
            position == 0,
            lambda: step(zero_vector_BxK, position, first_BxKxT, memory, cache)[2],
            lambda: cache,
        )
        logits_BxKxV, attention, cache = step(ids_BxK, position + 1, origins_BxKxT, memory, cache)
        return logits_BxKxV, tuple(weights[..., 1:] for weights in attention), cache


def build_transformer(
    config: ModelConfig, vocabulary_size: int, compute_dtype: str = "float32", seed: int = 1,
    *, source_vocabulary_size: int = 0,
) -> Transformer:  # fmt: skip
    """The model that a configuration asks for, with fresh weights; see `Transformer`."""
    kind = OpenSeq2SeqTransformer if config.start == "openseq2seq" else Transformer
    return kind(
        config, vocabulary_size, compute_dtype, seed, source_vocabulary_size=source_vocabulary_size
    )


def shifted(target_BxT: tf.Tensor) -> tf.Tensor:
    """What the decoder reads to predict the target: bos, and the target without its last token."""
    return tf.pad(target_BxT[:, :-1], [[0, 0], [1, 0]], constant_values=BOS)
