"""Text with the noise of training in it, to see what a model makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hvd_nmt.checkpoints.run_files import vocabularies
from hvd_nmt.config import UNK, DataConfig
from hvd_nmt.config.noise_rates import NoiseConfig
from hvd_nmt.data.augmentation import Augmentation
from hvd_nmt.data.corpus import ParallelCorpus, Sentences
from hvd_nmt.model.tokenizer import Tokenizer, Tokenizers
from hvd_nmt.translation.scoring import Text

_NO_LIMIT = 1 << 30


def noised(
    run: Path, source: Text, references: Sequence[Text], noise: NoiseConfig, seed: int
) -> tuple[Text, list[Text]]:
    """A source and its references with noise, as sentences of training get it.

    A line that a vocabulary cannot write stays as it is, on both sides.

    Args:
        run: run directory, whose vocabularies say what a character is.
        source: one sentence per line.
        references: its translations.
        noise: how much of what.
        seed: of all draws.

    Raises:
        DataError: the vocabulary is not of byte-pair encoding.
    """
    paths = vocabularies(run)
    tokenizers = Tokenizers.of(*paths)
    models = [path.read_bytes() for path in dict.fromkeys(paths)]
    augmentation = Augmentation.of_models(models, DataConfig(noise=noise), seed, _NO_LIMIT)
    encoded = [_encoded(tokenizers.target, reference.lines) for reference in references]
    source_ids = _encoded(tokenizers.source, source.lines)
    known = ~np.logical_or.reduce([_holds_unknown(side) for side in (source_ids, *encoded)])
    sources, found = [source.lines], []
    for reference, target_ids in zip(references, encoded, strict=True):
        lines, pairs = (source.lines, reference.lines), ParallelCorpus(source_ids, target_ids)
        changed = augmentation.pairs(pairs, np.arange(len(pairs)), 0)
        texts = [
            _decoded(tokenizer, old, new, known, side)
            for tokenizer, old, new, side in zip(
                tokenizers, (pairs.source, pairs.target), (changed.source, changed.target), lines,
                strict=True,
            )
        ]  # fmt: skip
        sources.append(texts[0])
        found.append(Text(f"{reference.name} with noise", texts[1]))
    return Text(f"{source.name} with noise", sources[-1]), found


def _encoded(tokenizer: Tokenizer, lines: Sequence[str]) -> Sentences:
    ids = tokenizer.encode(lines)
    return Sentences(np.concatenate(ids), np.cumsum([0, *map(len, ids)]))


def _holds_unknown(sentences: Sentences) -> np.ndarray:
    """bool [sentences]."""
    places = np.flatnonzero(sentences.ids == UNK)
    found = np.zeros(len(sentences), bool)
    found[np.searchsorted(sentences.offsets[1:], places, side="right")] = True
    return found


def _decoded(
    tokenizer: Tokenizer, old: Sentences, new: Sentences, known: np.ndarray, lines: Sequence[str]
) -> list[str]:
    """The new text of the lines that were changed, and may be."""
    changed = [
        number
        for number in np.flatnonzero(known).tolist()
        if not np.array_equal(old[number], new[number])
    ]
    found = list(lines)
    for number, text in zip(changed, tokenizer.decode(new[i] for i in changed), strict=True):
        found[number] = text
    return found
