"""The Markdown of the report and the HTML made of it, in which text of any origin stays text."""

from __future__ import annotations

import re
from html import escape

from markdown import Markdown

from hvd_nmt.reporting.answer import Answer, Table

_NUMBER = re.compile(r"[-+]?\d[\d,.]*(e[-+]\d+)?( (%|x|s|ms|min|h|d|MB|B|W|J|Wh|kWh)( .*)?| ± .*)?")
_NO_NUMBER = ("", "unknown", "not encoded")


def sentence(text: object) -> str:
    """Markdown of a sentence: what is between two backticks is code, all else is plain text."""
    parts = re.split(r"`([^`]+)`", " ".join(str(text).split()))
    return "".join(f"`{part}`" if number % 2 else plain(part) for number, part in enumerate(parts))


def plain(text: str) -> str:
    """Markdown of one line in which neither Markdown nor HTML sees anything of theirs."""
    escaped = re.sub(r"([\\`*_\[\]|])", r"\\\1", escape(text, quote=False))
    # What would begin a heading, an item of a list or a rule.
    return re.sub(r"^(\d*)(?=#|[.+-](\s|[-\s]*$))", r"\1\\", escaped)


def listed(sentences: tuple[str, ...]) -> str:
    """Markdown of a list of sentences."""
    return "\n".join(f"- {sentence(each)}" for each in sentences)


def table(content: Table) -> str:
    """Markdown of a table, columns of numbers to the right."""
    columns = range(len(content.head))
    rule = "|".join("---:" if _holds_numbers(content, column) else "---" for column in columns)
    rows = [content.head, *content.rows]
    lines = [
        "| " + " | ".join(plain(" ".join(cell.split())) for cell in row) + " |" for row in rows
    ]
    return "\n".join([f"{plain(content.title)}:", "", lines[0], f"|{rule}|", *lines[1:]])


def _holds_numbers(content: Table, column: int) -> bool:
    cells = [row[column] for row in content.rows if row[column] not in _NO_NUMBER]
    return column > 0 and bool(cells) and all(_NUMBER.fullmatch(cell) for cell in cells)


def blocks(*found: str) -> str:
    """Markdown of blocks, of which empty ones are left out."""
    return "\n\n".join(block for block in found if block)


def answered(number: int, answer: Answer) -> tuple[str, str]:
    """Markdown of a question with its answer: what stands before its figures, and its tables."""
    words = blocks(
        f"### {number}. {plain(answer.question)}",
        f"**{sentence(answer.answer)}**",
        listed(answer.evidence),
    )
    return words, blocks(*map(table, answer.tables))


def html(markdown: str) -> str:
    """HTML of Markdown, which can bring none of its own."""
    converter = Markdown(extensions=["tables"], output_format="html")
    converter.preprocessors.deregister("html_block")
    converter.inlinePatterns.deregister("html")
    return converter.convert(markdown)
