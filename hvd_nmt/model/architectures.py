"""Which class of model a configuration asks for: ours, or NVIDIA OpenSeq2Seq's.

OpenSeq2Seq reads a source between bos and eos, and its decoder a zero vector first, after which it
is to predict bos; so everything lies one position later, in the source and in the target. Ids,
states and attention weights of the methods below are those of the sentences alone.

Source: open_seq2seq/decoders/transformer_decoder.py of NVIDIA/OpenSeq2Seq.
"""

import tensorflow as tf

from hvd_nmt.config import BOS, PAD, ModelConfig
from hvd_nmt.model.attention import Cache
from hvd_nmt.model.dropout import no_dropout
from hvd_nmt.model.layers import Drop
from hvd_nmt.model.transformer import Attention, Memory, Transformer, shifted


class OpenSeq2SeqTransformer(Transformer):
    """A Transformer for weights of OpenSeq2Seq; its own are initialised as the others are."""

    def encode(self, source_BxS: tf.Tensor, drop: Drop = no_dropout) -> Memory:
        """Read bos and the source."""
        with_bos_BxS = tf.pad(source_BxS, [[0, 0], [1, 0]], constant_values=BOS)
        return super().encode(with_bos_BxS, drop)

    def decode_with_attention(
        self, target_BxT: tf.Tensor, memory: Memory, drop: Drop = no_dropout
    ) -> tuple[tf.Tensor, Attention]:
        """See `Transformer.decode_with_attention`; the weights leave out what bos gets."""
        # Padding is embedded as a zero vector; what follows it is bos, and nobody need predict it.
        inputs_BxT = tf.pad(shifted(target_BxT), [[0, 0], [1, 0]], constant_values=PAD)
        states_BxTxD, attention = self.states(inputs_BxT, memory, drop)
        return states_BxTxD[:, 1:], tuple(weights[:, :, 1:, 1:] for weights in attention)

    def decode_step(
        self,
        ids_BxQ: tf.Tensor,
        position: tf.Tensor,
        origins_BxQxT: tf.Tensor,
        memory: Memory,
        cache: tuple[Cache, ...],
    ) -> tuple[tf.Tensor, Attention, tuple[Cache, ...]]:
        """See `Transformer.decode_step`; the weights leave out what bos gets."""
        # The zero vector that the decoder reads first is the same for all hypotheses.
        zero_BxQx1 = tf.zeros_like(origins_BxQxT[:, :, :1])
        first_BxQxT = tf.concat([zero_BxQx1, -tf.ones_like(origins_BxQxT)], 2)
        origins_BxQxT = tf.concat([zero_BxQx1, origins_BxQxT], 2)
        step, zero_vector_BxQ = super().decode_step, tf.zeros_like(ids_BxQ)
        cache = tf.cond(
            position == 0,
            lambda: step(zero_vector_BxQ, position, first_BxQxT, memory, cache)[2],
            lambda: cache,
        )
        logits_BxQxV, attention, cache = step(ids_BxQ, position + 1, origins_BxQxT, memory, cache)
        return logits_BxQxV, tuple(weights[..., 1:] for weights in attention), cache


ARCHITECTURES = {"bos": Transformer, "openseq2seq": OpenSeq2SeqTransformer}
"""class of each `model.start`"""


def build(
    config: ModelConfig, vocabulary_size: int, compute_dtype: str = "float32", seed: int = 1,
    *, source_vocabulary_size: int = 0,
) -> Transformer:  # fmt: skip
    """The model of a run, with fresh weights; arguments as of `Transformer`."""
    return ARCHITECTURES[config.start](
        config, vocabulary_size, compute_dtype, seed, source_vocabulary_size=source_vocabulary_size
    )
