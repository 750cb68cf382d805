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
    """Sub-layers, each with its normalisation, added to the stream one after the other.

    Pre-norm: x + f(norm(x)). Post-norm: norm(x + f(x)).
    """

    def __init__(self, config: ModelConfig, name: str) -> None:
        super().__init__(name)
        self.rate, self.pre_norm = config.dropout, config.norm == "pre"

    def norm_before(self, norm: LayerNorm, x_BxTxD: tf.Tensor) -> tf.Tensor:
        """What a sub-layer reads of the stream."""
        return norm(x_BxTxD) if self.pre_norm else x_BxTxD

    def norm_after(self, norm: LayerNorm, x_BxTxD: tf.Tensor) -> tf.Tensor:
        """The stream after a sub-layer's output was added."""
        return x_BxTxD if self.pre_norm else norm(x_BxTxD)


class EncoderLayer(Layer):
    """Self-attention and feed-forward."""

    def __init__(self, config: ModelConfig, seed: Iterator[int], name: str) -> None:
        super().__init__(config, name)
        self.attention_norm = LayerNorm(config, "attention_norm")
        self.attention = SelfAttention(config, seed, "attention")
        self.feed_forward_norm = LayerNorm(config, "feed_forward_norm")
        self.feed_forward = FeedForward(config, seed, "feed_forward")

    def call(self, x_BxSxD: tf.Tensor, bias_Bx1x1xS: tf.Tensor, drop: Drop) -> tf.Tensor:
        """The stream after this layer, [B, S, D]; the bias hides the padding of the source."""
        y_BxSxD = self.norm_before(self.attention_norm, x_BxSxD)
        x_BxSxD = added(x_BxSxD, drop(self.attention(y_BxSxD, bias_Bx1x1xS, drop), self.rate))
        x_BxSxD = self.norm_after(self.attention_norm, x_BxSxD)
        y_BxSxD = self.norm_before(self.feed_forward_norm, x_BxSxD)
        x_BxSxD = added(x_BxSxD, drop(self.feed_forward(y_BxSxD, drop), self.rate))
        return self.norm_after(self.feed_forward_norm, x_BxSxD)


class DecoderLayer(Layer):
    """Causal self-attention, attention over the source, feed-forward."""

    def __init__(self, config: ModelConfig, seed: Iterator[int], name: str) -> None:
        super().__init__(config, name)
        self.attention_norm = LayerNorm(config, "attention_norm")
        self.attention = SelfAttention(config, seed, "attention")
        self.cross_attention_norm = LayerNorm(config, "cross_attention_norm")
        self.cross_attention = CrossAttention(config, seed, "cross_attention")
        self.feed_forward_norm = LayerNorm(config, "feed_forward_norm")
        self.feed_forward = FeedForward(config, seed, "feed_forward")

    def call(
        self,
        x_BxTxD: tf.Tensor,
        keys_values: Cache,
        cross_bias_Bx1x1xS: tf.Tensor,
        causal_bias_1x1xTxT: tf.Tensor,
        drop: Drop,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """All T positions at once: the stream after this layer, and its cross-attention weights.

        These are [B, H, T, S], the source's keys and values [B, H, S, K] each. The biases hide the
        padding of the source, and what comes later in the target.
        """
        y_BxTxD = self.norm_before(self.attention_norm, x_BxTxD)
        y_BxTxD = self.attention(y_BxTxD, causal_bias_1x1xTxT, drop)
        x_BxTxD = added(x_BxTxD, drop(y_BxTxD, self.rate))
        x_BxTxD = self.norm_after(self.attention_norm, x_BxTxD)
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
        y_BxQxD = self.norm_before(self.attention_norm, x_BxQxD)
        y_BxQxD, cache = self.attention.step(y_BxQxD, cache, position, history_bias_Bx1xQxL)
        x_BxQxD = self.norm_after(self.attention_norm, x_BxQxD + y_BxQxD)
        x_BxQxD, weights_BxHxQxS = self._after_self_attention(
            x_BxQxD, keys_values, cross_bias_Bx1x1xS, no_dropout
        )
        return x_BxQxD, weights_BxHxQxS, cache

    def _after_self_attention(
        self, x_BxTxD: tf.Tensor, keys_values: Cache, cross_bias_Bx1x1xS: tf.Tensor, drop: Drop
    ) -> tuple[tf.Tensor, tf.Tensor]:
        y_BxTxD = self.norm_before(self.cross_attention_norm, x_BxTxD)
        y_BxTxD, weights_BxHxTxS = self.cross_attention(
            y_BxTxD, keys_values, cross_bias_Bx1x1xS, drop
        )
        x_BxTxD = added(x_BxTxD, drop(y_BxTxD, self.rate))
        x_BxTxD = self.norm_after(self.cross_attention_norm, x_BxTxD)
        y_BxTxD = self.norm_before(self.feed_forward_norm, x_BxTxD)
        x_BxTxD = added(x_BxTxD, drop(self.feed_forward(y_BxTxD, drop), self.rate))
        return self.norm_after(self.feed_forward_norm, x_BxTxD), weights_BxHxTxS
