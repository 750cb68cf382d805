"""Our Transformer as CTranslate2's specification of one: the same numbers under other names.

- Kernels are [in, out] here and [out, in] there; queries, keys and values are fused in both.
- One matrix serves source, target and softmax, unless the source has its own, and is scaled by
  sqrt(D) where it embeds. Its rows beyond the vocabulary, there to make a multiple of 8, get names
  that no text can hold.
- Positions are a table made by our own code, one row for each place.
- The epsilon of layer normalisation is the model's, not CTranslate2's 1e-5.
- The engine adds eos to the source itself and begins the target with bos.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from ctranslate2 import specs

from hvd_nmt.config import BOS, EOS, UNK
from hvd_nmt.model.architectures import OpenSeq2SeqTransformer
from hvd_nmt.model.transformer import Transformer

_ACTIVATIONS = {
    "relu": specs.Activation.RELU,
    "swish": specs.Activation.SWISH,
    "gelu": specs.Activation.GELU,
}


def specification(
    model: Transformer, source_pieces: Sequence[str], pieces: Sequence[str], quantization: str
) -> specs.TransformerSpec:
    """A specification with all weights, validated and quantized: ready for `save`.

    Pieces are by id. `quantization` is one of `hvd_nmt.formats.Quantization`.
    """
    config = model.config
    spec = specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=_ACTIVATIONS[config.activation],
    )
    halves = {"float16": np.float16, "bfloat16": tf.bfloat16.as_numpy_dtype}
    _Copy(halves.get(quantization, np.float32)).copy(spec, model)
    names = _names(pieces, model.vocabulary_size)
    source_rows = model.source_vocabulary_size or model.vocabulary_size
    spec.register_source_vocabulary(_names(source_pieces, source_rows))
    spec.register_target_vocabulary(names)
    settings = spec.config
    settings.bos_token, settings.eos_token, settings.unk_token = names[BOS], names[EOS], names[UNK]
    settings.decoder_start_token = names[BOS]
    settings.add_source_bos = isinstance(model, OpenSeq2SeqTransformer)
    settings.add_source_eos = True
    settings.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize(quantization if quantization.startswith("int8") else None)
    return spec


def _names(pieces: Sequence[str], rows: int) -> list[str]:
    return [*pieces, *(f"<unused {number}>" for number in range(len(pieces), rows))]


def position_table(model: Transformer) -> tf.Tensor:
    """The signal of every position that the model can have, float32 [positions, D].

    One more has none: to score a translation that was cut at the limit, the engine adds eos to it.
    """
    signal = model.position_signal(tf.range(model.max_length + extra_positions(model)))
    return tf.pad(signal, [[0, 1], [0, 0]])


def extra_positions(model: Transformer) -> int:
    """Positions that a sequence needs beyond the tokens it is made of."""
    return 1 if isinstance(model, OpenSeq2SeqTransformer) else 0


class _Copy:
    """Copies the weights of a model into a specification, as numbers of one dtype."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = dtype

    def copy(self, spec: specs.TransformerSpec, model: Transformer) -> None:
        embedding, table = self._array(model.embedding), self._array(position_table(model))
        encoder, decoder = spec.encoder, spec.decoder
        for part in (encoder.embeddings[0], decoder.embeddings, decoder.projection):
            part.weight = embedding
        if model.source_embedding is not None:
            encoder.embeddings[0].weight = self._array(model.source_embedding)
        if model.logits_bias is not None:
            decoder.projection.bias = self._array(model.logits_bias)
        for part in (encoder, decoder):
            part.scale_embeddings = True
            part.position_encodings.encodings = table
        decoder.start_from_zero_embedding = isinstance(model, OpenSeq2SeqTransformer)
        for part, layer in zip(encoder.layer, model.encoder, strict=True):
            self._self_attention(part.self_attention, layer)
            self._feed_forward(part.ffn, layer)
        for part, layer in zip(decoder.layer, model.decoder, strict=True):
            self._self_attention(part.self_attention, layer)
            self._cross_attention(part.attention, layer)
            self._feed_forward(part.ffn, layer)
        if model.config.norm == "pre":
            self._norm(encoder.layer_norm, model.encoder_norm)
            self._norm(decoder.layer_norm, model.decoder_norm)

    def _self_attention(self, spec: Any, layer: Any) -> None:
        block = layer.attention
        self._norm(spec.layer_norm, layer.attention_norm)
        self._linear(spec.linear[0], block.qkv, block.qkv_bias)
        self._linear(spec.linear[1], block.output_kernel, block.output_bias)

    def _cross_attention(self, spec: Any, layer: Any) -> None:
        block = layer.cross_attention
        self._norm(spec.layer_norm, layer.cross_attention_norm)
        self._linear(spec.linear[0], block.query, block.query_bias)
        self._linear(spec.linear[1], block.key_value, block.key_value_bias)
        self._linear(spec.linear[2], block.output_kernel, block.output_bias)

    def _feed_forward(self, spec: Any, layer: Any) -> None:
        block = layer.feed_forward
        self._norm(spec.layer_norm, layer.feed_forward_norm)
        self._linear(spec.linear_0, block.inner, block.inner_bias)
        self._linear(spec.linear_1, block.outer, block.outer_bias)

    def _norm(self, spec: Any, norm: Any) -> None:
        spec.gamma, spec.beta = self._array(norm.scale), self._array(norm.offset)

    def _linear(self, spec: Any, kernel_IxO: tf.Tensor, bias_O: tf.Tensor | None) -> None:
        spec.weight = np.ascontiguousarray(self._array(kernel_IxO).T)
        if bias_O is not None:
            spec.bias = self._array(bias_O)

    def _array(self, tensor: tf.Tensor) -> np.ndarray:
        return tensor.numpy().astype(self._dtype)
