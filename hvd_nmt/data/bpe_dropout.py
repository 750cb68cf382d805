"""BPE-dropout: another segmentation of each training sentence in each epoch.

Source: Provilkov et al. 2020, "BPE-Dropout: Simple and Effective Subword Regularization". As in
SentencePiece, every possible merge of two neighbours is refused with one probability, once and for
all, and the best of the others is done first.

A segmentation is a pure function of (seed, epoch, side, index of the sentence): chance is a hash of
these and of where in the sentence a merge would be. It sees neither ranks nor batches, so a resumed
run, on any number of ranks, sees the same ids.

It needs no text: the pieces of a sentence, one after the other, are its normalised characters.
TensorFlow and SentencePiece have crashed in one process, so this is NumPy, over all words of a step
at once: one merge in each word a round.
"""

from __future__ import annotations

from collections.abc import Container
from typing import final

import numpy as np

from hvd_nmt.common.errors import DataError
from hvd_nmt.config import EOS, UNK
from hvd_nmt.data import sentencepiece_model, vocabulary
from hvd_nmt.data.corpus import DataDirectory, ParallelCorpus, Sentences
from hvd_nmt.data.mixing import STRIDE, mixed

_SPACE = "\u2581"
_SPECIAL = UNK + 1
_NONE = np.iinfo(np.int64).max
_STRIDES = np.array([STRIDE, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)


@final
class SubwordDropout:
    """Segments sentences anew.

    Args:
        pieces: (piece, score) in the order of the ids, as in `spm.vocab`.
        share: probability that a merge is refused, in [0, 1); 0 gives SentencePiece's own ids.
        seed: 0 to 2^64 - 1.
        max_length: a sentence that would get more tokens, eos counted, keeps its own ids.
        never_merged: ids of pieces that are no sum of others: user-defined ones, and bytes.
    """

    def __init__(
        self, pieces: list[tuple[str, float]], share: float, seed: int, max_length: int,
        never_merged: Container[int] = (),
    ) -> None:  # fmt: skip
        self._refused_below = np.uint64(int(share * 2.0**64))
        self._seed, self._max_length = seed, max_length
        self._size = len(pieces)
        ids = {
            piece: i
            for i, (piece, _) in enumerate(pieces)
            if i >= _SPECIAL and i not in never_merged
        }
        self._set_characters([piece for piece, _ in pieces], ids)
        scores = np.array([score for _, score in pieces])
        self._rank = np.unique(-scores, return_inverse=True)[1].astype(np.int64)
        merges = {
            ids[piece[:cut]] * self._size + ids[piece[cut:]]: merged
            for piece, merged in ids.items()
            for cut in range(1, len(piece))
            if piece[:cut] in ids and piece[cut:] in ids
        }
        keys = sorted(merges)
        self._pairs = np.array([*keys, _NONE], np.int64)
        self._merged = np.array([*(merges[key] for key in keys), -1], np.int64)

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
        pieces = vocabulary.read(data.spm_vocab_path)
        # Merges have ranks; pieces of a unigram model have log-probabilities.
        if not all(score.is_integer() for _, score in pieces):
            raise DataError(
                f"{data.spm_vocab_path} is not of byte-pair encoding, so there are no merges to "
                "refuse: train with --data.bpe-dropout 0."
            )
        try:
            never_merged = sentencepiece_model.never_merged(data.spm_path.read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{data.spm_path} cannot be read: {error}.") from None
        return cls(pieces, share, seed, data.manifest.max_length, set(never_merged.values()))

    def pairs(self, corpus: ParallelCorpus, indices: np.ndarray, epoch: int) -> ParallelCorpus:
        """Some pairs, in the order of their indices, segmented for an epoch.

        Args:
            corpus: all pairs, with SentencePiece's own ids.
            indices: int64, of the pairs that are wanted.
            epoch: from 0.
        """
        source, target = (
            self.sentences(sentences, indices, epoch, side)
            for side, sentences in enumerate((corpus.source, corpus.target))
        )
        return ParallelCorpus(source, target)

    def sentences(
        self, sentences: Sentences, indices: np.ndarray, epoch: int, side: int
    ) -> Sentences:
        """The sentences of these indices, int64, segmented for an epoch.

        Args:
            sentences: one side of the corpus, with SentencePiece's own ids.
            indices: which ones.
            epoch: from 0.
            side: 0 source, 1 target: a part of the chance.
        """
        lengths = sentences.lengths[indices].astype(np.int64)
        ids = sentences.ids[_ranges(sentences.offsets[indices], lengths)].astype(np.int64)
        counts = self._character_count[ids]
        characters = self._characters[_ranges(self._character_at[ids], counts)]
        # Where each sentence ends, in characters: eos is one.
        ends = np.cumsum(counts)[np.cumsum(lengths) - 1]
        starts = np.concatenate(([0], ends[:-1]))
        keys = np.zeros(1, np.uint64)
        for part in (self._seed, epoch, side, indices):
            keys = mixed(keys ^ np.asarray(part, np.uint64))
        out = self._merge(characters, np.repeat(keys, ends - starts), starts, ends)
        new_lengths = np.add.reduceat(out >= 0, starts, dtype=np.int64)
        for i in np.flatnonzero(new_lengths > self._max_length):
            own = ids[lengths[:i].sum() :][: lengths[i]]
            out[starts[i] : ends[i]] = -1
            out[starts[i] :][: len(own)] = own
            new_lengths[i] = len(own)
        offsets = np.concatenate(([0], np.cumsum(new_lengths)))
        return Sentences(out[out >= 0].astype(np.int32), offsets)

    def _set_characters(self, pieces: list[str], ids: dict[str, int]) -> None:
        """The characters of each piece, as ids, one piece after the other."""
        characters = [
            [ids[c] for c in piece] if piece in ids and all(c in ids for c in piece) else [i]
            for i, piece in enumerate(pieces)
        ]
        self._character_count = np.array([len(c) for c in characters], np.int64)
        self._character_at = np.cumsum(self._character_count) - self._character_count
        self._characters = np.array([c for some in characters for c in some], np.int64)
        # Words are segmented by themselves if no piece reaches over a space.
        self._space = ids.get(_SPACE, -1)
        if any(_SPACE in piece[1:] for piece in ids):
            self._space = -1

    def _merge(
        self, characters: np.ndarray, keys: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> np.ndarray:
        """The pieces, int64 [characters]: each where its first character is, -1 elsewhere."""
        n = len(characters)
        base = np.repeat(starts, ends - starts)
        space = (characters == self._space) | (characters == EOS) | (np.arange(n) == base)
        # The symbols still at work, in order: id, first character, end, word, and of the symbol
        # with its right neighbour what a merge gives and how early it comes (_NONE: never).
        symbol, word = characters.copy(), np.cumsum(space)
        at, end = np.arange(n), np.arange(1, n + 1)
        merged, order = np.full(n, -1, np.int64), np.full(n, _NONE)
        out = np.full(n, -1, np.int64)
        look = np.arange(n)
        while len(symbol):
            look = look[look + 1 < len(symbol)]
            look = look[word[look] == word[look + 1]]
            found = np.searchsorted(self._pairs, symbol[look] * self._size + symbol[look + 1])
            hit = self._pairs[found] == symbol[look] * self._size + symbol[look + 1]
            look, found = look[hit], found[hit]
            places = np.stack((at[look], at[look + 1], end[look + 1])) - base[at[look]]
            allowed = self._allowed(keys[at[look]], places)
            look, found = look[allowed], found[allowed]
            merged[look] = self._merged[found]
            order[look] = self._rank[merged[look]] * n + at[look]  # equal ranks: the left one

            first = np.flatnonzero(np.diff(word, prepend=-1))
            sizes = np.diff(first, append=len(word))
            best = np.repeat(np.minimum.reduceat(order, first), sizes)
            done = best == _NONE
            out[at[done]] = symbol[done]
            here = np.flatnonzero((order == best) & ~done)
            symbol[here], end[here] = merged[here], end[here + 1]
            order[here] = _NONE
            order[here[here > 0] - 1] = _NONE
            keep = ~done
            keep[here + 1] = False
            here = (np.cumsum(keep) - 1)[here]
            symbol, at, end, word, merged, order = (
                state[keep] for state in (symbol, at, end, word, merged, order)
            )
            look = np.concatenate((here, here[here > 0] - 1))
        return out

    def _allowed(self, keys: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Which merges are not refused: bool [merges].

        Args:
            keys: uint64 [merges], of their sentences.
            places: int64 [3, merges], where the left and the right piece begin, and where that
                ends, in characters of the sentence.
        """
        strides = places.astype(np.uint64) * _STRIDES[:, None]
        return mixed(keys ^ strides[0] ^ strides[1] ^ strides[2]) >= self._refused_below


def _ranges(first: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """first[0], first[0] + 1, ... (sizes[0] of them), first[1], ...: int64."""
    return np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
