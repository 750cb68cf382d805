"""A run's model for CTranslate2, whose engine translates on CPUs several times as fast.

The directory works without this package: it holds CTranslate2's own files, the run's spm.model,
with its spm.source.model if there is one, and a README.txt that says how to use them.

CTranslate2's search is nearly ours: it keeps the same hypotheses alive, but it ranks finished ones
by logp / length^alpha and stops when a number of them has finished. So the translator asks for all
that finished, without any penalty, and ranks them by the run's own (`length_penalty`).
"""

import hashlib
import json
import os
import shutil
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import numpy as np

from hvd_nmt.checkpoints.find import find
from hvd_nmt.checkpoints.manifest import read_manifest
from hvd_nmt.checkpoints.run_files import vocabularies, write_record
from hvd_nmt.checkpoints.weights import load_model, require_vocabularies
from hvd_nmt.common.errors import ConfigError, RunError
from hvd_nmt.common.files import exclusive, is_writable, replacing, require_free
from hvd_nmt.config import BOS, EOS
from hvd_nmt.formats import Quantization
from hvd_nmt.model.batching import batches, cut
from hvd_nmt.model.decoding import EXTRA_TOKENS, Decoding
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.model.translator import DEFAULT, Translation

_FACTS = "hvd_nmt.json"
_PROCESSOR = "sentencepiece.SentencePieceProcessor"
_README = "README.txt"
# A search ends when beam size x patience hypotheses have finished. Ours ends when the best cannot
# be beaten, which takes a few more.
_PATIENCE, _PATIENCE_N_BEST = 1.5, 3.0
# Rows x tokens that one worker translates at once: small enough for a CPU's cache.
_BATCH_TOKENS = 1024
# Raised when a conversion writes something else: what `cached` made before is then made anew.
_CONVERSION = 2


def convert(run: Path, checkpoint: str, out: Path, quantization: Quantization = "float32") -> None:
    """Write a checkpoint as a CTranslate2 model directory, complete or not at all.

    Raises:
        ConfigError: CTranslate2 is not installed, has no such quantization or cannot compute this
            model, or `out` is there already.
        RunError: the run or the checkpoint cannot be used.
        DataError: `out` cannot be written.
    """
    with exclusive(out):
        require_free(out)
        with replacing(out) as draft:
            _write(run, find(run, checkpoint), draft, out, quantization)


def cached(run: Path, checkpoint: str, quantization: Quantization = "float32") -> Path:
    """The model directory of a checkpoint under `<run>/exports/`, made if it is not there yet.

    Where that cannot be written it is made under `$XDG_CACHE_HOME/hvd_nmt`, by default
    `~/.cache/hvd_nmt`, and stderr says so. Its name holds the checkpoint's and a hash of its files,
    so that a changed checkpoint of the same name is converted anew.
    """
    prefix = find(run, checkpoint)
    manifest = read_manifest(Path(f"{prefix}.json"))
    require_vocabularies(run, manifest, prefix.name)
    files = json.dumps(manifest.files, sort_keys=True)
    made_by = f"{_package().__version__} {_CONVERSION}"
    identity = hashlib.sha256(f"{made_by} {files}".encode()).hexdigest()[:12]
    name = f"ctranslate2-{quantization}-{prefix.name}-{identity}"
    path = run / "exports" / name
    if not path.exists() and not is_writable(path.parent):
        path = _of_the_user(run) / name
        if not path.exists():
            print(
                f"{run} cannot be written: its CTranslate2 model goes to {path}.", file=sys.stderr
            )
    if not path.exists():
        with exclusive(path):
            if not path.exists():  # another process may have made it while we waited
                with replacing(path) as draft:
                    _write(run, prefix, draft, path, quantization)
    return path


def _of_the_user(run: Path) -> Path:
    """The folder of this user's copies."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvd_nmt"
    except RuntimeError:
        raise ConfigError(
            f"{run} cannot be written and this user has no home: set XDG_CACHE_HOME to a folder "
            "for its CTranslate2 model."
        ) from None


def usage(path: Path) -> str:
    """A few lines of Python that translate with a model directory, without this package."""
    # Some imported models have bos after the zero vector that their decoder starts from.
    start: list[str] = json.loads((path / _FACTS).read_text(encoding="utf-8"))["target_prefix"]
    prefix, words = "", "result.hypotheses[0]"
    if start:
        prefix, words = f", target_prefix=[{start}] * len(pieces)", f"{words}[{len(start)}:]"
    source, target = vocabularies(path)
    name, more = "subwords", ""
    if source != target:
        name, more = "words", f'\nwords = {_PROCESSOR}(model_file="{source}")'
    return f"""\
import ctranslate2, sentencepiece
subwords = {_PROCESSOR}(model_file="{target}"){more}
translator = ctranslate2.Translator("{path}")
pieces = {name}.encode(["A man sees a dog."], out_type=str)
found = translator.translate_batch(pieces{prefix}, beam_size=4, min_decoding_length=0)
print(subwords.decode([{words} for result in found]))
"""


def require_possible(decoding: Decoding) -> None:
    """See that CTranslate2 can do what is asked for, with the result our own search would give."""
    impossible = {
        "sample": "draw samples that a seed repeats",
        "coverage_penalty": "apply our coverage penalty",
        # It forbids tokens before it normalises, so that the scores of the others rise.
        "min_length": "ask for a least length without changing scores",
        "no_repeat_ngram": "forbid repetitions without changing scores",
    }
    for name, what in impossible.items():
        if getattr(decoding, name):
            raise ConfigError(_cannot(what))


class CTranslate2Translator:
    """Translates with CTranslate2; takes and gives what `hvd_nmt.model.translator.Translator` does.

    Args:
        path: a directory made by `convert` or `cached`.
        threads: processor threads; 0: all that this process may use.
        device: cpu, cuda, or auto.
        patience: a search ends when this times the beam size have finished. More costs time, and
            finds what our own search finds in more of the sentences that the model knows badly.
            By default 1.5, or 3 with n_best.
    """

    def __init__(
        self,
        path: Path,
        decoding: Decoding = DEFAULT,
        threads: int = 0,
        device: str = "cpu",
        patience: float | None = None,
    ) -> None:
        require_possible(decoding)
        self._decoding = decoding
        usual = _PATIENCE if decoding.n_best == 1 else _PATIENCE_N_BEST
        self._patience = 1.0 if decoding.beam_size == 1 else patience or usual
        # Each worker translates a batch of its own: better than several threads at one batch.
        self._workers = threads or len(os.sched_getaffinity(0))
        package = _package()
        try:
            facts = json.loads((path / _FACTS).read_text(encoding="utf-8"))
            self.max_length = int(facts["max_length"])
            """longest source and longest translation, tokens with eos"""
            self._start: list[str] = facts["target_prefix"]
            self._source_pieces, self._pieces = _pieces(path)
            self._engine = package.Translator(
                os.fspath(path), device=device, inter_threads=self._workers, intra_threads=1
            )
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise RunError(
                f"{path} is no CTranslate2 model of hvd_nmt.export ({error}): export it again."
            ) from None
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}

    def translate(
        self,
        sources: Sequence[np.ndarray],
        batch_tokens: int = 4096,
        details: bool = False,
    ) -> Iterator[tuple[int, list[Translation]]]:
        """As `Translator.translate`: `details` gives `token_scores`, but no `alignment`."""
        read = [cut(ids, self.max_length) for ids in sources]
        for index, ids in enumerate(read):
            if len(ids) <= 1:
                yield index, [Translation(np.zeros(0, np.int32), 0.0)]
        under_way: deque[tuple[list[int], list[Any]]] = deque()
        for batch in batches([len(ids) for ids in read], min(batch_tokens, _BATCH_TOKENS)):
            under_way.append((batch, self._begin([read[index] for index in batch])))
            if len(under_way) > 2 * self._workers:
                yield from self._end(*under_way.popleft(), read, details)
        while under_way:
            yield from self._end(*under_way.popleft(), read, details)

    def _begin(self, sources: Sequence[np.ndarray], **others: Any) -> list[Any]:
        """Promises of the hypotheses of a batch, the longest source of which is the first."""
        decoding, start = self._decoding, self._start
        options: dict[str, Any] = {
            "beam_size": decoding.beam_size,
            "patience": self._patience,
            "num_hypotheses": round(decoding.beam_size * self._patience),
            # With none at all it would stop as soon as the most probable hypothesis has finished.
            "length_penalty": 1e-9,
            "min_decoding_length": 0,
            "max_decoding_length": self._limit(sources[0]) + len(start),
            "max_input_length": 0,
            "return_end_token": True,
            "return_scores": True,
        }
        return self._engine.translate_batch(
            [_named(ids[:-1], self._source_pieces) for ids in sources],
            [start] * len(sources) if start else None,
            asynchronous=True,
            **(options | others),
        )

    def _end(
        self, batch: list[int], promises: list[Any], sources: list[np.ndarray], details: bool
    ) -> Iterator[tuple[int, list[Translation]]]:
        for index, promise in zip(batch, promises, strict=True):
            source = sources[index]
            limit = self._limit(source)
            found = self._ranked(source, promise.result(), limit)
            if not found:  # all went on beyond what this sentence may have, for a longer neighbour
                alone = self._begin([source])[0].result()
                found = self._ranked(source, alone, limit) or self._ranked(source, alone, limit, 0)
            yield index, [self._detailed(source, one) for one in found] if details else found

    def _ranked(
        self, source: np.ndarray, result: Any, limit: int, least: int = 1
    ) -> list[Translation]:
        """The best hypotheses of a sentence; if none has ended, those cut at the limit.

        Lengths are in tokens, eos included. Translations of at most `least` are left out where a
        search of ours would not end so early.
        """
        ended, unfinished = [], []
        for pieces, logp in zip(result.hypotheses, result.scores, strict=True):
            named = pieces[len(self._start) :]
            one = logp / self._decoding.penalty(max(1, len(named))), named
            if len(named) <= limit and named and named[-1] == self._pieces[EOS]:
                ended.append(one)
            elif len(named) == limit:
                unfinished.append(one)
        n_best = self._decoding.n_best
        best = sorted(ended, key=lambda one: -one[0])
        is_short = any(len(named) <= least for _, named in best[:n_best])
        if is_short and not self._may_be_empty(source):
            best = [one for one in best if len(one[1]) > least]
        best = best or sorted(unfinished, key=lambda one: -one[0])
        return [
            Translation(np.array([self._ids[piece] for piece in named], np.int32), score)
            for score, named in best[:n_best]
        ]

    def _may_be_empty(self, source: np.ndarray) -> bool:
        """Whether a search of ours could end with the first token: see `model.beam_search`."""
        decoding = self._decoding
        if decoding.beam_size == 1 or decoding.normalization == "marian":
            return True
        greedy = {"beam_size": 1, "patience": 1.0, "num_hypotheses": 1}
        most = len(self._start) + 1
        (found,) = self._begin([source], **greedy, max_decoding_length=most)
        return found.result().hypotheses[0][len(self._start) :] == [self._pieces[EOS]]

    def _detailed(self, source: np.ndarray, translation: Translation) -> Translation:
        ids, start = translation.ids, self._start
        words = _named(ids[:-1] if ids[-1] == EOS else ids, self._pieces)  # the engine adds eos
        (scored,) = self._engine.score_batch(
            [_named(source[:-1], self._source_pieces)], [start + words], max_input_length=0
        )
        scores = scored.log_probs[len(start) :][: len(ids)]
        return translation._replace(token_scores=np.array(scores, np.float32))

    def _limit(self, source: np.ndarray) -> int:
        """Most tokens of a translation, eos included."""
        most = self._decoding.max_length or len(source) + EXTRA_TOKENS
        return min(most, self.max_length)


def _named(ids: np.ndarray, pieces: Sequence[str]) -> list[str]:
    return [pieces[number] for number in ids]


def _pieces(path: Path) -> tuple[list[str], list[str]]:
    """The names of the rows of a model directory, of source and target: one file where equal."""
    shared = path / "shared_vocabulary.json"
    files = [shared] * 2 if shared.exists() else [path / f"{side}_vocabulary.json"
                                                  for side in ("source", "target")]  # fmt: skip
    source, target = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    return source, target


def _write(run: Path, prefix: Path, folder: Path, out: Path, quantization: Quantization) -> None:
    """Fill an empty folder, which is to be named `out`."""
    if quantization not in get_args(Quantization):
        raise ConfigError(
            f"CTranslate2 has no quantization {quantization!r}: give one of "
            f"{', '.join(get_args(Quantization))}."
        )
    _package()
    from hvd_nmt.formats import ctranslate2_spec

    model, step = load_model(run, os.fspath(prefix))
    tokenizers = Tokenizers.of(*vocabularies(run))
    pieces = tokenizers.target.pieces
    spec = ctranslate2_spec.specification(model, tokenizers.source.pieces, pieces, quantization)
    spec.save(os.fspath(folder))
    for path in set(vocabularies(run)):
        shutil.copyfile(path, folder / path.name)
    begin = [pieces[BOS]] if ctranslate2_spec.extra_positions(model) else []
    facts = {
        "made_by": "python -m hvd_nmt.export --to ctranslate2",
        "checkpoint": prefix.name, "step": step, "quantization": quantization,
        "max_length": model.max_length, "target_prefix": begin,
    }  # fmt: skip
    write_record(folder / _FACTS, facts)
    example = usage(folder).replace(os.fspath(folder), out.name)
    (folder / _README).write_text(_readme(facts, example), encoding="utf-8")


def _readme(facts: dict[str, Any], example: str) -> str:
    return f"""\
A translation model for CTranslate2 (github.com/OpenNMT/CTranslate2), made by hvd_nmt.export from
checkpoint {facts["checkpoint"]} (step {facts["step"]:,}), weights {facts["quantization"]}.

    pip install ctranslate2 sentencepiece

{example}
It reads and writes up to {facts["max_length"]} subword tokens. Give it one sentence per entry, with
control characters such as TAB replaced by spaces, and keep empty lines empty yourself.
CTranslate2 ranks by log-probability / length^length_penalty; hvd_nmt.translate may rank by another
function of the length, so the two differ in a few sentences.
`python -m hvd_nmt.translate --backend ctranslate2` gives hvd_nmt's own translations.
"""


def _cannot(what: str) -> str:
    return f"The CTranslate2 backend cannot {what}: use the TensorFlow backend for that."


def _package() -> ModuleType:
    try:
        import ctranslate2
    except ImportError:
        raise ConfigError(
            "CTranslate2 is not installed: run pip install 'ctranslate2>=4,<5'."
        ) from None
    return ctranslate2
