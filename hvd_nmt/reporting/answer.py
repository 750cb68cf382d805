"""What a question is answered with, as Markdown and HTML; text of any origin stays text.

`_repr_html_` is what a notebook shows.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import final

from markdown import Markdown

_NUMBER = re.compile(r"[-+]?\d|(unknown|not encoded)?$")


@dataclass(frozen=True)
class Table:
    """The first column is a name, the others are numbers or words."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    """cells: whole numbers get separators, other numbers three digits"""

    def _repr_html_(self) -> str:
        return html(table(self))


@dataclass(frozen=True)
class Answer:
    """One of the questions with its answer."""

    answer: str
    """the answer in one or two sentences; for what cannot be known, what is missing"""
    evidence: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    known: bool = True
    """whether the record has it; else the answer says what is missing and how to get it"""
    number: int = 0
    question: str = ""
    how: str = ""
    """method by which it was computed"""

    def parts(self) -> tuple[str, str, str]:
        """Markdown of the question with its answer, of the tables, and of how it was computed."""
        head = f"### {self.number}. {plain(self.question)}"
        words = blocks(head, f"**{sentence(self.answer)}**", listed(self.evidence))
        return words, blocks(*map(table, self.tables)), f"How it was computed: {sentence(self.how)}"

    def _repr_html_(self) -> str:
        return html(blocks(*self.parts()))


@final
class Answers(tuple[Answer, ...]):
    """The answers in order; a notebook shows them whole, a shell one line each."""

    def __repr__(self) -> str:
        return "\n".join(f"{a.number}. {a.question} {a.answer}" for a in self)

    def _repr_html_(self) -> str:
        return "".join(answer._repr_html_() for answer in self)


def plain(text: str) -> str:
    """Markdown of a part of a line, in which neither Markdown nor HTML has a meaning."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", escape(_printable(text), quote=False))


def _printable(text: str) -> str:
    """Text without the characters that steer a terminal."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", "\ufffd", text)


def sentence(text: str) -> str:
    """Markdown of a sentence: what is between two backticks is code, all else is plain text."""
    parts = re.split(r"(`[^`]+`)", _printable(" ".join(text.split())))
    return "".join(part if n % 2 else plain(part) for n, part in enumerate(parts))


def listed(sentences: tuple[str, ...]) -> str:
    """Markdown of a list of sentences."""
    return "\n".join(f"- {sentence(text)}" for text in sentences)


def table(content: Table) -> str:
    """Markdown of a table; columns after the first with nothing but numbers are to the right."""
    text = [[_cell(value) for value in row] for row in (content.head, *content.rows)]
    _, *columns = zip(*text, strict=True)
    rule = ["---:" if all(map(_NUMBER.match, cells[1:])) else ":---" for cells in columns]
    head, *lines = (f"| {' | '.join(map(plain, row))} |" for row in text)
    rows = "\n".join([head, f"|{'|'.join([':---', *rule])}|", *lines])
    return blocks(f"{plain(content.title)}:" if content.title else "", rows)


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if isinstance(value, float) else " ".join(str(value).split())


def blocks(*texts: str) -> str:
    """Markdown of blocks of text, without the empty ones."""
    return "\n\n".join(filter(None, texts))


def html(markdown: str) -> str:
    """HTML of Markdown; HTML in it stays text."""
    converter = Markdown(extensions=["tables"], output_format="html")
    converter.preprocessors.deregister("html_block")
    converter.inlinePatterns.deregister("html")
    return converter.convert(markdown)
