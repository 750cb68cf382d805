"""Lines longer than the model reads: split into parts and joined again.

Everything here works on token ids, so that it does not depend on what computes. An end of a
sentence is a piece that closes with ".", "!", "?" or their like, before a piece that begins a word.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hvd_nmt.config import EOS
from hvd_nmt.model.tokenizer import Tokenizer
from hvd_nmt.model.translator import Translation

WORD_START = "\u2581"
"""with this mark SentencePiece begins a piece that follows a space"""
SENTENCE_ENDS = tuple(".!?…。！？؟।")
# SentencePiece needs time quadratic in a run of unknown characters: 0.2 s for 100,000 of them, 70 s
# for a million, and milliseconds for this many.
SLICE_CHARACTERS = 1 << 12


class Boundaries(NamedTuple):
    """What is known of each piece of a vocabulary; bool, indexed by id."""

    starts_word: np.ndarray
    ends_sentence: np.ndarray


def boundaries(pieces: Sequence[str]) -> Boundaries:
    """Where a line may be split, for the pieces of a vocabulary by id."""
    starts = np.array([piece.startswith(WORD_START) for piece in pieces])
    ends = np.array([piece.endswith(SENTENCE_ENDS) for piece in pieces])
    return Boundaries(starts, ends)


def encoded(lines: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """The ids of each line, int32, ending with eos, in a time that grows as the lines do."""
    slices = [_slices(line) for line in lines]
    ids = iter(tokenizer.encode([text for line in slices for text in line]))
    whole = []
    for *others, _ in slices:  # only the last slice of a line keeps its eos
        begun = [next(ids)[:-1] for _ in others]
        whole.append(np.concatenate([*begun, next(ids)]))
    return whole


def parts(ids: np.ndarray, limit: int, known: Boundaries) -> list[np.ndarray]:
    """A line's ids, with eos, in one or more parts of at most `limit` tokens, each with eos."""
    limit = max(limit, 2)  # a part must take a token from the line
    if len(ids) <= limit:
        return [ids]
    rest, found = ids[:-1], []
    while len(rest) > limit - 1:
        at = _split_point(rest[:limit], known)
        found.append(np.append(rest[:at], np.int32(EOS)))
        rest = rest[at:]
    return [*found, np.append(rest, np.int32(EOS))]


def joined(
    of_parts: Sequence[Sequence[Translation]], lengths: Sequence[int], tags: int = 0
) -> list[Translation]:
    """The translations of a line from those of its parts: the best with the best, and so on.

    There are as many as the part with the fewest has. Scores are sums; alignments count in the
    whole line's tokens, where an eos between parts is none: -1. `lengths` are source tokens of each
    part with its eos; each part begins with the first `tags` tokens of the line.
    """
    if len(of_parts) == 1:
        return list(of_parts[0])
    ends = np.cumsum([length - 1 - tags for length in lengths]) + tags
    bounds = [tags, *ends.tolist()]
    return [_concatenated(row, bounds, tags) for row in zip(*of_parts, strict=False)]


def _concatenated(row: Sequence[Translation], bounds: Sequence[int], tags: int) -> Translation:
    """One translation of several; part i has the line's tokens from bounds[i] to bounds[i + 1].

    Before these it has the tags, which are the line's first tokens.
    """
    inner = [part.ids != EOS for part in row[:-1]] + [np.ones(len(row[-1].ids), bool)]

    def concatenated(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
        known = [array for array in arrays if array is not None]
        if len(known) < len(row):
            return None
        return np.concatenate([array[keep] for array, keep in zip(known, inner, strict=True)])

    def in_line(places: np.ndarray, number: int) -> np.ndarray:
        whole = np.where(places < tags, places, places - tags + bounds[number])
        is_last = number == len(row) - 1
        return whole if is_last else np.where(whole < bounds[number + 1], whole, -1)

    aligned = [
        None if part.alignment is None else in_line(part.alignment, number)
        for number, part in enumerate(row)
    ]
    return row[0]._replace(
        ids=np.concatenate([part.ids[keep] for part, keep in zip(row, inner, strict=True)]),
        score=float(sum(part.score for part in row)),
        token_scores=concatenated([part.token_scores for part in row]),
        alignment=concatenated(aligned),
    )


def _slices(line: str) -> list[str]:
    """A line in parts of `SLICE_CHARACTERS`, or a little less where a space is near."""
    found, start = [], 0
    while len(line) - start > SLICE_CHARACTERS:
        end = start + SLICE_CHARACTERS
        space = line.rfind(" ", end - SLICE_CHARACTERS // 2, end)
        found.append(line[start : end if space < 0 else space])
        start += len(found[-1])
    return [*found, line[start:]]


def _split_point(ids: np.ndarray, known: Boundaries) -> int:
    """How many of these ids make the part, at least half: all but the last where nothing helps."""
    half = max(1, len(ids) // 2)
    word = known.starts_word[ids[half:]]
    sentence = word & known.ends_sentence[ids[half - 1 : -1]]
    for where in (sentence, word):
        if where.any():
            return half + int(np.flatnonzero(where)[-1])
    return len(ids) - 1
