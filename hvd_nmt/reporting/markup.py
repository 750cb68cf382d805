"""Text of any origin made safe for a page of HTML or of Markdown."""

from __future__ import annotations

import html
import re

from markupsafe import Markup, escape


def markdown_text(text: object) -> str:
    """Text in which Markdown and HTML see nothing of theirs; line breaks become blanks."""
    return _escaped(" ".join(str(text).split()))


def sentence(text: object) -> str:
    """As `markdown_text`, but what is between two backticks stays code."""
    parts = re.split(r"`([^`]+)`", " ".join(str(text).split()))
    return "".join(
        f"`{html.escape(part, quote=False)}`" if number % 2 else _escaped(part)
        for number, part in enumerate(parts)
    )


def cell(text: object) -> str:
    """As `markdown_text`, within a table."""
    return markdown_text(text).replace("|", "\\|")


def with_code(text: object) -> Markup:
    """A sentence for HTML: everything escaped, and code elements for what is between backticks."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(str(text)))))


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_\[\]])", r"\\\1", html.escape(text, quote=False))
