"""Text to ids with all cores: sentences in the order of the text, in bounded memory."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import compress
from typing import NamedTuple

import numpy as np
from sentencepiece import SentencePieceProcessor

from hvd_nmt.common.progress import progress
from hvd_nmt.config import UNK
from hvd_nmt.data import corpus
from hvd_nmt.data.text import LineBlock, pair_blocks
from hvd_nmt.preparation import subwords, workers
from hvd_nmt.preparation.cleaning import EMPTY
from hvd_nmt.preparation.copies import Copier, Copying, Ids, flat
from hvd_nmt.preparation.corpus_files import Paths
from hvd_nmt.preparation.parts import PartState

TOO_LONG = "too long"

Models = tuple[SentencePieceProcessor, SentencePieceProcessor]
"""vocabularies of source and target; the same where it is joint"""


class LengthLimit(NamedTuple):
    """The longest sentence that is kept, and what becomes of a longer one."""

    tokens: int
    """tokens of a sentence, eos counted"""
    skip: bool
    """whether a pair with a longer side is removed; otherwise that side is cut"""


class EncodedBlock(NamedTuple):
    """What has become of some pairs."""

    kept: np.ndarray
    """bool [pairs], which of those that came in are kept"""
    lengths: np.ndarray
    """int [2, pairs], tokens of all sources and targets by which that was decided"""
    n_bytes: tuple[int, int]
    """source and target text of the pairs that are kept, one byte per line end"""
    ids: tuple[Ids, ...]
    """source and target of the pairs that are kept, cut to the greatest length; then their copies,
    if there are any, those of a pair one after the other"""


def encode_part(
    part: PartState, models: Models, limit: LengthLimit, stems: Paths, *, is_train: bool,
    copying: Copying | None = None, languages: Sequence[tuple[str, str]] = (("", ""),),
) -> np.ndarray:  # fmt: skip
    """Encodes a part into `<stem>.ids.npy` and `<stem>.offsets.npy` for both sides.

    Args:
        part: its counts are completed.
        is_train: pairs may be removed; of other parts all stay.
        copying: how copies of the pairs differ, which are written too.
        languages: of source and target, by number of the corpus.

    Returns:
        int [2, pairs], tokens of all sources and targets before they are cut or removed.
    """
    copier = None
    if copying and copying.is_on:
        copier = Copier(models, copying, languages, part.kept["corpus"])
    work = partial(_encode_block, models, limit, is_train, copier)
    blocks: list[EncodedBlock] = []
    n_bytes, tokens = np.zeros([2, 2], np.int64)
    outputs = [*stems, *(map(corpus.copies_stem, stems) if copier else ())]
    sizes = [subwords.rounded_up(model.get_piece_size()) for model in models]
    with ExitStack() as stack:
        appends = [
            stack.enter_context(corpus.writing(stem, sizes[number % 2]))
            for number, stem in enumerate(outputs)
        ]
        bar = stack.enter_context(progress(part.pairs, "pairs", f"encoding {stems[0].name}"))
        for block in workers.in_order(work, pair_blocks(*part.text)):
            for append, sentences in zip(appends, block.ids, strict=True):
                append(*sentences)
            n_bytes += block.n_bytes
            tokens += [len(ids) for ids, _ in block.ids[:2]]
            blocks.append(block._replace(ids=()))
            bar.update(len(block.kept))
    lengths = np.concatenate([block.lengths for block in blocks], axis=1)
    kept = np.concatenate([block.kept for block in blocks])
    if is_train:
        part.removed.update(part.going(removed_by_length(lengths, limit)))
    part.kept = part.kept[kept]
    part.truncated = int((lengths.max(axis=0)[kept] > limit.tokens).sum())
    part.kept_text_bytes = n_bytes.tolist()
    part.tokens = tokens.tolist()
    return lengths


def removed_by_length(lengths: np.ndarray, limit: LengthLimit) -> np.ndarray:
    """The rules by which lengths remove training pairs: object [pairs], names, "" if one stays.

    `lengths` are int [2, pairs], eos counted; 1: nothing is left of a side, as of U+200B alone.
    """
    rules = np.full(lengths.shape[1], "", object)
    if limit.skip:
        rules[lengths.max(axis=0) > limit.tokens] = TOO_LONG
    rules[lengths.min(axis=0) == 1] = EMPTY
    return rules


def _encode_block(
    models: Models, limit: LengthLimit, is_train: bool, copier: Copier | None, block: LineBlock
) -> EncodedBlock:
    lines = block.lines
    ids, lengths = _encoded(models, lines, measured=is_train and limit.skip)
    kept = removed_by_length(lengths, limit) == "" if is_train else np.ones(block.pairs, bool)
    if not kept.all():
        ids = [(tokens[np.repeat(kept, sizes)], sizes[kept]) for tokens, sizes in ids]
        lines = list(compress(lines[0], kept)), list(compress(lines[1], kept))
    ids = [_cut(*side, limit.tokens) for side in ids]
    if copier is not None:
        pairs = [(source.decode(), target.decode()) for source, target in zip(*lines, strict=True)]
        numbers = (np.flatnonzero(kept) + block.first).tolist()
        ids += copier.copies(pairs, numbers, (ids[0], ids[1]), limit.tokens)
    n_bytes = [sum(map(len, side)) + len(side) for side in lines]
    return EncodedBlock(kept, lengths, (n_bytes[0], n_bytes[1]), tuple(ids))


def _encoded(
    models: Models, lines: Sequence[list[bytes]], measured: bool
) -> tuple[list[Ids], np.ndarray]:
    """The ids of source and target lines, and int [2, pairs], tokens.

    Measured, each character of a run that is one unk counts: a line of noise is no training pair.
    """
    ids = [flat(subwords.encode_lines(*side)) for side in zip(models, lines, strict=True)]
    counts = np.stack([lengths for _, lengths in ids])
    for side, (model, (all_ids, lengths)) in enumerate(zip(models, ids, strict=True)):
        places = np.flatnonzero(all_ids == UNK) if measured else ()
        for index in np.unique(np.searchsorted(np.cumsum(lengths), places, side="right")):
            pieces = model.encode(lines[side][index].decode(), out_type=str)
            unknown = (piece for piece in pieces if model.piece_to_id(piece) == UNK)
            counts[side, index] += sum(len(piece) - 1 for piece in unknown)
    return ids, counts


def _cut(ids: np.ndarray, lengths: np.ndarray, max_length: int) -> Ids:
    """Cuts long sentences to max_length - 1 tokens and eos."""
    if not (lengths > max_length).any():
        return ids, lengths
    left = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(ids))  # tokens from here, eos 1
    place = np.repeat(lengths, lengths) - left
    return ids[(place < max_length - 1) | (left == 1)], np.minimum(lengths, max_length)
