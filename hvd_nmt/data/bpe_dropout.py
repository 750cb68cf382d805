"""BPE-dropout: another segmentation of each training sentence in each epoch.

Source: Provilkov et al. 2020, "BPE-Dropout: Simple and Effective Subword Regularization". As in
SentencePiece, every possible merge of two neighbours is refused with one probability, once and for
all, and the best of the others is done first.

A segmentation is a pure function of (seed, epoch, side, index of the sentence): chance is a hash of
these and of where in the sentence a merge would be. It sees neither ranks nor batches, so a resumed
run, on any number of ranks, sees the same ids.

It needs no text: the pieces of a sentence, one after the other, are its normalised characters.
TensorFlow and SentencePiece have crashed in one process, so merging is our own, in
`hvd_nmt.data.byte_pair_merges`.
"""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import final

import numpy as np

from hvd_nmt.common.errors import DataError
from hvd_nmt.config import UNK
from hvd_nmt.data import sentencepiece_model, vocabulary
from hvd_nmt.data.corpus import DataDirectory, ParallelCorpus, Sentences
from hvd_nmt.data.mixing import mixed
from hvd_nmt.data.sentencepiece_model import SPACE

_SPECIAL = UNK + 1


@final
class SubwordDropout:
    """Segments sentences anew.

    Args:
        pieces: (piece, score) in the order of the ids, as in `spm.vocab`.
        share: probability that a merge is refused, in [0, 1); 0 gives SentencePiece's own ids.
        seed: 0 to 2^64 - 1.
        max_length: a sentence that would get more tokens, eos counted, keeps its own ids.
        never_merged: ids of pieces that are no sum of others: user-defined ones, and bytes.
        source: segments the source sides of pairs, where they have a vocabulary of their own.
    """

    def __init__(
        self, pieces: list[tuple[str, float]], share: float, seed: int, max_length: int,
        never_merged: Container[int] = (), *, source: SubwordDropout | None = None,
    ) -> None:  # fmt: skip
        from hvd_nmt.data import byte_pair_merges  # Numba, which other commands do not wait for

        self._refused_below = np.uint64(int(share * 2.0**64))
        self._seed, self._max_length = seed, max_length
        self._source = source or self
        ids = {
            piece: i
            for i, (piece, _) in enumerate(pieces)
            if i >= _SPECIAL and i not in never_merged
        }
        self._set_characters([piece for piece, _ in pieces], ids)
        merges = {
            (ids[piece[:cut]], ids[piece[cut:]]): merged
            for piece, merged in ids.items()
            for cut in range(1, len(piece))
            if piece[:cut] in ids and piece[cut:] in ids
        }
        scores = np.array([score for _, score in pieces])
        rank = np.unique(-scores, return_inverse=True)[1].astype(np.int64)
        self._merges = byte_pair_merges.table(merges, rank)
        self._segment = byte_pair_merges.segment
        # Compiled now, so that the first step does not wait for it.
        nothing = np.zeros(0, np.int64)
        self.sentences(Sentences(nothing, np.zeros(1, np.int64)), nothing, 0, 0)

    @classmethod
    def of(cls, data: DataDirectory, share: float, seed: int) -> SubwordDropout | None:
        """For the training part of prepared data; None if the share is 0.

        Args:
            data: prepared data.
            share: probability that a merge is refused, in [0, 1).
            seed: 0 to 2^64 - 1.

        Raises:
            DataError: the vocabulary cannot be read, or is not one of byte-pair encoding.
        """
        if not share:
            return None
        pieces, never_merged = _read(data.spm_vocab_path, data.spm_path)
        settings, source = (share, seed, data.manifest.max_length), None
        if data.manifest.source_has_own:
            own, own_never_merged = _read(data.source_spm_vocab_path, data.source_spm_path)
            source = cls(own, *settings, own_never_merged)
        return cls(pieces, *settings, never_merged, source=source)

    def pairs(
        self, corpus: ParallelCorpus, indices: np.ndarray, epoch: np.ndarray | int
    ) -> ParallelCorpus:
        """Some pairs, in the order of their indices, segmented for an epoch.

        Args:
            corpus: all pairs, with SentencePiece's own ids.
            indices: int64, of the pairs that are wanted.
            epoch: from 0, one for all or one for each.
        """
        return ParallelCorpus(
            self._source.sentences(corpus.source, indices, epoch, 0),
            self.sentences(corpus.target, indices, epoch, 1),
        )

    def sentences(
        self, sentences: Sentences, indices: np.ndarray, epoch: np.ndarray | int, side: int
    ) -> Sentences:
        """The sentences of these indices, int64, segmented for an epoch.

        Args:
            sentences: one side of the corpus, with SentencePiece's own ids.
            indices: which ones.
            epoch: from 0, one for all or one for each.
            side: 0 source, 1 target: a part of the chance.
        """
        lengths = sentences.lengths[indices].astype(np.int64)
        ids = sentences.ids[_ranges(sentences.offsets[indices], lengths)].astype(np.int64)
        counts = self._character_count[ids]
        characters = self._characters[_ranges(self._character_at[ids], counts)]
        ends = np.cumsum(counts)[np.cumsum(lengths) - 1]
        keys = np.zeros(1, np.uint64)
        for part in (self._seed, epoch, side, indices):
            keys = mixed(keys ^ np.asarray(part, np.uint64))
        found, found_lengths = self._segment(
            characters, ends, keys, self._space, self._merges, self._refused_below
        )
        # These keep their own ids.
        too_long = found_lengths > self._max_length
        new_lengths = np.where(too_long, lengths, found_lengths)
        own = np.repeat(too_long, new_lengths)
        new = np.empty(len(own), np.int32)
        new[own] = ids[np.repeat(too_long, lengths)]
        new[~own] = found[np.repeat(~too_long, found_lengths)]
        return Sentences(new, np.concatenate(([0], np.cumsum(new_lengths))))

    def _set_characters(self, pieces: list[str], ids: dict[str, int]) -> None:
        """The characters of each piece, as ids, one piece after the other."""
        characters = [
            [ids[c] for c in piece] if piece in ids and all(c in ids for c in piece) else [i]
            for i, piece in enumerate(pieces)
        ]
        self._character_count = np.array([len(c) for c in characters], np.int64)
        self._character_at = np.cumsum(self._character_count) - self._character_count
        self._characters = np.array([c for some in characters for c in some], np.int32)
        # Words are segmented by themselves if no piece reaches over a space.
        self._space = ids.get(SPACE, -1)
        if any(SPACE in piece[1:] for piece in ids):
            self._space = -1


def _read(pieces_path: Path, model_path: Path) -> tuple[list[tuple[str, float]], set[int]]:
    """The pieces of a vocabulary by id, and the ids of those that are never merged."""
    pieces = vocabulary.read(pieces_path)
    # Merges have ranks; pieces of a unigram model have log-probabilities.
    if not all(score.is_integer() for _, score in pieces):
        raise DataError(
            f"{pieces_path} is not of byte-pair encoding, so there are no merges to refuse: train "
            "with --data.bpe-dropout 0."
        )
    try:
        never_merged = sentencepiece_model.never_merged(model_path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{model_path} cannot be read: {error}.") from None
    return pieces, set(never_merged.values())


def _ranges(first: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """first[0], first[0] + 1, ... (sizes[0] of them), first[1], ...: int64."""
    return np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
