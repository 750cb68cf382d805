"""Translations as `translate --n-best` writes them, as a corpus: a teacher's, to learn from."""

from __future__ import annotations

import sys
from pathlib import Path

from hvd_nmt.common.errors import DataError
from hvd_nmt.data.text import read_lines
from hvd_nmt.preparation.parts import Paths


def unfold(source: Path, n_best: Path, out: Paths) -> None:
    """Writes a pair for each translation: its source, and its text.

    Args:
        source: what was translated, one sentence per line.
        n_best: number of the source line from 1, score and text, separated by tabs, numbers rising.
        out: where sources and translations go.

    Raises:
        DataError: a file cannot be read, or a line is none of these.
    """
    sources = enumerate(read_lines(source), start=1)
    at, text, translated = 0, "", 0
    with (
        open(out[0], "w", encoding="utf-8", newline="\n") as to_source,
        open(out[1], "w", encoding="utf-8", newline="\n") as to_target,
    ):
        for row, line in enumerate(read_lines(n_best), start=1):
            number, score, translation = (*line.split(" ", 2), "", "")[:3]  # its tabs are spaces
            if not (number.isdecimal() and int(number) and _is_number(score)):
                raise DataError(
                    f"{n_best}, line {row} is not number, score and text with tabs between: give "
                    "what `translate --n-best` has written."
                )
            translated += at < int(number)
            while at < int(number):
                at, text = next(sources, (0, ""))
                if not at:
                    raise DataError(
                        f"{n_best}, line {row} is of line {number}, and {source} has fewer: give "
                        "the text that was translated."
                    )
            if at != int(number):
                raise DataError(f"{n_best}, line {row} is of line {number}, after line {at}.")
            to_source.write(text + "\n")
            to_target.write(translation + "\n")
    lines = at + sum(1 for _ in sources)
    if translated < lines:
        print(
            f"{n_best}: translations of {translated:,} of the {lines:,} lines of {source}; the "
            "others are left out",
            file=sys.stderr,
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
