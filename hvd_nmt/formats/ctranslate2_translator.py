"""Source ids in, target ids out, as `hvd_nmt.model.translator` does it, by CTranslate2's search.

CTranslate2 ranks by log-probability / length^penalty. The penalty of each batch is the one whose
slope at the length of its longest source is that of the run's own `Decoding.penalty`.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from hvd_nmt.common.errors import ConfigError, RunError
from hvd_nmt.formats import ctranslate2
from hvd_nmt.model.batching import batches, cut
from hvd_nmt.model.decoding import EXTRA_TOKENS, Decoding
from hvd_nmt.model.translator import DEFAULT, Translation

# A search ends when beam size x patience hypotheses have finished. Ours ends when the best cannot
# be beaten, which takes a few more.
_PATIENCE = 1.5
# Rows x tokens that one worker translates at once: small enough for a CPU's cache.
_BATCH_TOKENS = 1024


def require_possible(decoding: Decoding) -> None:
    """See that CTranslate2 can do what is asked for, with the result our own search would give."""
    for name in ("sample", "coverage_penalty", "min_length", "no_repeat_ngram"):
        if getattr(decoding, name):
            raise ConfigError(
                f"The CTranslate2 backend has no --{name.replace('_', '-')} that gives what ours "
                "gives: use the TensorFlow backend for that."
            )


@final
class CTranslate2Translator:
    """Translates with a directory that `formats.ctranslate2` made, on all processors."""

    def __init__(self, path: Path, decoding: Decoding = DEFAULT) -> None:
        require_possible(decoding)
        self._decoding = decoding
        package = ctranslate2.require_package()
        try:
            facts = json.loads((path / ctranslate2.FACTS).read_text(encoding="utf-8"))
            self.max_length = int(facts["max_length"])
            """longest source and longest translation, tokens with eos"""
            self._start: list[str] = facts["target_prefix"]
            self._source_pieces, pieces = (_pieces(path, side) for side in ("source", "target"))
            # Each worker translates a batch of its own: better than several threads at one batch.
            self._engine = package.Translator(
                os.fspath(path), inter_threads=len(os.sched_getaffinity(0)), intra_threads=1
            )
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise RunError(
                f"{path} is no CTranslate2 model of hvd_nmt.export ({error}): export it again."
            ) from None
        self._ids = {piece: number for number, piece in enumerate(pieces)}

    def translate(
        self,
        sources: Sequence[np.ndarray],
        batch_tokens: int = 4096,
        details: bool = False,
        numbers: Sequence[int] | None = None,
    ) -> Iterator[tuple[int, list[Translation]]]:
        """As `Translator.translate`, without token scores and alignments."""
        read = [cut(ids, self.max_length) for ids in sources]
        for index, ids in enumerate(read):
            if len(ids) <= 1:
                yield index, [Translation(np.zeros(0, np.int32), 0.0)]
        begun = []
        for batch in batches([len(ids) for ids in read], min(batch_tokens, _BATCH_TOKENS)):
            penalty = self._penalty(len(read[batch[0]]))
            begun.append((batch, penalty, self._begin([read[i] for i in batch], penalty)))
        for batch, penalty, promises in begun:
            for index, promise in zip(batch, promises, strict=True):
                yield index, self._translations(promise.result(), penalty)

    def _penalty(self, length: int) -> float:
        """The exponent d(log penalty) / d(log length) at the length of a source."""
        alpha = self._decoding.alpha
        return alpha if self._decoding.normalization == "marian" else alpha * length / (5 + length)

    def _begin(self, sources: Sequence[np.ndarray], penalty: float) -> list[Any]:
        """Promises of the hypotheses of a batch, the longest source of which is the first."""
        decoding, start = self._decoding, self._start
        longest = min(decoding.max_length or len(sources[0]) + EXTRA_TOKENS, self.max_length)
        return self._engine.translate_batch(
            [[self._source_pieces[number] for number in ids[:-1]] for ids in sources],
            [start] * len(sources) if start else None,
            asynchronous=True,
            beam_size=decoding.beam_size,
            patience=1.0 if decoding.beam_size == 1 else _PATIENCE,
            num_hypotheses=decoding.n_best,
            length_penalty=penalty,
            # Ours begins with eos only where that is the best token of all, as in greedy search.
            min_decoding_length=int(decoding.beam_size > 1),
            max_decoding_length=longest + len(start),
            max_input_length=0,
            return_end_token=True,
            return_scores=True,
        )

    def _translations(self, result: Any, penalty: float) -> list[Translation]:
        """The hypotheses with the scores that `Translator` would give them."""
        found = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            ids = np.array([self._ids[piece] for piece in pieces[len(self._start) :]], np.int32)
            logp = score * len(pieces) ** penalty
            found.append(Translation(ids, logp / self._decoding.penalty(max(1, len(ids)))))
        return sorted(found, key=lambda one: -one.score)


def _pieces(path: Path, side: str) -> list[str]:
    """The names of the rows of a matrix, of a file for each side or of one for both."""
    shared = path / "shared_vocabulary.json"
    file = shared if shared.exists() else path / f"{side}_vocabulary.json"
    pieces: list[str] = json.loads(file.read_text(encoding="utf-8"))
    return pieces
