"""Training sentences that are not the same each time: BPE-dropout and noise.

BPE-dropout is another segmentation of each sentence. Source: Provilkov et al. 2020, "BPE-Dropout:
Simple and Effective Subword Regularization". As in SentencePiece, every possible merge of two
neighbours is refused with one probability, once and for all, and the best of the others is done
first. Noise changes characters, see `hvd_nmt.data.noise`; what it changes is then segmented anew.

Both are a pure function of (seed, epoch, index of the sentence), BPE-dropout also of the side:
chance is a hash of these and of where in the sentence something happens. It sees neither ranks nor
batches, so a resumed run, on any number of ranks, sees the same ids.

It needs no text: the pieces of a sentence, one after the other, are its normalised characters.
TensorFlow and SentencePiece have crashed in one process, so merging is our own, in
`hvd_nmt.data.byte_pair_merges`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, final

import numpy as np

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.threads import in_threads
from hvd_nmt.config import UNK, DataConfig
from hvd_nmt.config.noise_rates import NoiseConfig
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.batch_plan import Lengths
from hvd_nmt.data.corpus import DataDirectory, ParallelCorpus, Sentences
from hvd_nmt.data.mixing import mixed
from hvd_nmt.data.sentencepiece_model import SPACE

_SPECIAL = UNK + 1
_AT_ONCE = 2_000
"""sentences that a thread segments at once for a plan, so that this needs little memory"""
_MOST_THREADS = 4


@final
class Augmentation:
    """Changes sentences and segments them anew.

    Args:
        pieces: (piece, score) in the order of the ids, as in `spm.vocab`.
        share: probability that a merge is refused, in [0, 1); 0 gives SentencePiece's own ids.
        seed: 0 to 2^64 - 1.
        max_length: a pair of which a side would get more tokens, eos counted, keeps its own ids.
        never_merged: ids of pieces that are no sum of others, by name: user-defined, and bytes.
        source: for the source sides of pairs, where they have a vocabulary of their own.
        noise: what happens to the characters before.
        copies: emoji and addresses that noise may add: what the vocabularies of both sides can
            write.
    """

    def __init__(
        self,
        pieces: list[tuple[str, float]],
        share: float,
        seed: int,
        max_length: int,
        never_merged: Mapping[str, int] = MappingProxyType({}),
        *,
        source: Augmentation | None = None,
        noise: NoiseConfig | None = None,
        copies: Sequence[str] = (),
    ) -> None:
        from hvd_nmt.data import byte_pair_merges  # Numba, which other commands do not wait for

        self._refused_below = np.uint64(int(share * 2.0**64))
        self._seed, self._max_length = seed, max_length
        self._source = source or self
        ids = {
            piece: i
            for i, (piece, _) in enumerate(pieces)
            if i >= _SPECIAL and piece not in never_merged
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
        self._noise = None
        if noise is not None and noise.is_on:
            from hvd_nmt.data.noise import Noise

            names = [piece for piece, _ in pieces]
            self._noise = Noise(noise, names, {**ids, **never_merged}, copies)
        # Compiled now, so that the first step does not wait for it.
        nothing = np.zeros(0, np.int64)
        self._augmented(Sentences(nothing, np.zeros(1, np.int64)), nothing, 0, 0)

    @classmethod
    def of(cls, data: DataDirectory, config: DataConfig, seed: int) -> Augmentation | None:
        """For the training part of prepared data; None if all stays as it is.

        Args:
            data: prepared data.
            config: says how much of what happens.
            seed: 0 to 2^64 - 1.

        Raises:
            DataError: the vocabulary cannot be read, or is not one of byte-pair encoding.
        """
        if not config.augments:
            return None
        paths = dict.fromkeys((data.source_spm_path, data.spm_path))
        try:
            models = [path.read_bytes() for path in paths]
        except OSError as error:
            raise DataError(f"{error.filename} cannot be read: {error.strerror}.") from None
        return cls.of_models(models, config, seed, data.manifest.max_length)

    @classmethod
    def of_models(
        cls, models: Sequence[bytes], config: DataConfig, seed: int, max_length: int
    ) -> Augmentation:
        """For sentences of some vocabularies.

        Args:
            models: serialised SentencePiece models: a joint one, or those of source and target.
            config: says how much of what happens.
            seed: 0 to 2^64 - 1.
            max_length: as of the class.

        Raises:
            DataError: as `of`.
        """
        read = [_read(model) for model in models]
        copies = _copies(read) if config.noise.is_on else []
        source = None
        for pieces, never_merged in read:
            source = cls(pieces, config.bpe_dropout, seed, max_length, never_merged,
                         source=source, noise=config.noise, copies=copies)  # fmt: skip
        assert source is not None
        return source

    def lengths_of(self, corpus: ParallelCorpus, ranks: int = 1) -> Lengths:
        """What a plan of these pairs has to know: `lengths`.

        Args:
            corpus: all pairs.
            ranks: that share the processor of this host.
        """
        threads = max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)) // ranks))
        return functools.partial(self.lengths, corpus, threads=threads)

    def lengths(
        self, corpus: ParallelCorpus, indices: np.ndarray, epoch: np.ndarray | int, *,
        threads: int = 1,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """How long some pairs are in an epoch, tokens of sources and targets, int32.

        So pairs that are equally long there meet in a step. It is as much work as making the
        batches of all ranks.

        Args:
            corpus: all pairs.
            indices: int64, of the pairs that are asked for.
            epoch: from 0, one for all or one for each.
            threads: that do it.
        """
        epochs = np.broadcast_to(epoch, indices.shape)
        lengths_2xN = np.empty((2, len(indices)), np.int32)

        def measure(first: int) -> None:
            some = slice(first, first + _AT_ONCE)
            pairs = self.pairs(corpus, indices[some], epochs[some])
            lengths_2xN[:, some] = pairs.source.lengths, pairs.target.lengths

        in_threads(measure, range(0, len(indices), _AT_ONCE), threads)
        return lengths_2xN[0], lengths_2xN[1]

    def pairs(
        self, corpus: ParallelCorpus, indices: np.ndarray, epoch: np.ndarray | int
    ) -> ParallelCorpus:
        """Some pairs, in the order of their indices, as they are in an epoch.

        Args:
            corpus: all pairs, with SentencePiece's own ids.
            indices: int64, of the pairs that are wanted.
            epoch: from 0, one for all or one for each.
        """
        source = self._source._augmented(corpus.source, indices, epoch, 0)
        target = self._augmented(corpus.target, indices, epoch, 1)
        too_long = np.maximum(source.lengths, target.lengths) > self._max_length
        return ParallelCorpus(source.sentences(too_long), target.sentences(too_long))

    def sentences(
        self, sentences: Sentences, indices: np.ndarray, epoch: np.ndarray | int, side: int
    ) -> Sentences:
        """Some sentences of one side, in the order of their indices, as they are in an epoch.

        Args:
            sentences: one side of the corpus, with SentencePiece's own ids.
            indices: int64, of the sentences that are wanted.
            epoch: from 0, one for all or one for each.
            side: 0 source, 1 target.
        """
        found = self._augmented(sentences, indices, epoch, side)
        return found.sentences(found.lengths > self._max_length)

    def _augmented(
        self, sentences: Sentences, indices: np.ndarray, epoch: np.ndarray | int, side: int
    ) -> _Augmented:
        """What `sentences` gives, before what is too long stays as it was."""
        lengths = sentences.lengths[indices].astype(np.int64)
        ids = sentences.ids[_ranges(sentences.offsets[indices], lengths)].astype(np.int64)
        counts = self._character_count[ids]
        characters = self._characters[_ranges(self._character_at[ids], counts)]
        ends = np.cumsum(counts)[np.cumsum(lengths) - 1]
        changed = np.ones(len(indices), bool)
        if self._noise is not None:
            keys = _keys(self._seed, epoch, indices)
            characters, ends, changed = self._noise(characters, ends, keys, side)
            if self._refused_below:
                changed[:] = True
        keys = _keys(self._seed, epoch, side, indices)
        if not changed.all():
            sizes = np.diff(ends, prepend=0)
            characters = characters[np.repeat(changed, sizes)]
            ends, keys = np.cumsum(sizes[changed]), keys[changed]
        found, found_lengths = self._segment(
            characters, ends, keys, self._space, self._merges, self._refused_below
        )
        return _Augmented(ids, lengths, changed, found, found_lengths)

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


class _Augmented(NamedTuple):
    """Some sentences, and what has become of those that were changed."""

    own: np.ndarray
    """int64, their own ids, one sentence after the other"""
    own_lengths: np.ndarray
    changed: np.ndarray
    """bool, which sentences"""
    found: np.ndarray
    """int32, ids of the changed sentences, one after the other"""
    found_lengths: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """int64, tokens of each sentence as it would be."""
        lengths = self.own_lengths.copy()
        lengths[self.changed] = self.found_lengths
        return lengths

    def sentences(self, stay: np.ndarray) -> Sentences:
        """All of them; those that stay, bool, as they were."""
        lengths = np.where(stay, self.own_lengths, self.lengths)
        is_own = stay | ~self.changed
        own = np.repeat(is_own, lengths)
        ids = np.empty(len(own), np.int32)
        ids[own] = self.own[np.repeat(is_own, self.own_lengths)]
        ids[~own] = self.found[np.repeat(~stay[self.changed], self.found_lengths)]
        return Sentences(ids, np.concatenate(([0], np.cumsum(lengths))))


def _keys(*parts: Any) -> np.ndarray:
    """The chance of each sentence, uint64, made of numbers and of arrays with one for each."""
    keys = np.zeros(1, np.uint64)
    for part in parts:
        keys = mixed(keys ^ np.asarray(part, np.uint64))
    return keys


def _read(model: bytes) -> tuple[list[tuple[str, float]], dict[str, int]]:
    """The pieces of a vocabulary with their scores by id, and the ids of those never merged."""
    try:
        pieces = [(piece.piece, piece.score) for piece in sentencepiece_model.parsed(model).pieces]
    except ValueError as error:
        raise DataError(f"The vocabulary cannot be read: {error}.") from None
    # Merges have ranks; pieces of a unigram model have log-probabilities.
    if not all(score.is_integer() for _, score in pieces):
        raise DataError(
            "The vocabulary is not of byte-pair encoding, so there are no merges to do anew: leave "
            "BPE-dropout and noise out."
        )
    return pieces, sentencepiece_model.never_merged(model)


def _copies(read: Sequence[tuple[list[tuple[str, float]], dict[str, int]]]) -> list[str]:
    """What all of some vocabularies can write of the emoji and addresses that noise adds."""
    from hvd_nmt.data import noise

    known = []
    for pieces, _ in read:
        ids = {piece: i for i, (piece, _) in enumerate(pieces) if i >= _SPECIAL}
        known.append(noise.spelled_copies(ids))
    return [text for text in known[0] if all(text in others for others in known)]


def _ranges(first: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """first[0], first[0] + 1, ... (sizes[0] of them), first[1], ...: int64."""
    return np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())
