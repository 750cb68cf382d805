"""A run's model as a directory for CTranslate2, which translates on CPUs several times as fast.

It works without this package: it holds CTranslate2's files, the run's SentencePiece models, and a
README.txt that says how to use them.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.manifest import read_manifest
from hvd_nmt.checkpoints.run_files import vocabularies, write_record
from hvd_nmt.checkpoints.weights import load_model, require_vocabularies
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.files import exclusive, replacing, require_free
from hvd_nmt.config import BOS, EOS, UNK
from hvd_nmt.formats import Quantization
from hvd_nmt.model.architectures import OpenSeq2SeqTransformer
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.model.transformer import Transformer

FACTS = "hvd_nmt.json"
"""what CTranslate2's own files do not say"""
_PROCESSOR = "sentencepiece.SentencePieceProcessor"
# Raised when a conversion writes something else: what `cached` made before is then made anew.
_CONVERSION = 3


def convert(run: Path, checkpoint: str, out: Path, quantization: Quantization = "float32") -> None:
    """Write a checkpoint as a CTranslate2 model directory, complete or not at all.

    Raises:
        ConfigError: CTranslate2 is not installed, or `out` is there already.
        RunError: the run or the checkpoint cannot be used.
        DataError: `out` cannot be written.
    """
    with exclusive(out):
        require_free(out)
        with replacing(out) as draft:
            _write(run, find(run, checkpoint), draft, out, quantization)


def cached(run: Path, checkpoint: str, quantization: Quantization = "float32") -> Path:
    """The model directory of a checkpoint under `<run>/exports/`, made if it is not there yet.

    Its name holds the checkpoint's and a hash of its files, so that a changed checkpoint of the
    same name is converted anew.
    """
    prefix = find(run, checkpoint)
    manifest = read_manifest(Path(f"{prefix}.json"))
    require_vocabularies(run, manifest, prefix.name)
    files = json.dumps(manifest.files, sort_keys=True)
    made_by = f"{require_package().__version__} {_CONVERSION}"
    identity = hashlib.sha256(f"{made_by} {files}".encode()).hexdigest()[:12]
    path = run / "exports" / f"ctranslate2-{quantization}-{prefix.name}-{identity}"
    if not path.exists():
        with exclusive(path):
            if not path.exists():  # another process may have made it while we waited
                with replacing(path) as draft:
                    _write(run, prefix, draft, path, quantization)
    return path


def usage(path: Path) -> str:
    """A few lines of Python that translate with a model directory, without this package."""
    facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
    start, prefix, words = facts["target_prefix"], "", "result.hypotheses[0]"
    if start:
        prefix, words = f", target_prefix=[{start}] * len(pieces)", f"{words}[{len(start)}:]"
    source, target = vocabularies(path)
    return f"""\
import ctranslate2, sentencepiece
source = {_PROCESSOR}(model_file="{source}")
target = {_PROCESSOR}(model_file="{target}")
translator = ctranslate2.Translator("{path}")
pieces = source.encode(["A man sees a dog."], out_type=str)
found = translator.translate_batch(
    pieces{prefix}, beam_size=4, max_decoding_length={facts["max_length"]}
)
print(target.decode([{words} for result in found]))
"""


def require_package() -> ModuleType:
    """The package ctranslate2, which not everybody has."""
    try:
        import ctranslate2
    except ImportError:
        raise ConfigError(
            "CTranslate2 is not installed: run pip install 'ctranslate2>=4,<5'."
        ) from None
    return ctranslate2


def specification(
    model: Transformer, source_pieces: Sequence[str], pieces: Sequence[str], quantization: str
) -> Any:
    """CTranslate2's `TransformerSpec` with all weights, quantized: ready for `save`.

    One matrix serves source, target and softmax, unless the source has its own. Rows beyond the
    pieces, which are given by id, get names that no text can hold.
    """
    from ctranslate2 import specs

    config, starts_from_zero = model.config, isinstance(model, OpenSeq2SeqTransformer)
    spec = specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=specs.Activation[config.activation.upper()],
    )
    halves = {"float16": np.float16, "bfloat16": tf.bfloat16.as_numpy_dtype}
    _Copy(halves.get(quantization, np.float32)).model(spec, model)
    spec.decoder.start_from_zero_embedding = starts_from_zero
    names = _names(pieces, model.vocabulary_size)
    source_rows = model.source_vocabulary_size or model.vocabulary_size
    spec.register_source_vocabulary(_names(source_pieces, source_rows))
    spec.register_target_vocabulary(names)
    settings = spec.config
    settings.bos_token, settings.eos_token, settings.unk_token = names[BOS], names[EOS], names[UNK]
    settings.decoder_start_token = names[BOS]
    settings.add_source_bos = starts_from_zero
    settings.add_source_eos = True
    settings.layer_norm_epsilon = config.norm_epsilon
    spec.validate()
    spec.optimize(quantization if quantization.startswith("int8") else None)
    return spec


def extra_positions(model: Transformer) -> int:
    """Positions that a sequence needs beyond the tokens it is made of."""
    return 1 if isinstance(model, OpenSeq2SeqTransformer) else 0


class _Copy(NamedTuple):
    """Copies the weights of a model into a specification, as numbers of one dtype.

    Kernels are [in, out] here and [out, in] there; queries, keys and values are fused in both.
    """

    dtype: type[np.generic]

    def model(self, spec: Any, model: Transformer) -> None:
        encoder, decoder = spec.encoder, spec.decoder
        embedding = self._array(model.embedding)
        for part in (encoder.embeddings[0], decoder.embeddings, decoder.projection):
            part.weight = embedding
        if model.source_embedding is not None:
            encoder.embeddings[0].weight = self._array(model.source_embedding)
        if model.logits_bias is not None:
            decoder.projection.bias = self._array(model.logits_bias)
        places = tf.range(model.max_length + extra_positions(model))
        for part in (encoder, decoder):
            part.scale_embeddings = True
            part.position_encodings.encodings = self._array(model.position_signal(places))
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
        return tensor.numpy().astype(self.dtype)


def _names(pieces: Sequence[str], rows: int) -> list[str]:
    return [*pieces, *(f"<unused {number}>" for number in range(len(pieces), rows))]


def _write(run: Path, prefix: Path, folder: Path, out: Path, quantization: Quantization) -> None:
    """Fill an empty folder, which is to be named `out`."""
    require_package()
    model, step = load_model(run, os.fspath(prefix))
    tokenizers = Tokenizers.of(*vocabularies(run))
    pieces = tokenizers.target.pieces
    spec = specification(model, tokenizers.source.pieces, pieces, quantization)
    spec.save(os.fspath(folder))
    for path in set(vocabularies(run)):
        shutil.copyfile(path, folder / path.name)
    facts = {
        "checkpoint": prefix.name, "step": step, "quantization": quantization,
        "max_length": model.max_length,
        # Some imported models have bos after the zero vector that their decoder starts from.
        "target_prefix": [pieces[BOS]] * extra_positions(model),
    }  # fmt: skip
    write_record(folder / FACTS, facts)
    example = usage(folder).replace(os.fspath(folder), out.name)
    text = f"""\
A translation model for CTranslate2 (github.com/OpenNMT/CTranslate2), made by hvd_nmt.export from
checkpoint {prefix.name} (step {step:,}), weights {quantization}.

    pip install ctranslate2 sentencepiece

{example}
It reads and writes up to {model.max_length} subword tokens. Give it one sentence per entry, with
control characters such as TAB replaced by spaces, and keep empty lines empty yourself.
`python -m hvd_nmt.translate --backend ctranslate2` does so, and sets the length penalty of each
batch so that CTranslate2 ranks as hvd_nmt does.
"""
    (folder / "README.txt").write_text(text, encoding="utf-8")
