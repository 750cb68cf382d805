"""Answers, tables and figures of the report as a Jupyter notebook shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from hvd_nmt.reporting.answer import Answer
from hvd_nmt.reporting.markup import with_code

# The figures name their colours by number; these can be told apart on white and on black.
_COLOURS = ("#2f7fc1", "#d2622a", "#8e54b5", "#b8860b", "#2a9350", "#cf3a7b")


@dataclass(frozen=True)
class Html:
    """What a cell shows as HTML."""

    text: str

    def _repr_html_(self) -> str:
        return self.text


def figure(svg: str | None, width_px: int = 620) -> Html:
    """A figure of `analysis.plots`; a sentence where the run has no data for it."""
    if svg is None:
        return Html("<p>The run has no data for this figure.</p>")
    colours = ";".join(f"--s{number}:{colour}" for number, colour in enumerate(_COLOURS, start=1))
    return Html(f'<div style="max-width:{width_px}px;{colours}">{svg}</div>')


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """A table, words to the left; whole numbers get separators, others three digits."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return Html(f"<table>{''.join(lines)}</table>")


def answer(number: int, shown: Answer) -> Html:
    """A question with its answer, evidence and tables; how it was computed in small print."""
    evidence = "".join(f"<li>{with_code(sentence)}</li>" for sentence in shown.evidence)
    tables = "".join(
        f"<p>{escape(part.title)}</p>{table(part.head, part.rows).text}" for part in shown.tables
    )
    return Html(
        f"<h3>{number}. {escape(shown.question)}</h3><p><b>{with_code(shown.answer)}</b></p>"
        f"<ul>{evidence}</ul>{tables}<p><small>{with_code(shown.how)}</small></p>"
    )


def _row(tag: str, cells: Iterable[object]) -> str:
    return "<tr>" + "".join(_cell(tag, value) for value in cells) + "</tr>"


def _cell(tag: str, value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"<{tag}>{value:{',' if isinstance(value, int) else '.3g'}}</{tag}>"
    return f'<{tag} style="text-align:left">{escape(str(value))}</{tag}>'
