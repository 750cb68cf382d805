"""Lines longer than the model reads, as ids: split where a sentence, a clause or a word ends."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hvd_nmt.config import EOS
from hvd_nmt.data import language
from hvd_nmt.data.sentencepiece_model import SPACE
from hvd_nmt.model.translator import Translation

SENTENCE_ENDS = tuple(".!?…。！？؟।۔॥།။។።։")
"""ends of sentences before a blank"""
_CLAUSE_ENDS = tuple("，、；：")
"""ends of clauses before any text"""
_WIDE_CLAUSE_ENDS = (*_CLAUSE_ENDS, *",;:")
"""ends of clauses before text of scripts without blanks"""


def parts(ids: np.ndarray, limit: int, pieces: Sequence[str], tags: int = 0) -> list[np.ndarray]:
    """A line's ids in parts of at most `limit` tokens, with eos; each begins with its tags."""
    if len(ids) <= limit:
        return [ids]
    first, rest, chunks = ids[:tags], ids[tags:-1], []
    room = max(limit - tags - 1, 1)  # a part must take a token from the line
    while len(rest) > room:
        at = _split_point(rest[: room + 1], pieces)
        chunks.append(rest[:at])
        rest = rest[at:]
    return [np.concatenate([first, part, [EOS]]).astype(np.int32) for part in (*chunks, rest)]


def joined(
    of_parts: Sequence[Sequence[Translation]], lengths: Sequence[int], tags: int = 0
) -> list[Translation]:
    """The translations of a line from those of its parts: the best with the best, and so on.

    There are as many as the part with the fewest has. Scores are sums; alignments count in the
    whole line's tokens, where an eos is none: -1. `lengths` are source tokens of each part with its
    eos; each part begins with the first `tags` tokens of the line.
    """
    places, first = [], tags
    for length in lengths:
        last = first + length - tags - 1
        places.append(np.array([*range(tags), *range(first, last), -1], np.int32))
        first = last
    return [_joined(row, places) for row in zip(*of_parts, strict=False)]


def _joined(row: Sequence[Translation], places: Sequence[np.ndarray]) -> Translation:
    """One translation of several; `places` has the place in the line of each token of a part."""
    kept = [part.ids != EOS for part in row[:-1]] + [np.ones(len(row[-1].ids), bool)]

    def together(arrays: Iterable[Any]) -> np.ndarray:
        return np.concatenate([array[keep] for array, keep in zip(arrays, kept, strict=True)])

    ids, score = together(part.ids for part in row), float(sum(part.score for part in row))
    if row[0].alignment is None:
        return Translation(ids, score)
    aligned = (place[part.alignment] for part, place in zip(row, places, strict=True))
    return Translation(ids, score, together(part.token_scores for part in row), together(aligned))


def _split_point(ids: np.ndarray, pieces: Sequence[str]) -> int:
    """How many of these ids make the part, at least half: all but the last where nothing helps."""
    half = max(1, len(ids) // 2)
    names = [pieces[number] for number in ids]
    words = [at for at in range(half, len(ids)) if names[at].startswith(SPACE)]
    sentences = [at for at in words if names[at - 1].endswith(SENTENCE_ENDS)]
    clauses = []
    for at in range(half, len(ids)):
        after = names[at][0]
        if unicodedata.category(after) in ("Pe", "Pf", "Po"):  # such as quotes, for what is before
            continue
        is_wide = unicodedata.east_asian_width(after) == "W"
        if language.ends_sentence("".join(names[max(0, at - 4) : at]), is_wide):
            sentences.append(at)
        elif names[at - 1].endswith(_WIDE_CLAUSE_ENDS if is_wide else _CLAUSE_ENDS):
            clauses.append(at)
    return max(sentences or clauses or words, default=len(ids) - 1)
