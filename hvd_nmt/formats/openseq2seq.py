"""Checkpoints of NVIDIA OpenSeq2Seq's Transformer: names of its variables, and what they mean.

    ForwardPass/transformer_encoder/layer_0/self_attention/self_attention/q/kernel    a weight
    Loss_Optimization/ForwardPass/.../q/kernel/Adam    .../Adam_1                     its moments
    Loss_Optimization/FP32-master-copy/ForwardPass/.../q/kernel     mixed precision: the real weight
    global_step    beta1_power    beta2_power    and the loss scaler's

Kernels are [in, out] as here, without bias in attention. What stands before a sentence differs: see
`model.transformer.OpenSeq2SeqTransformer`.

Source: open_seq2seq/parts/transformer and decoders/transformer_decoder.py of NVIDIA/OpenSeq2Seq.
"""

import os
import re
from pathlib import Path

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints.find import read_fully
from hvd_nmt.checkpoints.names import literal, without_suffix
from hvd_nmt.checkpoints.state import adam_state, weights_by_path
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import ModelConfig
from hvd_nmt.formats.foreign import ForeignModel, assign
from hvd_nmt.model.tokenizer import Tokenizer
from hvd_nmt.model.transformer import build_transformer

MAX_LENGTH = 256
"""longest sentence that the recipe evaluates and translates, subword tokens"""
_MASTER_COPY = "FP32-master-copy/"
_EMBEDDING = "transformer_encoder/embedding_shared_weights/embedding_and_softmax/weights"
_INNER = "ffn/feed_foward_network/filter_layer/kernel"
_PARTS = re.compile(r"(?P<scope>.*?)ForwardPass/(?P<name>.*?)(?P<slot>/Adam(?:_1)?)?")


def read(checkpoint: Path, vocabulary: Path, heads: int) -> ForeignModel:
    """A checkpoint, by the prefix of its files with or without an ending, as our model.

    `vocabulary` is the SentencePiece model that it was trained with, `m_common.model`. A checkpoint
    does not say how many attention heads there are. RunError: it cannot be read, or is of another
    model; DataError: the vocabulary cannot be read.
    """
    prefix = Path(without_suffix(os.fspath(checkpoint)))
    if not Path(f"{prefix}.index").exists():
        raise RunError(
            f"There is no checkpoint {prefix}: give the path of its .index file; its .data file "
            "must be next to it."
        )
    read_fully(prefix)
    (weights, first, second), step = _tensors(prefix)
    pieces, rows = Tokenizer(vocabulary).vocabulary_size, len(weights[_EMBEDDING])
    if not 0 <= rows - pieces < 8:  # rows are filled up to a multiple of 8
        raise RunError(
            f"{vocabulary} has {pieces:,} pieces, but the matrix of {prefix} has {rows:,} rows: "
            "give the vocabulary of its training."
        )
    config = _config(weights, heads)
    model, table = build_transformer(config, rows), _table(config)
    variables, adam = weights_by_path(model), None
    assign(variables, table, weights, prefix)
    if first and second:
        adam = adam_state(variables, step)
        assign(adam.slots["m"], table, first, prefix)
        assign(adam.slots["v"], table, second, prefix)
    return ForeignModel("NVIDIA OpenSeq2Seq", model, vocabulary.read_bytes(), step=step, adam=adam)


def _tensors(prefix: Path) -> tuple[list[dict[str, np.ndarray]], int]:
    """The weights, Adam's first and second moments, each by name in the forward pass; the step."""
    reader = tf.train.load_checkpoint(literal(prefix))
    kinds: dict[str | None, dict[str, np.ndarray]] = {None: {}, "/Adam": {}, "/Adam_1": {}}
    # In mixed precision the copy in float32 comes after the one in float16, and counts.
    names = sorted(reader.get_variable_to_shape_map(), key=lambda name: _MASTER_COPY in name)
    for name in names:
        match = _PARTS.fullmatch(name)
        # Counters, the loss scaler, and other optimizers' slots are skipped.
        if match and (match["slot"] or match["scope"] == "" or _MASTER_COPY in match["scope"]):
            kinds[match["slot"]][match["name"]] = reader.get_tensor(name)
    if not {_EMBEDDING, f"transformer_encoder/layer_0/{_INNER}"} <= kinds[None].keys():
        raise RunError(f"{prefix} is not a checkpoint of an OpenSeq2Seq Transformer.")
    return [*kinds.values()], int(reader.get_tensor("global_step")) if "global_step" in names else 0


def _config(weights: dict[str, np.ndarray], heads: int) -> ModelConfig:
    width, hidden = weights[f"transformer_encoder/layer_0/{_INNER}"].shape
    encoder, decoder = (
        sum(name.startswith(f"transformer_{stack}/") and name.endswith(_INNER) for name in weights)
        for stack in ("encoder", "decoder")
    )
    return ModelConfig(
        encoder, decoder, width, heads, hidden,
        max_length=MAX_LENGTH, attention_dropout=0.1, feed_forward_dropout=0.1,
        start="openseq2seq",
    )  # fmt: skip


def _table(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Path of each weight of the Transformer -> names of OpenSeq2Seq's that it is made of."""
    table: dict[str, tuple[str, ...]] = {"embedding": (_EMBEDDING,)}

    def add(path: str, scope: str, **names: str) -> None:
        for name, parts in names.items():
            table[f"{path}/{name}"] = tuple(f"{scope}/{part}" for part in parts.split())

    def add_norm(path: str, scope: str) -> None:
        add(f"{path}norm", f"{scope}/layer_normalization",
            scale="layer_norm_scale", offset="layer_norm_bias")  # fmt: skip

    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for number in range(layers):
            path, scope = f"{stack}/{number}", f"transformer_{stack}/layer_{number}"
            add_norm(f"{path}/attention_", f"{scope}/self_attention")
            add(f"{path}/attention", f"{scope}/self_attention/self_attention",
                qkv="q/kernel k/kernel v/kernel",
                output_kernel="output_transform/kernel")  # fmt: skip
            if stack == "decoder":
                add_norm(f"{path}/cross_attention_", f"{scope}/encdec_attention")
                add(f"{path}/cross_attention", f"{scope}/encdec_attention/attention",
                    query="q/kernel", key_value="k/kernel v/kernel",
                    output_kernel="output_transform/kernel")  # fmt: skip
            add_norm(f"{path}/feed_forward_", f"{scope}/ffn")
            add(f"{path}/feed_forward", f"{scope}/ffn/feed_foward_network",
                inner="filter_layer/kernel", inner_bias="filter_layer/bias",
                outer="output_layer/kernel", outer_bias="output_layer/bias")  # fmt: skip
        add_norm(f"{stack}_", f"transformer_{stack}")
    return table
