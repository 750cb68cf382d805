"""Text to ids with all cores: sentences in the order of the text, in bounded memory."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from hvd_nmt.common.progress import progress
from hvd_nmt.data.corpus import SentencesWriter
from hvd_nmt.data.text import Block, pair_blocks
from hvd_nmt.preparation import subwords, workers
from hvd_nmt.preparation.parts import PartState, Paths
from hvd_nmt.preparation.quality import Quality

TOO_LONG = "too long"

# SentencePiece's longest piece. A line of more characters than max_length such pieces is too long
# even if it has few pieces: a megabyte of unknown characters is encoded as one unk.
_PIECE_CHARACTERS = 16


class LengthLimit(NamedTuple):
    """The longest sentence that is kept, and what becomes of a longer one."""

    tokens: int
    """of a sentence, eos counted"""
    skip: bool
    """leave out a pair with a longer side; otherwise that side is cut"""


def encode(
    part: PartState, model: bytes, limit: LengthLimit, stems: Paths,
    quality: Quality | None = None, block_pairs: int = 20_000,
) -> None:  # fmt: skip
    """Encodes a part into `<stem>.ids.npy` and `<stem>.offsets.npy` for both sides.

    Args:
        part: its counts are completed.
        model: the joint vocabulary, a serialised SentencePiece model.
        limit: longest sentence to write.
        stems: paths without the ending.
        quality: counts the pairs too, before the long ones are cut or left out.
        block_pairs: pairs that a worker takes at once.
    """
    vocabulary_size = subwords.rounded_up(subwords.load(model).get_piece_size())
    settings = model, limit, quality is not None
    pairs = part.pairs
    part.pairs, part.kept_text_bytes = 0, [0, 0]
    with (
        SentencesWriter(stems[0], vocabulary_size) as source_writer,
        SentencesWriter(stems[1], vocabulary_size) as target_writer,
        progress(pairs, "pairs", f"encoding {stems[0].name}") as bar,
    ):
        blocks = pair_blocks(*part.text, block_pairs)
        for block in workers.in_order(_encode, blocks, _load, settings):
            source_writer.append(*block.source)
            target_writer.append(*block.target)
            part.pairs += len(block.source[1])
            part.truncated += block.truncated
            if block.too_long:
                part.removed[TOO_LONG] += block.too_long
            for side in (0, 1):
                part.kept_text_bytes[side] += block.kept_text_bytes[side]
            if quality is not None and block.quality is not None:
                quality.merge(block.quality)
            bar.update(block.pairs)
    part.tokens = [source_writer.tokens, target_writer.tokens]


class Selection(NamedTuple):
    """What becomes of some encoded pairs."""

    source: tuple[np.ndarray, np.ndarray]
    """ids [tokens] and lengths [sentences] of what is kept"""
    target: tuple[np.ndarray, np.ndarray]
    kept: np.ndarray
    """bool [pairs]"""
    truncated: int
    """pairs with a side that was cut"""


def select(
    source: tuple[np.ndarray, np.ndarray], target: tuple[np.ndarray, np.ndarray],
    left_out: np.ndarray, max_length: int,
) -> Selection:  # fmt: skip
    """Leaves some pairs out, and cuts what is too long of the others.

    Args:
        source: ids [tokens], each sentence ending with eos, and lengths [pairs].
        target: the same of the other side.
        left_out: bool [pairs].
        max_length: longest sentence, tokens with eos.
    """
    if left_out.any():
        source, target = _chosen(*source, ~left_out), _chosen(*target, ~left_out)
    truncated = int((np.maximum(source[1], target[1]) > max_length).sum())
    return Selection(_cut(*source, max_length), _cut(*target, max_length), ~left_out, truncated)


class _Encoded(NamedTuple):
    source: tuple[np.ndarray, np.ndarray]
    target: tuple[np.ndarray, np.ndarray]
    pairs: int
    too_long: int
    truncated: int
    kept_text_bytes: tuple[int, int]
    quality: Quality | None


def _load(settings: tuple[bytes, LengthLimit, bool]) -> tuple[Any, ...]:
    return subwords.load(settings[0]), *settings[1:]


def _encode(state: tuple[Any, ...], block: Block) -> _Encoded:
    """What a worker does with a block of clean text."""
    model, limit, want_quality = state
    lines = [side.removesuffix(b"\n").split(b"\n") for side in (block.source, block.target)]
    source, target = (_flat(subwords.encode_lines(model, side, 1)) for side in lines)
    left_out = np.zeros(block.pairs, bool)
    if limit.skip:
        most = _PIECE_CHARACTERS * limit.tokens
        pairs = zip(lines[0], lines[1], strict=True)
        left_out = np.array([_over(*pair, most_characters=most) for pair in pairs])
        left_out |= np.maximum(source[1], target[1]) > limit.tokens
    quality = None
    if want_quality:
        quality = Quality(limit.tokens)
        decoded = [[line.decode() for line in side] for side in lines]
        quality.add(list(zip(*decoded, strict=True)), source[1], target[1])
    selected = select(source, target, left_out, limit.tokens)
    n_bytes = (np.fromiter(map(len, side), np.int64, block.pairs) + 1 for side in lines)
    source_bytes, target_bytes = (int(sizes[selected.kept].sum()) for sizes in n_bytes)
    return _Encoded(
        selected.source, selected.target, block.pairs, int((~selected.kept).sum()),
        selected.truncated, (source_bytes, target_bytes), quality,
    )  # fmt: skip


def _over(source: bytes, target: bytes, most_characters: int) -> bool:
    """Whether a side has more characters than that."""
    # UTF-8 has at least one byte for a character, so nearly all lines need no decoding.
    return any(
        len(side) > most_characters and len(side.decode()) > most_characters
        for side in (source, target)
    )


def _flat(sentences: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    return np.fromiter(chain.from_iterable(sentences), np.int32, int(lengths.sum())), lengths


def _chosen(
    ids: np.ndarray, lengths: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    return ids[np.repeat(kept, lengths)], lengths[kept]


def _cut(ids: np.ndarray, lengths: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts long sentences to max_length - 1 tokens and eos."""
    if not (lengths > max_length).any():
        return ids, lengths
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(ids))  # tokens from here, eos 1
    place = np.repeat(lengths, lengths) - left
    return ids[(place < max_length - 1) | (left == 1)], np.minimum(lengths, max_length)
