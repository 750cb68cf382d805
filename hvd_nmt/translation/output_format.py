"""A translation as lines of output, with what was asked for beside the text.

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
    """What is told of each translation."""

    numbers: bool = False
    scores: bool = False
    token_scores: bool = False
    alignments: bool = False

    @property
    def details(self) -> bool:
        """Whether the search must keep what it does not need itself."""
        return self.token_scores or self.alignments

    @property
    def only_text(self) -> bool:
        """Whether a line of output is the translation and nothing else."""
        return not any(dataclasses.astuple(self))


def rows(found: Sequence[Line], number: int, wanted: Columns, pieces: Sequence[str]) -> list[str]:
    """The lines of output for one line of input.

    Args:
        found: its translations, best first.
        number: of the line, from 1.
        wanted: columns.
        pieces: of the vocabulary, by id.
    """
    if wanted.only_text:
        return [found[0].text]
    found = found if wanted.numbers else found[:1]
    return [_row(line, number, wanted, pieces) for line in found]


def scored_row(ids: np.ndarray, logps: np.ndarray, pieces: Sequence[str], tokens: bool) -> str:
    """The line of output for a pair that was scored.

    Args:
        ids: int32, of the target, eos included.
        logps: float32, the log-probability of each.
        pieces: of the vocabulary, by id.
        tokens: whether each token's own is told too.
    """
    score = f"{float(np.sum(logps, dtype=np.float64)):.4f}"
    return f"{score}\t{_token_scores(ids, logps, pieces)}" if tokens else score


def _row(line: Line, number: int, wanted: Columns, pieces: Sequence[str]) -> str:
    cells = []
    if wanted.numbers:
        cells.append(str(number))
    if wanted.numbers or wanted.scores:
        cells.append(f"{line.found.score:.4f}")
    cells.append(line.text.replace("\t", " "))
    if wanted.token_scores:
        scores = line.found.token_scores
        cells.append("" if scores is None else _token_scores(line.found.ids, scores, pieces))
    if wanted.alignments:
        cells.append(_alignment(line))
    return "\t".join(cells)


def _token_scores(ids: np.ndarray, scores: np.ndarray, pieces: Sequence[str]) -> str:
    told = zip(ids.tolist(), scores.tolist(), strict=True)
    return " ".join(f"{_piece(index, pieces)}={score:.4f}" for index, score in told)


def _piece(index: int, pieces: Sequence[str]) -> str:
    # The embedding has more rows than the vocabulary has pieces, a multiple of 8.
    return pieces[index] if index < len(pieces) else f"<{index}>"


def _alignment(line: Line) -> str:
    if line.found.alignment is None:
        return ""
    pairs = enumerate(zip(line.found.alignment.tolist(), line.found.ids.tolist(), strict=True))
    last = line.source_tokens - 1  # the end of the source, which stands for no word
    return " ".join(f"{i}-{j}" for j, (i, token) in pairs if token != EOS and 0 <= i < last)
