"""Text to ids with all cores: sentences in the order of the text, in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import compress
from typing import Any, NamedTuple

import numpy as np

from hvd_nmt.common.progress import progress
from hvd_nmt.config import UNK
from hvd_nmt.data import corpus
from hvd_nmt.data.parallel_corpus import SentencesWriter
from hvd_nmt.data.text import Block, pair_blocks
from hvd_nmt.preparation import subwords, workers
from hvd_nmt.preparation.cleaning import EMPTY
from hvd_nmt.preparation.copies import Copier, Copying, Ids, flat
from hvd_nmt.preparation.parts import PartState, Paths
from hvd_nmt.preparation.quality import Quality

TOO_LONG = "too long"


class LengthLimit(NamedTuple):
    """The longest sentence that is kept, and what becomes of a longer one."""

    tokens: int
    """tokens of a sentence, eos counted"""
    skip: bool
    """leave out a pair with a longer side; otherwise that side is cut"""


Models = tuple[bytes, bytes]
"""vocabularies of source and target, serialised SentencePiece models; equal where it is joint"""


class EncodedBlock(NamedTuple):
    """What has become of some pairs. Pairs of values are (source, target)."""

    kept: tuple[Ids, Ids]
    """the pairs that are kept, cut to the greatest length"""
    pairs: int
    """pairs that came in"""
    removed: Counter[str]
    """pairs that are left out, by rule"""
    truncated: int
    """pairs with a side that was cut"""
    kept_text_bytes: tuple[int, int]
    """text of the pairs that are kept, one byte per line end"""
    stays: np.ndarray
    """bool [pairs], which of those that came in are kept"""
    quality: Quality
    copies: tuple[Ids, Ids] | None = None
    """of the pairs that are kept, those of a pair one after the other; None: there are none"""


def encode(
    part: PartState, models: Models, limit: LengthLimit, stems: Paths,
    quality: Quality | None = None, *, copying: Copying | None = None,
    block_pairs: int = 20_000,
) -> None:  # fmt: skip
    """Encodes a part into `<stem>.ids.npy` and `<stem>.offsets.npy` for both sides.

    Args:
        part: its counts are completed.
        quality: of training; counts its pairs, before the long ones are cut or left out. Without it
            all pairs stay.
        block_pairs: pairs that a worker takes at once.
    """
    copying = copying if copying and copying.is_on else None
    settings = models, limit, quality is not None, copying
    blocks = pair_blocks(*part.text, block_pairs)
    encoded = workers.in_order(_encode, blocks, _load_with_copier, settings)
    source, target = (subwords.load(model).get_piece_size() for model in models)
    write_ids(part, encoded, stems, (source, target), quality, copying is not None)


def kept(text: Paths, chosen: np.ndarray, models: Models, limit: LengthLimit) -> np.ndarray:
    """Which of the `chosen` pairs of clean training text `encode` would keep; both bool [pairs]."""

    def jobs() -> Iterator[tuple[Block, np.ndarray]]:
        for block in pair_blocks(*text):
            yield block, chosen[block.first - 1 :][: block.pairs]

    found = []
    with progress(len(chosen), "pairs", "choosing pairs for the vocabulary") as bar:
        for some in workers.in_order(_is_kept, jobs(), _load, (models, limit)):
            found.append(some)
            bar.update(len(some))
    return np.concatenate(found)


def write_ids(
    part: PartState, blocks: Iterable[EncodedBlock], stems: Paths, pieces: tuple[int, int],
    quality: Quality | None, copies: bool = False,
) -> None:  # fmt: skip
    """Writes encoded pairs and counts them anew in `part`.

    Args:
        blocks: in the order of the text.
        pieces: of the vocabularies of source and target, which decide the type of the ids.
        quality: counts the pairs too, if it is given.
    """
    total, sizes = part.pairs or None, [*map(subwords.rounded_up, pieces)]
    part.pairs, part.kept_text_bytes = 0, [0, 0]
    done, ends = 0, np.cumsum(part.by_corpus)
    by_corpus = np.zeros(len(ends), np.int64)
    with (
        SentencesWriter(stems[0], sizes[0]) as source_writer,
        SentencesWriter(stems[1], sizes[1]) as target_writer,
        ExitStack() as stack,
        progress(total, "pairs", f"encoding {stems[0].name}") as bar,
    ):
        copy_writers = [
            stack.enter_context(SentencesWriter(corpus.copies_stem(stem), size))
            for stem, size in zip(stems, sizes, strict=True)
            if copies
        ]
        for block in blocks:
            for writer, sentences in zip(copy_writers, block.copies or (), strict=True):
                writer.append(*sentences)
            source_writer.append(*block.kept[0])
            target_writer.append(*block.kept[1])
            part.pairs += block.pairs - block.removed.total()
            if part.by_corpus:
                corpora = np.searchsorted(ends, done + np.flatnonzero(block.stays), side="right")
                by_corpus += np.bincount(corpora, minlength=len(ends))
                done += block.pairs
            part.truncated += block.truncated
            part.removed.update(block.removed)
            for side in (0, 1):
                part.kept_text_bytes[side] += block.kept_text_bytes[side]
            if quality is not None:
                quality.merge(block.quality)
            bar.update(block.pairs)
    part.tokens = [source_writer.tokens, target_writer.tokens]
    part.by_corpus = by_corpus.tolist()


def encoded_block(
    lines: Sequence[list[bytes]], ids: tuple[Ids, Ids], removed: Mapping[str, np.ndarray],
    max_length: int, quality: Quality,
) -> EncodedBlock:  # fmt: skip
    """Leaves some encoded pairs out, and cuts what is too long of the others.

    Args:
        lines: source and target text, without line ends.
        removed: bool [pairs] for each rule, the pairs that it leaves out; none by two rules.
        max_length: longest sentence, tokens with eos.
    """
    kept = ~np.logical_or.reduce([*removed.values(), np.zeros(len(lines[0]), bool)])
    counts = {rule: int(pairs.sum()) for rule, pairs in removed.items() if pairs.any()}
    source, target = ids
    if counts:
        source, target = ((of[np.repeat(kept, lengths)], lengths[kept]) for of, lengths in ids)
    n_bytes = (np.array([len(line) + 1 for line in side], np.int64) for side in lines)
    source_bytes, target_bytes = (int(sizes[kept].sum()) for sizes in n_bytes)
    return EncodedBlock(
        kept=(_cut(*source, max_length), _cut(*target, max_length)),
        pairs=len(kept),
        removed=Counter(counts),
        truncated=int((np.maximum(source[1], target[1]) > max_length).sum()),
        kept_text_bytes=(source_bytes, target_bytes),
        stays=kept,
        quality=quality,
    )


def _load(settings: tuple[Models, *tuple[Any, ...]]) -> tuple[Any, ...]:
    loaded = {model: subwords.load(model) for model in settings[0]}  # once where it is joint
    return [loaded[model] for model in settings[0]], *settings[1:]


def _load_with_copier(settings: tuple[Models, *tuple[Any, ...]]) -> tuple[Any, ...]:
    models, *rest, copying = _load(settings)
    return models, *rest, copying and Copier(models, copying)


def _encode(state: tuple[Any, ...], block: Block) -> EncodedBlock:
    """What a worker does with a block of clean text."""
    models, limit, is_train, copier = state
    lines = [side.removesuffix(b"\n").split(b"\n") for side in (block.source, block.target)]
    source, target = _encoded(models, lines)
    removed, quality = {}, Quality(limit.tokens)
    if is_train:
        lengths = source[1], target[1]  # by which a side is cut
        if limit.skip:
            lengths = _measured(models, lines, (source, target))
        removed = left_out(*lengths, limit)
        quality.add(*lengths)
    encoded = encoded_block(lines, (source, target), removed, limit.tokens, quality)
    if copier is None:
        return encoded
    decoded = [[line.decode() for line in side] for side in lines]
    pairs = list(compress(zip(*decoded, strict=True), encoded.stays))
    numbers = (np.flatnonzero(encoded.stays) + block.first).tolist()
    copies = copier.copies(pairs, numbers, encoded.kept, limit.tokens)
    return encoded._replace(copies=copies)


def _is_kept(state: tuple[Any, ...], job: tuple[Block, np.ndarray]) -> np.ndarray:
    """What a worker does with a block of clean text and the choice of its pairs."""
    (models, limit), (block, chosen) = state, job
    sides = (side.removesuffix(b"\n").split(b"\n") for side in (block.source, block.target))
    lines = [list(compress(side, chosen)) for side in sides]
    removed = left_out(*_measured(models, lines, _encoded(models, lines)), limit)
    kept = chosen.copy()
    kept[chosen] = ~np.logical_or.reduce([*removed.values()])
    return kept


def _encoded(models: Sequence[Any], lines: Sequence[list[bytes]]) -> tuple[Ids, Ids]:
    source, target = (
        flat(subwords.encode_lines(model, side, 1))
        for model, side in zip(models, lines, strict=True)
    )
    return source, target


def _measured(
    models: Iterable[Any], lines: Iterable[list[bytes]], ids: Iterable[Ids]
) -> tuple[np.ndarray, np.ndarray]:
    """The lengths of both sides, tokens; of unknown characters each counts.

    A run of them is one unk: a line of noise must not become a training pair.
    """
    found = []
    for model, side, (all_ids, lengths) in zip(models, lines, ids, strict=True):
        measured = lengths.copy()
        places = np.flatnonzero(all_ids == UNK)
        for index in np.unique(np.searchsorted(np.cumsum(lengths), places, side="right")):
            pieces = model.encode(side[index].decode(), out_type=str)
            unknown = (piece for piece in pieces if model.piece_to_id(piece) == UNK)
            measured[index] += sum(len(piece) - 1 for piece in unknown)
        found.append(measured)
    return found[0], found[1]


def left_out(
    source_lengths: np.ndarray, target_lengths: np.ndarray, limit: LengthLimit
) -> dict[str, np.ndarray]:
    """The training pairs that their lengths leave out: bool [pairs] for each rule.

    Lengths are int [pairs], eos counted; 1: nothing is left of a side, as of U+200B alone.
    """
    empty = np.minimum(source_lengths, target_lengths) == 1
    too_long = np.maximum(source_lengths, target_lengths) > limit.tokens
    return {EMPTY: empty, TOO_LONG: too_long & ~empty & limit.skip}


def _cut(ids: np.ndarray, lengths: np.ndarray, max_length: int) -> Ids:
    """Cuts long sentences to max_length - 1 tokens and eos."""
    if not (lengths > max_length).any():
        return ids, lengths
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(ids))  # tokens from here, eos 1
    place = np.repeat(lengths, lengths) - left
    return ids[(place < max_length - 1) | (left == 1)], np.minimum(lengths, max_length)
