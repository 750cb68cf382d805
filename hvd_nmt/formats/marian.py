"""Marian models as Hugging Face keeps them, OPUS-MT's for example, from local files.

    config.json  model.safetensors
    source.spm           cuts source text into pieces; target.spm does so for the other language
    vocab.json           gives the pieces of both their ids: </s> 0, <unk> 1, ..., <pad> last
    target_vocab.json    those of the target, where each side has an embedding of its own

The decoder starts from <pad>, as a rule, whose row becomes that of our bos; neither is ever
predicted. With one vocab.json both SentencePiece models of the run hold the pieces of both
languages under the same ids, so that one embedding serves them. What a side's own .spm does not
know is marked as unused, so that text is cut as that does.

Source: transformers, models/marian/modeling_marian.py; Linear keeps kernels as [out, in].
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hvd_nmt.checkpoints.state import weights_by_path
from hvd_nmt.common.errors import ConfigError, RunError
from hvd_nmt.config import BOS, EOS, PAD, UNK, ModelConfig
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.sentencepiece_model import CONTROL, NORMAL, SPACE, UNKNOWN, UNUSED, USER_DEFINED
from hvd_nmt.formats.foreign import ForeignModel, assign
from hvd_nmt.model.transformer import build_transformer

NEVER = -100.0
"""added to the logit of what must not be predicted; hugely negative, and finite in any precision"""
_UNKNOWN_PENALTY = 10.0
"""score of SentencePiece's rarest piece minus that of an unknown character"""
_SPECIAL = {PAD: "<pad>", EOS: "</s>", UNK: "<unk>"}
_ACTIVATIONS: dict[str, Any] = {"swish": "swish", "silu": "swish", "relu": "relu", "gelu": "gelu"}
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


class Numbering(NamedTuple):
    """Our ids of the pieces of a vocab.json, and of those of .spm files that it lacks."""

    names: list[str]
    """the pieces from our fifth on"""
    rows: list[int]
    """id in vocab.json of each of ours, whose weights are taken; filled up to a multiple of 8"""
    never: list[int]
    """our ids that must not be predicted: they stand for no piece of vocab.json, or for <pad>"""
    known: int
    """pieces of vocab.json"""


class MarianVocabulary(NamedTuple):
    """SentencePiece models, serialised, and where their pieces come from."""

    model: bytes
    """model of the target"""
    source_model: bytes
    target: Numbering
    source: Numbering


def read(folder: Path) -> ForeignModel:
    """A folder with a model's files as our model.

    RunError: a file is missing or damaged, or the model is one that ours cannot stand for;
    ConfigError: the package safetensors is not installed.
    """
    settings = _json(folder / "config.json")
    separate = settings.get("share_encoder_decoder_embeddings", True) is False
    vocabulary = read_vocabulary(folder, separate)
    config = _config(settings, folder / "config.json")
    rows = vocabulary.target.rows
    rows[BOS] = settings.get("decoder_start_token_id", rows[PAD])
    if rows[BOS] not in range(vocabulary.target.known):
        raise RunError(
            f"{folder / 'config.json'} has decoder_start_token_id {rows[BOS]}, which no piece has."
        )
    path = folder / "model.safetensors"
    tensors = _tensors(path)
    _remove_copies(tensors, separate, path)
    _take_our_ids(tensors, vocabulary, path)
    source_rows = len(tensors[_SOURCE]) if separate else 0
    model = build_transformer(config, len(tensors[_SHARED]), source_vocabulary_size=source_rows)
    table = _table(config) | ({"source_embedding": (_SOURCE,)} if separate else {})
    assign(weights_by_path(model), table, tensors, path)
    return ForeignModel(
        "Hugging Face Marian", model, vocabulary.model, vocabulary.source_model,
        normalization="marian",
    )  # fmt: skip


def _config(settings: dict[str, Any], path: Path) -> ModelConfig:
    required = _REQUIRED | {
        "decoder_attention_heads": (settings.get("encoder_attention_heads"), None),
        "decoder_ffn_dim": (settings.get("encoder_ffn_dim"), None),
    }
    for name, (wanted, default) in required.items():
        value = settings.get(name, default)
        if value != wanted:
            raise RunError(
                f"{path} has {name} {json.dumps(value)}: only models with {json.dumps(wanted)} can "
                "be imported."
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
            activation=_ACTIVATIONS[settings["activation_function"]],
            biases="all",
        )  # fmt: skip
    except (KeyError, TypeError, ConfigError) as error:
        raise RunError(f"{path} describes a model that cannot be imported: {error}") from None


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
            f"{path.with_name('pytorch_model.bin')} is a pickle, which could run any program: if "
            "you trust it, load it with transformers and write model.safetensors with "
            "model.save_pretrained(folder)."
        )
    try:
        return load_file(path)
    except (OSError, SafetensorError, TypeError, KeyError) as error:
        raise RunError(f"Cannot read {path}: {error}.") from None


def _remove_copies(tensors: dict[str, np.ndarray], separate: bool, path: Path) -> None:
    """Leave the matrix of the target as the shared one, and the source's own if it has one."""
    for name in _POSITIONS:  # sinusoids
        tensors.pop(name, None)
    tied = (_SHARED, *_OF_TARGET) if separate else (_SHARED, _SOURCE, *_OF_TARGET)
    copies = [tensors.pop(name) for name in tied if name in tensors]
    if not copies or (separate and _SOURCE not in tensors):
        raise RunError(f"{path} has no {_SOURCE if copies else _SHARED}.")
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


def read_vocabulary(folder: Path, separate: bool) -> MarianVocabulary:
    """Join .spm and .json files, two of these if `separate`; RunError: one is missing or wrong."""
    source, target = (_model(folder / f"{side}.spm") for side in ("source", "target"))
    ids = _ids(folder / "vocab.json")
    if separate:
        of_source = _numbering(ids, [source])
        of_target = _numbering(_ids(folder / "target_vocab.json"), [target])
        if of_source.names == of_target.names:
            raise RunError(  # by them training knows whether there is one matrix
                f"{folder} has the same pieces in vocab.json and target_vocab.json, but two "
                "matrices: only models with different pieces or one matrix can be imported."
            )
    else:
        of_source = of_target = _numbering(ids, [source, target])
    return MarianVocabulary(
        _with_our_ids(target, of_target.names, UNUSED),
        _with_our_ids(source, of_source.names, USER_DEFINED),
        of_target,
        of_source,
    )


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; RunError: it cannot be read, or is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot read {path}: {error}.") from None
    if not isinstance(content, dict):
        raise RunError(f"{path} is not a JSON object.")
    return content


def _numbering(ids: dict[str, int], models: Sequence[Any]) -> Numbering:
    lacking = dict.fromkeys(name for model in models for name in _known(model) if name not in ids)
    in_order = sorted(ids.keys() - set(_SPECIAL.values()), key=lambda name: ids[name])
    names = [*in_order, *lacking]
    special = [ids[_SPECIAL.get(number, "<pad>")] for number in range(4)]
    rows = special + [ids.get(name, ids["<unk>"]) for name in names]
    unknown = range(4 + len(in_order), len(rows) + -len(rows) % 8)
    rows += [ids["<pad>"]] * (-len(rows) % 8)
    return Numbering(names, rows, [PAD, BOS, *unknown], len(ids))


def _known(model: Any) -> dict[str, Any]:
    return {p.piece: p for p in model.pieces if p.type not in (UNKNOWN, CONTROL)}


def _with_our_ids(model: Any, names: Sequence[str], of_tags: int) -> bytes:
    """A .spm, which is changed, with all pieces of a numbering in their order, serialised."""
    known, rare = _known(model), min(p.score for p in model.pieces) - _UNKNOWN_PENALTY
    specials = _SPECIAL | {BOS: "<start>"}
    del model.pieces[:]
    for number in range(4):
        kind = UNKNOWN if number == UNK else CONTROL
        model.pieces.add(piece=specials[number], score=0.0, type=kind)
    for name in names:
        if name in known:
            model.pieces.add(piece=name, score=known[name].score, type=known[name].type)
        elif name.startswith(">>") and name.endswith("<<"):
            # ">>fra<<" asks for a language; the space before it is part of the first piece.
            model.pieces.add(piece=SPACE + name, score=0.0, type=of_tags)
        elif len(name) == 1:
            # A character that only the other .spm knows is looked up in vocab.json all the same.
            model.pieces.add(piece=name, score=rare, type=NORMAL)
        else:
            model.pieces.add(piece=name, score=0.0, type=UNUSED)
    trainer = model.trainer_spec
    trainer.pad_id, trainer.eos_id, trainer.bos_id, trainer.unk_id = PAD, EOS, BOS, UNK
    trainer.pad_piece, trainer.eos_piece = specials[PAD], specials[EOS]
    trainer.bos_piece, trainer.unk_piece = specials[BOS], specials[UNK]
    trainer.vocab_size = len(model.pieces)
    return model.SerializeToString()


def _ids(path: Path) -> dict[str, int]:
    ids = _json(path)
    if sorted(ids.values()) != list(range(len(ids))):
        raise RunError(f"{path} is not a vocabulary: each piece needs its own id, from 0 on.")
    if lacking := [name for name in _SPECIAL.values() if name not in ids]:
        raise RunError(f"{path} has no {', '.join(lacking)}.")
    return ids


def _model(path: Path) -> Any:
    try:
        return sentencepiece_model.parsed(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"Cannot read {path} as a SentencePiece model: {error}.") from None
