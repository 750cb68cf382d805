"""Answers, tables and figures of the report as a Jupyter notebook shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from hvd_nmt.reporting import markup
from hvd_nmt.reporting.answer import Answer


@dataclass(frozen=True)
class Html:
    """What a cell shows as HTML."""

    text: str

    def _repr_html_(self) -> str:
        return self.text


def figure(svg: str | None, width_px: int = 620) -> Html:
    """A figure of `reporting.plots`; a sentence where the run has no data for it."""
    if svg is None:
        return Html("<p>The run has no data for this figure.</p>")
    return Html(f'<div style="max-width:{width_px}px">{svg}</div>')


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """A table, words to the left; whole numbers get separators, others three digits."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return Html(f"<table>{''.join(lines)}</table>")


def answer(number: int, shown: Answer) -> Html:
    """A question with its answer, evidence and tables; how it was computed in small print."""
    text = markup.html(markup.blocks(*markup.answered(number, shown)))
    return Html(f"{text}<small>{markup.html(markup.sentence(shown.how))}</small>")


def _row(tag: str, cells: Iterable[object]) -> str:
    return "<tr>" + "".join(_cell(tag, value) for value in cells) + "</tr>"


def _cell(tag: str, value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"<{tag}>{value:{',' if isinstance(value, int) else '.3g'}}</{tag}>"
    return f'<{tag} style="text-align:left">{escape(str(value))}</{tag}>'
