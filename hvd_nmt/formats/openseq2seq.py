"""Checkpoints of NVIDIA OpenSeq2Seq's Transformer: names of its variables, and what they mean.

    ForwardPass/transformer_encoder/layer_0/self_attention/self_attention/q/kernel    a weight
    Loss_Optimization/ForwardPass/.../q/kernel/Adam    .../Adam_1                     its moments
    Loss_Optimization/FP32-master-copy/ForwardPass/.../q/kernel     mixed precision: the real weight
    global_step    beta1_power    beta2_power    and the loss scaler's

Kernels are [in, out] as here, without bias in attention. What stands before a sentence differs: see
`hvd_nmt.model.architectures`.

Source: open_seq2seq/parts/transformer and decoders/transformer_decoder.py of NVIDIA/OpenSeq2Seq.
"""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints.find import read_fully
from hvd_nmt.checkpoints.names import SUFFIXES, without_suffix
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import ModelConfig
from hvd_nmt.formats.foreign import ForeignModel, Moments, assembled, count_layers, fingerprinted
from hvd_nmt.model.tokenizer import Tokenizer

MAX_LENGTH = 256
"""longest sentence that the recipe evaluates and translates, subword tokens"""
_MASTER_COPY = "FP32-master-copy/"
_EMBEDDING = "transformer_encoder/embedding_shared_weights/embedding_and_softmax/weights"
_PARTS = re.compile(r"(?P<scope>.*?)ForwardPass/(?P<name>.*?)(?P<slot>/Adam(?:_1)?)?")


def read(checkpoint: Path, vocabulary: Path, heads: int) -> ForeignModel:
    """A checkpoint, by the prefix of its files with or without an ending, as our model.

    `vocabulary` is the SentencePiece model that it was trained with, `m_common.model`. A checkpoint
    does not say how many attention heads there are.

    Raises:
        RunError: it cannot be read, or is of another model.
        DataError: the vocabulary cannot be read.
    """
    prefix = _prefix(checkpoint)
    read_fully(prefix)
    reader = tf.train.load_checkpoint(os.fspath(prefix))
    weights, first, second, step = _sorted(reader, prefix)
    config = _config(weights, heads, prefix)
    table = _table(config)
    moments = None
    if first and second:
        moments = Moments(assembled(table, first, prefix), assembled(table, second, prefix))
    pieces, rows = Tokenizer(vocabulary).vocabulary_size, len(weights[_EMBEDDING])
    if not 0 <= rows - pieces < 8:  # rows are filled up to a multiple of 8
        raise RunError(
            f"{vocabulary} has {pieces:,} pieces and the matrix of {prefix} has {rows:,} rows: "
            "give the vocabulary that it was trained with."
        )
    files = [Path(f"{prefix}{suffix}") for suffix in SUFFIXES if suffix != ".meta"]
    return ForeignModel(
        config=config,
        weights=assembled(table, weights, prefix),
        moments=moments,
        step=step,
        vocabulary=vocabulary.read_bytes(),
        origin={"program": "NVIDIA OpenSeq2Seq", "step": step,
                "sha256": fingerprinted([*files, vocabulary])},
    )  # fmt: skip


def _prefix(checkpoint: Path) -> Path:
    prefix = Path(without_suffix(os.fspath(checkpoint)))
    if not Path(f"{prefix}.index").exists():
        raise RunError(
            f"There is no checkpoint {prefix}: give the path of its .index file, beside which its "
            ".data file lies."
        )
    return prefix


def _sorted(
    reader: Any, prefix: Path
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray], int]:
    """The weights, Adam's first and second moments, each by name in the forward pass; the step."""
    kinds: dict[str | None, dict[str, np.ndarray]] = {None: {}, "/Adam": {}, "/Adam_1": {}}
    # In mixed precision the copy in float32 comes after the one in float16, and counts.
    names = sorted(reader.get_variable_to_shape_map(), key=lambda name: _MASTER_COPY in name)
    for name in names:
        found = _PARTS.fullmatch(name)
        # What is left out: counters, the loss scaler, and other optimizers' slots.
        if found and (found["slot"] or found["scope"] == "" or _MASTER_COPY in found["scope"]):
            kinds[found["slot"]][found["name"]] = reader.get_tensor(name)
    if _EMBEDDING not in kinds[None]:
        raise RunError(f"{prefix} is no checkpoint of an OpenSeq2Seq Transformer.")
    step = int(reader.get_tensor("global_step")) if "global_step" in names else 0
    return kinds[None], kinds["/Adam"], kinds["/Adam_1"], step


def _config(weights: dict[str, np.ndarray], heads: int, prefix: Path) -> ModelConfig:
    stacks = (f"transformer_{stack}/layer_" for stack in ("encoder", "decoder"))
    encoder, decoder = (count_layers(list(weights), stack) for stack in stacks)
    width = weights[_EMBEDDING].shape[1]
    inner = "transformer_encoder/layer_0/ffn/feed_foward_network/filter_layer/kernel"
    if inner not in weights or not decoder:
        raise RunError(f"{prefix} is no checkpoint of an OpenSeq2Seq Transformer.")
    return ModelConfig(
        encoder, decoder, width, heads, weights[inner].shape[1],
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
