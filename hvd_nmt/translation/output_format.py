"""A translation as lines of output: the text and the columns that options add.

Columns are separated by a tab, in this order:

    line number     from 1, with --n-best
    score           log-probability / length penalty, with --n-best or --scores
    text            the translation
    token scores    PIECE=LOGP of each piece, separated by spaces, with --token-scores
    alignments      i-j: piece i of the source made piece j of the translation, from 0, as in
                    Pharaoh, with --alignments

Pieces are those of the run's SentencePiece model, without the end of the sentence, which counts in
scores all the same and is the last of the token scores (`</s>`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hvd_nmt.config import EOS

if TYPE_CHECKING:
    from hvd_nmt.translation.engine import Line


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns a line of output has; without any it is the text alone."""

    numbers: bool = False
    scores: bool = False
    token_scores: bool = False
    alignments: bool = False

    @property
    def details(self) -> bool:
        """Whether scores of tokens or alignments must be found, which costs a second pass."""
        return self.token_scores or self.alignments

    @property
    def only_text(self) -> bool:
        """Whether a line of output is the translation and nothing else."""
        return not any(dataclasses.astuple(self))


def rows(
    translations: Sequence[Line], number: int, columns: Columns, pieces: Sequence[str]
) -> list[str]:
    """The lines of output for one line of input.

    Args:
        translations: of the line, best first.
        number: of the line, from 1.
        columns: which it has.
        pieces: of the vocabulary, by id.
    """
    if columns.only_text:
        return [translations[0].text]
    shown = translations if columns.numbers else translations[:1]
    return [_row(line, number, columns, pieces) for line in shown]


def scored_row(ids: np.ndarray, logps: np.ndarray, pieces: Sequence[str], tokens: bool) -> str:
    """The line of output for a pair that was scored.

    Args:
        ids: int32, of the target, eos included.
        logps: float32, the log-probability of each.
        pieces: of the vocabulary, by id.
        tokens: whether each token's own follows.
    """
    score = f"{float(np.sum(logps, dtype=np.float64)):.4f}"
    return f"{score}\t{_token_scores(ids, logps, pieces)}" if tokens else score


def _row(line: Line, number: int, columns: Columns, pieces: Sequence[str]) -> str:
    cells = []
    if columns.numbers:
        cells.append(str(number))
    if columns.numbers or columns.scores:
        cells.append(f"{line.translation.score:.4f}")
    cells.append(line.text.replace("\t", " "))
    if columns.token_scores:
        scores = line.translation.token_scores
        cells.append("" if scores is None else _token_scores(line.translation.ids, scores, pieces))
    if columns.alignments:
        cells.append(_alignment(line))
    return "\t".join(cells)


def _token_scores(ids: np.ndarray, scores: np.ndarray, pieces: Sequence[str]) -> str:
    # The embedding has more rows than the vocabulary has pieces, a multiple of 8.
    named = [pieces[i] if i < len(pieces) else f"<{i}>" for i in ids.tolist()]
    pairs = zip(named, scores.tolist(), strict=True)
    return " ".join(f"{piece}={score:.4f}" for piece, score in pairs)


def _alignment(line: Line) -> str:
    if line.translation.alignment is None:
        return ""
    alignment, ids = line.translation.alignment.tolist(), line.translation.ids.tolist()
    pairs = enumerate(zip(alignment, ids, strict=True))
    last = line.source_tokens - 1  # the end of the source, which stands for no word
    return " ".join(f"{i}-{j}" for j, (i, token) in pairs if token != EOS and 0 <= i < last)
