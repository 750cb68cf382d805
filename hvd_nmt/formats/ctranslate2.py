"""A run's model as a directory for CTranslate2, several times as fast on CPUs, and its search.

The directory works without this package: it holds CTranslate2's files, the run's SentencePiece
models, and a program that translates with them.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, final

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.run_files import RunDirectory, new_directory, write_record
from hvd_nmt.checkpoints.weights import load_model, manifest_of
from hvd_nmt.common.errors import ConfigError, RunError
from hvd_nmt.common.files import exclusive, replacing
from hvd_nmt.config import BOS, EOS, UNK
from hvd_nmt.data.corpus import ParallelCorpus
from hvd_nmt.formats import Quantization, card, shortlist
from hvd_nmt.model.batching import batches
from hvd_nmt.model.decoding import EXTRA_TOKENS, Decoding
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.model.translator import DEFAULT, Translation

FACTS = "hvd_nmt.json"
"""file of what CTranslate2's own files do not say"""
# Raised when a conversion writes something else: what `cached` made before is then made again.
_CONVERSION = 4
# A search ends when beam size x patience hypotheses have finished. Ours ends when the best cannot
# be beaten, which takes a few more. With 1.25 a demo's BLEU is 0.3 lower, 2026-11-28.
_PATIENCE = 1.5
# Rows x tokens that one worker translates at once: small enough for a CPU's cache.
_BATCH_TOKENS = 512
# Other programs send lines of any length. By default CTranslate2 cuts them to 1,024 pieces.
_LEAST_ROWS = 1024
_README = """\
A translation model for CTranslate2 (github.com/OpenNMT/CTranslate2), made by hvd_nmt.export from
checkpoint {checkpoint}, weights {quantization}.

    pip install ctranslate2 sentencepiece

{use}
It was trained on up to {max_length} subword tokens a line, and more are {most}: give it
one sentence in each.
translate.py searches as hvd_nmt does; take from it what your program needs, with its options. With
vmap.txt, a shortlist, only target pieces that go with the source are searched (use_vmap).
"""


def convert(
    run: Path, checkpoint: str, out: Path, quantization: Quantization = "float32",
    decoding: Decoding = DEFAULT, licence: str = "", pairs: ParallelCorpus | None = None,
) -> None:  # fmt: skip
    """Write a checkpoint as a CTranslate2 model directory, complete or not at all.

    Its program searches with the options of `decoding`, and with a shortlist if there are `pairs`
    to learn it from. Raises what `new_directory` does, ConfigError if CTranslate2 is not installed,
    and RunError if the run or the checkpoint cannot be used.
    """
    prefix = find(run, checkpoint)
    with new_directory(out) as draft:
        max_length, start = write_model(draft, run, prefix, quantization, pairs)
        is_learned = RunDirectory(run).read_config().model.positions == "learned"
        program = _program(run, RunDirectory(run).decoding(decoding), max_length, start)
        (draft / card.PROGRAM).write_text(program, encoding="utf-8")
        readme = _README.format(
            checkpoint=prefix.name, quantization=quantization, max_length=card.trained_length(run),
            use=card.use(out, run), most="an error" if is_learned else "read badly",
        )  # fmt: skip
        card.write(draft, run, prefix, licence, readme)


def cached(
    run: Path, checkpoint: str, quantization: Quantization = "float32", has_shortlist: bool = False
) -> Path:
    """The model directory of a checkpoint under `<run>/exports/`, made if it is not there yet.

    Its name holds a hash of the checkpoint's files: a changed one of the same name is made anew.
    """
    prefix = find(run, checkpoint)
    files = json.dumps(manifest_of(run, prefix).files, sort_keys=True)
    made_by = f"{require_package().__version__} {_CONVERSION}"
    identity = hashlib.sha256(f"{made_by} {files}".encode()).hexdigest()[:12]
    kind = f"{quantization}-shortlist" if has_shortlist else quantization
    path = run / "exports" / f"ctranslate2-{kind}-{prefix.name}-{identity}"
    if not path.exists():
        pairs = shortlist.training_pairs(run) if has_shortlist else None
        with exclusive(path, RunError):
            if not path.exists():  # another process may have made it while we waited
                with replacing(path, RunError) as draft:
                    write_model(draft, run, prefix, quantization, pairs)
    return path


def write_model(
    folder: Path, run: Path, prefix: Path, quantization: Quantization,
    pairs: ParallelCorpus | None = None,
) -> tuple[int, list[str]]:  # fmt: skip
    """Write CTranslate2's files and the vocabularies; longest line and first pieces of a target."""
    require_package()
    tokenizers = Tokenizers.of(*RunDirectory(run).vocabularies())
    pieces = tokenizers.target.pieces
    if pairs is not None:
        shortlist.write(folder, pairs, tokenizers.source.pieces, pieces)
    model, _ = load_model(run, os.fspath(prefix))
    specification(model, tokenizers.source.pieces, pieces, quantization).save(os.fspath(folder))
    # Some imported models have bos after the zero vector that their decoder starts from.
    start = [pieces[BOS]] * model.extra_positions
    for path in set(RunDirectory(run).vocabularies()):
        shutil.copyfile(path, folder / path.name)
    write_record(folder / FACTS, {"max_length": model.max_length, "target_prefix": start})
    return model.max_length, start


@final
class CTranslate2Translator:
    """Source ids in, target ids out, as `Translator` does it, on all processors.

    CTranslate2 ranks by log-probability / length^penalty. The penalty of each batch is the one
    whose slope at the length of its longest source is that of the run's own `Decoding.penalty`.
    """

    def __init__(
        self, path: Path, decoding: Decoding = DEFAULT, given: Mapping[str, Any] | None = None
    ) -> None:
        """`given`: options of CTranslate2's search that are used instead of those that suit it."""
        self._decoding, self._given = decoding, {**(given or {})}
        package = require_package()
        try:
            facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
            self.max_length = int(facts["max_length"])
            """longest source and longest translation, tokens with eos"""
            self._start: list[str] = facts["target_prefix"]
            self._source_pieces, pieces = (_pieces(path, side) for side in ("source", "target"))
            # Each worker translates another batch: better than several threads at one batch.
            self._engine = package.Translator(
                os.fspath(path), inter_threads=len(os.sched_getaffinity(0)), intra_threads=1
            )
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise RunError(
                f"{path} is not a CTranslate2 model of hvd_nmt.export ({error}): export it again."
            ) from None
        self._ids = {piece: number for number, piece in enumerate(pieces)}

    def translate(
        self, sources: Sequence[np.ndarray], batch_tokens: int = 4096, details: bool = False,
        numbers: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, list[Translation]]]:  # fmt: skip
        """As `Translator.translate`, without token scores and alignments; none is too long."""
        for index, ids in enumerate(sources):
            if len(ids) <= 1:
                yield index, [Translation(np.zeros(0, np.int32), 0.0)]
        begun = []
        for batch in batches([len(ids) for ids in sources], min(batch_tokens, _BATCH_TOKENS)):
            penalty, length = self._decoding.alpha, len(sources[batch[0]])
            if self._decoding.normalization != "marian":  # d(log penalty) / d(log length)
                penalty = penalty * length / (5 + length)
            begun.append((batch, penalty, self._begin([sources[i] for i in batch], penalty)))
        for batch, penalty, promises in begun:
            for index, promise in zip(batch, promises, strict=True):
                result, ids = promise.result(), sources[index]
                # Of a batch its longest source decides where a translation is cut.
                if max(map(len, result.hypotheses)) > self._most(ids) + len(self._start):
                    result = self._begin([ids], penalty)[0].result()
                yield index, self._translations(result, penalty)

    def _most(self, source: np.ndarray) -> int:
        """The most tokens of a translation, with eos."""
        return min(self._decoding.max_length or len(source) + EXTRA_TOKENS, self.max_length)

    def _begin(self, sources: Sequence[np.ndarray], penalty: float) -> list[Any]:
        """Promises of the hypotheses of a batch, the longest source of which is the first."""
        decoding, start = self._decoding, self._start
        options: dict[str, Any] = {
            "beam_size": decoding.beam_size,
            "patience": 1.0 if decoding.beam_size == 1 else _PATIENCE,
            "num_hypotheses": decoding.n_best,
            "length_penalty": penalty,
            "min_decoding_length": _least(decoding),
            "max_decoding_length": self._most(sources[0]) + len(start),
            "max_input_length": 0,
        }
        return self._engine.translate_batch(
            [[self._source_pieces[number] for number in ids[:-1]] for ids in sources],
            [start] * len(sources) if start else None,
            asynchronous=True,
            return_end_token=True,
            return_scores=True,
            use_vmap=True,  # if the export has one
            **options | self._given,
        )

    def _translations(self, result: Any, penalty: float) -> list[Translation]:
        """The hypotheses with the scores that `Translator` would give them."""
        translations = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            ids = np.array([self._ids[piece] for piece in pieces[len(self._start) :]], np.int32)
            logp = score * len(pieces) ** penalty
            score = logp / self._decoding.penalty(max(1, len(ids)))
            translations.append(Translation(ids, score))
        return sorted(translations, key=lambda translation: -translation.score)


def require_package() -> ModuleType:
    """The package ctranslate2; ConfigError: it is not installed."""
    try:
        import ctranslate2
    except ImportError:
        raise ConfigError("CTranslate2 is missing: run pip install 'ctranslate2>=4,<5'.") from None
    return ctranslate2


def specification(
    model: Transformer, source_pieces: Sequence[str], pieces: Sequence[str], quantization: str
) -> Any:
    """CTranslate2's `TransformerSpec` with all weights, quantized: ready for `save`.

    One matrix serves source, target and softmax, unless the source has its own. Rows beyond the
    pieces, which are given by id, get names that no text can hold.
    """
    from ctranslate2 import specs
    from ctranslate2.specs import transformer_spec

    config, starts_from_zero = model.config, model.extra_positions > 0
    options: dict[str, Any] = {
        "num_heads": config.heads, "pre_norm": config.norm == "pre",
        "activation": specs.Activation[config.activation.upper()],
    }  # fmt: skip
    if config.positions == "rotary":
        options |= {"rotary_dim": 0, "rotary_interleave": False}  # all units of a head, in halves
    try:
        spec = specs.TransformerSpec(
            transformer_spec.TransformerEncoderSpec(config.encoder_layers, **options),
            transformer_spec.TransformerDecoderSpec(config.decoder_layers, **options),
        )
    except TypeError:
        raise ConfigError(
            "This CTranslate2 is too old for rotary positions: run pip install -U 'ctranslate2<5'."
        ) from None
    halves = {"float16": np.float16, "bfloat16": tf.bfloat16.as_numpy_dtype}
    _copy_weights(model, spec, halves.get(quantization, np.float32))
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


def _copy_weights(model: Transformer, spec: Any, dtype: type[np.generic]) -> None:
    """Copy a model into a specification, as numbers of one dtype.

    Kernels are [in, out] here and [out, in] there; queries, keys and values are fused in both.
    """

    def array(tensor: tf.Tensor) -> np.ndarray:
        return tensor.numpy().astype(dtype)

    def norm(part: Any, block: Any) -> None:
        part.gamma, part.beta = array(block.scale), array(block.offset)

    def linear(part: Any, kernel_IxO: tf.Tensor, bias_O: tf.Tensor | None) -> None:
        part.weight = np.ascontiguousarray(array(kernel_IxO).T)
        if bias_O is not None:
            part.bias = array(bias_O)

    encoder, decoder = spec.encoder, spec.decoder
    source = model.embedding if model.source_embedding is None else model.source_embedding
    encoder.embeddings[0].weight = array(source)
    decoder.embeddings.weight = decoder.projection.weight = array(model.embedding)
    if model.logits_bias is not None:
        decoder.projection.bias = array(model.logits_bias)
    rows = model.max_length
    if model.positions is None:  # learned ones end here
        rows = max(rows, _LEAST_ROWS)
    signal_TxD = model.position_signal(tf.range(rows + model.extra_positions))
    # With rotary positions nothing is added to the embeddings, of which its encoder asks for zeros.
    signal_TxD *= float(model.config.positions != "rotary")
    for part, layers in ((encoder, model.encoder), (decoder, model.decoder)):
        part.scale_embeddings = True
        if hasattr(part, "position_encodings"):
            part.position_encodings.encodings = array(signal_TxD)
        for inner, layer in zip(part.layer, layers, strict=True):
            itself, block = inner.self_attention, layer.attention
            norm(itself.layer_norm, layer.attention_norm)
            linear(itself.linear[0], block.qkv, block.qkv_bias)
            linear(itself.linear[1], block.output_kernel, block.output_bias)
            if part is decoder:
                cross, block = inner.attention, layer.cross_attention
                norm(cross.layer_norm, layer.cross_attention_norm)
                linear(cross.linear[0], block.query, block.query_bias)
                linear(cross.linear[1], block.key_value, block.key_value_bias)
                linear(cross.linear[2], block.output_kernel, block.output_bias)
            norm(inner.ffn.layer_norm, layer.feed_forward_norm)
            linear(inner.ffn.linear_0, layer.feed_forward.inner, layer.feed_forward.inner_bias)
            linear(inner.ffn.linear_1, layer.feed_forward.outer, layer.feed_forward.outer_bias)
    if model.config.norm == "pre":
        norm(encoder.layer_norm, model.encoder_norm)
        norm(decoder.layer_norm, model.decoder_norm)


def _names(pieces: Sequence[str], rows: int) -> list[str]:
    return [*pieces, *(f"<unused {number}>" for number in range(len(pieces), rows))]


def _least(decoding: Decoding) -> int:
    """Fewest tokens: ours begins with eos where that is the best of all, which no option says."""
    return int(decoding.beam_size > 1 and decoding.normalization != "marian")


def _program(run: Path, decoding: Decoding, max_length: int, start: list[str]) -> str:
    """Python that translates as our own search does."""
    slope = "" if decoding.normalization == "marian" else " * n / (5 + n)"
    longest = decoding.max_length or f"n + {EXTRA_TOKENS}"
    source, target = RunDirectory(run).vocabularies()
    return card.program(
        "ctranslate2.txt",
        source=source.name, target=target.name, start=start,
        penalty=f"{decoding.alpha:g}{slope}", beam_size=decoding.beam_size,
        patience=1.0 if decoding.beam_size == 1 else _PATIENCE,
        longest=f"min({longest}, {max_length})", least=_least(decoding),
    )  # fmt: skip


def _pieces(path: Path, side: str) -> list[str]:
    """The names of the rows of a matrix, of a file for each side or of one for both."""
    shared = path / "shared_vocabulary.json"
    file = shared if shared.exists() else path / f"{side}_vocabulary.json"
    pieces: list[str] = json.loads(file.read_text(encoding="utf-8"))
    return pieces
