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
from typing import Any, Literal, cast

import numpy as np

from hvd_nmt.common.errors import ConfigError, RunError
from hvd_nmt.config import BOS, PAD, ModelConfig
from hvd_nmt.formats import marian_vocabulary
from hvd_nmt.formats.foreign import ForeignModel, assembled, fingerprinted
from hvd_nmt.formats.marian_vocabulary import MarianVocabulary

FILES = ("config.json", "model.safetensors", "vocab.json", "source.spm", "target.spm")
TARGET_IDS = "target_vocab.json"
NEVER = -100.0
"""added to the logit of what must not be predicted; hugely negative, and finite in any precision"""
_ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu", "gelu": "gelu"}
_SHARED, _SOURCE = "model.shared.weight", "model.encoder.embed_tokens.weight"
_OF_TARGET = ("model.decoder.embed_tokens.weight", "lm_head.weight")
_SEPARATE = "share_encoder_decoder_embeddings"
_POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
_SIZES = ("encoder_layers", "decoder_layers", "d_model", "encoder_attention_heads",
          "encoder_ffn_dim", "max_position_embeddings")  # fmt: skip
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
    settings = _settings(folder / "config.json")
    path = folder / "model.safetensors"
    tensors = _tensors(path)
    separate = settings.get(_SEPARATE, True) is False
    vocabulary = marian_vocabulary.read(folder, separate)
    config = _config(settings, folder / "config.json")
    _remove_derived(tensors, config, path, separate)
    _require_rows(tensors, vocabulary, folder, separate)
    if separate and vocabulary.source.names == vocabulary.target.names:
        raise RunError(  # which piece has which id tells training whether there is one matrix
            f"{folder} has the same pieces in vocab.json and {TARGET_IDS} and yet a matrix for "
            "each: only models with different pieces or one matrix can be imported."
        )
    rows = len(tensors[_SHARED])
    start = settings.get("decoder_start_token_id", settings.get("pad_token_id", 0))
    if not isinstance(start, int) or not 0 <= start < rows:
        raise RunError(
            f"{folder / 'config.json'} has decoder_start_token_id {start}, which is no row of the "
            f"{rows:,} of the matrix."
        )
    _take_our_ids(tensors, vocabulary, start)
    table = _table(config) | ({"source_embedding": (_SOURCE,)} if separate else {})
    files = (*FILES, TARGET_IDS) if separate else FILES
    return ForeignModel(
        config=config,
        weights=assembled(table, tensors, path),
        moments=None,
        step=0,
        vocabulary=vocabulary.model,
        source_vocabulary=vocabulary.source_model,
        normalization="marian",
        origin={"program": "Hugging Face Marian",
                "sha256": fingerprinted([folder / name for name in files])},
    )  # fmt: skip


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from None
    if not isinstance(settings, dict):
        raise RunError(f"{path} holds no JSON object, so it is no configuration of a model.")
    for name, (wanted, default) in _REQUIRED.items():
        value = settings.get(name, default)
        if value != wanted:
            raise RunError(
                f"{path} has {name} {json.dumps(value)}: only models with {json.dumps(wanted)} can "
                "be imported."
            )
    for name in ("attention_heads", "ffn_dim"):
        encoder, decoder = settings.get(f"encoder_{name}"), settings.get(f"decoder_{name}")
        if encoder != decoder:
            raise RunError(
                f"{path} has {name} {encoder} in the encoder and {decoder} in the decoder: only "
                "models that have the same in both can be imported."
            )
    return settings


def _config(settings: dict[str, Any], path: Path) -> ModelConfig:
    activation = str(settings.get("activation_function"))
    if activation not in _ACTIVATIONS:
        raise RunError(
            f"{path} has the activation {activation!r}: only {', '.join(_ACTIVATIONS)} can be "
            "imported."
        )
    for name in _SIZES:
        if not isinstance(settings.get(name), int):
            raise RunError(f"{path} has no whole number as {name}, a size of the model.")
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
            activation=cast(Literal["relu", "swish", "gelu"], _ACTIVATIONS[activation]),
            biases="all",
        )  # fmt: skip
    except (TypeError, ConfigError) as error:
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


def _remove_derived(
    tensors: dict[str, np.ndarray], config: ModelConfig, path: Path, separate: bool
) -> None:
    """Drop copies of the matrices and tables of sinusoids, if they are what they seem.

    What is left of the matrices is that of the target as the shared one, and the source's own.
    """
    tied = _OF_TARGET if separate else (_SOURCE, *_OF_TARGET)
    if _SHARED not in tensors:
        found = [name for name in tied if name in tensors]
        if not found:
            raise RunError(f"{path} lacks {_OF_TARGET[0] if separate else _SHARED}.")
        tensors[_SHARED] = tensors[found[0]]
    for name in tied:
        if name in tensors and not np.array_equal(tensors.pop(name), tensors[_SHARED]):
            raise RunError(
                f"In {path}, {name} is not that of the target: only models with one matrix for "
                f"{'target and softmax' if separate else 'source, target and softmax'} can be "
                "imported."
            )
    for name in _POSITIONS:
        if name not in tensors:
            continue
        table = tensors.pop(name).astype(np.float32)
        if table.shape[1] != config.width or not np.allclose(
            table, _sinusoids(len(table), config.width), atol=2e-3
        ):
            raise RunError(
                f"In {path}, {name} is no table of Marian's sinusoids: learned positions cannot be "
                "imported."
            )


def _require_rows(
    tensors: dict[str, np.ndarray], vocabulary: MarianVocabulary, folder: Path, separate: bool
) -> None:
    """See that each matrix has a row for each piece."""
    matrices = {TARGET_IDS if separate else "vocab.json": (_SHARED, vocabulary.target)}
    if separate:
        matrices["vocab.json"] = _SOURCE, vocabulary.source
    for file, (name, numbering) in matrices.items():
        rows, pieces = len(tensors.get(name, ())), len(numbering.ids)
        if rows != pieces:
            raise RunError(
                f"{folder / file} has {pieces:,} pieces and the matrix of "
                f"{folder / 'model.safetensors'} {rows:,} rows."
            )


def _sinusoids(length: int, width: int) -> np.ndarray:
    rates_D = 10_000.0 ** (-np.arange(width // 2) / (width // 2))
    angles_TxD = np.arange(length)[:, None] * rates_D
    return np.concatenate([np.sin(angles_TxD), np.cos(angles_TxD)], 1)


def _take_our_ids(tensors: dict[str, np.ndarray], vocabulary: MarianVocabulary, start: int) -> None:
    """Order the rows of matrices, and the biases of the softmax, by our ids; turn the kernels."""
    rows = [start if row is None else row for row in vocabulary.marian_ids]
    for name, tensor in list(tensors.items()):
        if name.endswith(".weight") and tensor.ndim == 2 and name not in (_SHARED, _SOURCE):
            tensors[name] = tensor.T
    tensors[_SHARED] = tensors[_SHARED][rows]
    if _SOURCE in tensors:
        pad = vocabulary.source.ids["<pad>"]  # bos is in no source
        source_rows = [pad if row is None else row for row in vocabulary.source.marian_ids]
        tensors[_SOURCE] = tensors[_SOURCE][source_rows]
    bias_V = tensors.get("final_logits_bias", np.zeros([1, max(rows) + 1], np.float32))
    bias_V = bias_V.astype(np.float32).reshape(-1)[rows]
    never = [PAD, BOS, *vocabulary.unknown]
    never += [number for number, row in enumerate(vocabulary.marian_ids) if row is None]
    bias_V[never] = NEVER
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
