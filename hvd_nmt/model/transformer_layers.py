"""The layers of encoder and decoder: attention and feed-forward, each with norm and residual.

B sentences, S source and T target positions, D model width, H heads, K units per head, Q hypotheses
of a sentence in a decoding step, L cached keys of a head.
"""

from collections.abc import Iterator

import tensorflow as tf

from hvd_nmt.config import ModelConfig
from hvd_nmt.model.attention import Cache, CrossAttention, SelfAttention
from hvd_nmt.model.dropout import no_dropout
from hvd_nmt.model.layers import Block, Drop, FeedForward, LayerNorm, added


class Layer(Block):
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
        self,
        x_BxTxD: tf.Tensor,
        bias: tf.Tensor,
        drop: Drop,
        keys_values: Cache | None = None,
        cross_bias_Bx1x1xS: tf.Tensor = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """All T positions at once: the stream after this layer, and its cross-attention weights.

        These are [B, H, T, S], None in an encoder. The biases hide padding and what comes later.
        """
        y_BxTxD = self.attention(self._read(self.attention_norm, x_BxTxD), bias, drop)
        x_BxTxD = self._added(self.attention_norm, x_BxTxD, y_BxTxD, drop)
        return self._after_self_attention(x_BxTxD, keys_values, cross_bias_Bx1x1xS, drop)

    def step(
        self,
        x_BxQxD: tf.Tensor,
        keys_values: Cache,
        cross_bias_Bx1x1xS: tf.Tensor,
        cache: Cache,
        position: tf.Tensor,
        history_bias_Bx1xQxL: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, Cache]:
        """One position of Q hypotheses of each sentence, as in `call` and `SelfAttention.step`.

        They are the queries of their sentence, so the keys and values of the source are not
        repeated for each of them. Weights are [B, H, Q, S]; the cache gets this position.
        """
        y_BxQxD = self._read(self.attention_norm, x_BxQxD)
        y_BxQxD, cache = self.attention.step(y_BxQxD, cache, position, history_bias_Bx1xQxL)
        x_BxQxD = self._added(self.attention_norm, x_BxQxD, y_BxQxD, no_dropout)
        x_BxQxD, weights_BxHxQxS = self._after_self_attention(
            x_BxQxD, keys_values, cross_bias_Bx1x1xS, no_dropout
        )
        return x_BxQxD, weights_BxHxQxS, cache

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
        x_BxTxD = added(x_BxTxD, drop(y_BxTxD, self.rate))
        return x_BxTxD if self.pre_norm else norm(x_BxTxD)
