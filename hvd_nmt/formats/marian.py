"""Marian models as Hugging Face keeps them, OPUS-MT's for example, from local files.

    config.json  model.safetensors  vocab.json  source.spm  target.spm
    target_vocab.json     where source and target have matrices of their own

The architecture is that of transformers' MarianMTModel: normalisation after each sub-layer
(epsilon 1e-5), biases everywhere, sinusoids with wavelengths of their own, one matrix for target
and softmax, which most often is the source's, too. Its decoder starts from <pad>, whose row becomes
that of our bos; ours is never predicted, as there.

Source: transformers, models/marian/modeling_marian.py; Linear keeps kernels as [out, in].
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from hvd_nmt.checkpoints.state import weights_by_path
from hvd_nmt.common.errors import ConfigError, RunError
from hvd_nmt.config import PAD, ModelConfig
from hvd_nmt.formats import marian_vocabulary
from hvd_nmt.formats.foreign import ForeignModel, assign
from hvd_nmt.formats.marian_vocabulary import MarianVocabulary
from hvd_nmt.model.transformer import build_transformer

NEVER = -100.0
"""added to the logit of what must not be predicted; hugely negative, and finite in any precision"""
_ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu", "gelu": "gelu"}
_SHARED, _SOURCE = "model.shared.weight", "model.encoder.embed_tokens.weight"
_OF_TARGET = ("model.decoder.embed_tokens.weight", "lm_head.weight")
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
# name -> (the only value that can be imported, what a file without it means)
_REQUIRED: dict[str, tuple[Any, Any]] = {
    "model_type": ("marian", None),
    "scale_embedding": (True, False),
    "tie_word_embeddings": (True, True),
    "static_position_embeddings": (True, True),
    "normalize_before": (False, False),
    "normalize_embedding": (False, False),
    "add_final_layer_norm": (False, False),
}


def read(folder: Path) -> ForeignModel:
    """A folder with a model's files as our model.

    Raises:
        RunError: a file is missing or damaged, or the model is one that ours cannot stand for.
        ConfigError: the package safetensors is not installed.
    """
    settings = marian_vocabulary.read_json(folder / "config.json")
    separate = settings.get("share_encoder_decoder_embeddings", True) is False
    vocabulary = marian_vocabulary.read(folder, separate)
    config = _config(settings, vocabulary.target.rows[PAD], folder / "config.json")
    path = folder / "model.safetensors"
    tensors = _tensors(path)
    _remove_copies(tensors, separate, path)
    _take_our_ids(tensors, vocabulary, path)
    own = len(tensors[_SOURCE]) if separate else 0
    model = build_transformer(config, len(tensors[_SHARED]), source_vocabulary_size=own)
    table = _table(config) | ({"source_embedding": (_SOURCE,)} if separate else {})
    assign(weights_by_path(model), table, tensors, path)
    return ForeignModel(
        "Hugging Face Marian", model, vocabulary.model, vocabulary.source_model,
        normalization="marian",
    )  # fmt: skip


def _config(settings: dict[str, Any], pad: int, path: Path) -> ModelConfig:
    required = _REQUIRED | {
        "decoder_attention_heads": (settings.get("encoder_attention_heads"), None),
        "decoder_ffn_dim": (settings.get("encoder_ffn_dim"), None),
        "decoder_start_token_id": (pad, pad),
    }
    for name, (wanted, default) in required.items():
        value = settings.get(name, default)
        if value != wanted:
            raise RunError(
                f"{path} has {name} {json.dumps(value)}: only models with {json.dumps(wanted)} can "
                "be imported."
            )
    activation: Any = _ACTIVATIONS.get(str(settings.get("activation_function")))
    if activation is None:
        raise RunError(
            f"{path} has the activation {settings.get('activation_function')!r}: only "
            f"{', '.join(_ACTIVATIONS)} can be imported."
        )
    try:
        return ModelConfig(
            settings["encoder_layers"], settings["decoder_layers"], settings["d_model"],
            settings["encoder_attention_heads"], settings["encoder_ffn_dim"],
            positions="marian",
            max_length=settings["max_position_embeddings"],
            dropout=settings.get("dropout", 0.1),
            attention_dropout=settings.get("attention_dropout", 0.0),
            feed_forward_dropout=settings.get("activation_dropout", 0.0),
            norm="post",
            norm_epsilon=1e-5,
            activation=activation,
            biases="all",
        )  # fmt: skip
    except (KeyError, TypeError, ConfigError) as error:
        raise RunError(f"{path} describes a model that cannot be: {error}") from None


def _tensors(path: Path) -> dict[str, np.ndarray]:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError:
        raise ConfigError(
            "Reading Marian's weights needs the package safetensors: pip install 'hvd_nmt[marian]'."
        ) from None
    if not path.exists() and path.with_name("pytorch_model.bin").exists():
        raise RunError(
            f"{path.with_name('pytorch_model.bin')} is a pickle, which could run any program: load "
            "it with transformers where you trust it and save it again with "
            "model.save_pretrained(folder), which writes model.safetensors."
        )
    try:
        return load_file(path)
    except (OSError, SafetensorError, TypeError, KeyError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from None


def _remove_copies(tensors: dict[str, np.ndarray], separate: bool, path: Path) -> None:
    """Leave the matrix of the target as the shared one, and the source's own if it has one."""
    for name in _POSITIONS:  # sinusoids
        tensors.pop(name, None)
    tied = (_SHARED, *_OF_TARGET) if separate else (_SHARED, _SOURCE, *_OF_TARGET)
    copies = [tensors.pop(name) for name in tied if name in tensors]
    if not copies or (separate and _SOURCE not in tensors):
        raise RunError(f"{path} lacks {_SOURCE if copies else _SHARED}.")
    tensors[_SHARED] = copies[0]


def _take_our_ids(tensors: dict[str, np.ndarray], vocabulary: MarianVocabulary, path: Path) -> None:
    """Order the rows of matrices, and the biases of the softmax, by our ids; turn the kernels."""
    for name, tensor in tensors.items():
        if name.endswith(".weight") and tensor.ndim == 2 and name not in (_SHARED, _SOURCE):
            tensors[name] = tensor.T
    for name, pieces in ((_SHARED, vocabulary.target), (_SOURCE, vocabulary.source)):
        if name not in tensors:
            continue
        if len(tensors[name]) != pieces.known:
            raise RunError(
                f"{path} has {len(tensors[name]):,} rows in {name} for {pieces.known:,} pieces."
            )
        tensors[name] = tensors[name][pieces.rows]
    rows = vocabulary.target.rows
    bias_V = tensors.get("final_logits_bias", np.zeros(vocabulary.target.known)).reshape(-1)[rows]
    bias_V = bias_V.astype(np.float32)
    bias_V[vocabulary.target.never] = NEVER
    tensors["final_logits_bias"] = bias_V


def _table(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Path of each weight of the Transformer -> names of Marian's weights that it is made of."""
    table: dict[str, tuple[str, ...]] = {
        "embedding": (_SHARED,),
        "logits_bias": ("final_logits_bias",),
    }

    def add_linear(path: str, scope: str, name: str, parts: str, kernel: str) -> None:
        for key, kind in ((kernel, "weight"), (f"{name}_bias", "bias")):
            table[f"{path}/{key}"] = tuple(f"{scope}{part}.{kind}" for part in parts.split())

    def add_norm(path: str, scope: str) -> None:
        table[f"{path}/scale"], table[f"{path}/offset"] = (f"{scope}.weight",), (f"{scope}.bias",)

    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for number in range(layers):
            path, scope = f"{stack}/{number}", f"model.{stack}.layers.{number}."
            inner = f"{scope}self_attn."
            add_linear(f"{path}/attention", inner, "qkv", "q_proj k_proj v_proj", "qkv")
            add_linear(f"{path}/attention", inner, "output", "out_proj", "output_kernel")
            add_norm(f"{path}/attention_norm", f"{scope}self_attn_layer_norm")
            if stack == "decoder":
                cross, inner = f"{path}/cross_attention", f"{scope}encoder_attn."
                add_linear(cross, inner, "query", "q_proj", "query")
                add_linear(cross, inner, "key_value", "k_proj v_proj", "key_value")
                add_linear(cross, inner, "output", "out_proj", "output_kernel")
                add_norm(f"{cross}_norm", f"{scope}encoder_attn_layer_norm")
            add_linear(f"{path}/feed_forward", scope, "inner", "fc1", "inner")
            add_linear(f"{path}/feed_forward", scope, "outer", "fc2", "outer")
            add_norm(f"{path}/feed_forward_norm", f"{scope}final_layer_norm")
    return table
