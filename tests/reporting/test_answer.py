"""Text of any origin: nothing of it becomes markup, and code stays code."""

import re

import pytest

from hvd_nmt.reporting import answer


@pytest.mark.parametrize(
    ("text", "markdown", "html"),
    [
        ("a <b> & c", "a &lt;b&gt; &amp; c", "a &lt;b&gt; &amp; c"),
        ("snake_case *x*", r"snake\_case \*x\*", "snake_case *x*"),
        ("two\nlines", "two lines", "two lines"),
        ("run `wc -l a_b` now", "run `wc -l a_b` now", "run <code>wc -l a_b</code> now"),
        ("`<i>`", "`<i>`", "<code>&lt;i&gt;</code>"),
        ("one ` alone", r"one \` alone", "one ` alone"),
        ("--help -1.5", "--help -1.5", "--help -1.5"),
        ("[a](b) ![c](d)", r"\[a\](b) !\[c\](d)", "[a](b) ![c](d)"),
        ("<div>", "&lt;div&gt;", "&lt;div&gt;"),
        ("a\x1b[31mred", "a\ufffd\\[31mred", "a\ufffd[31mred"),
        ("`\x9b2J`", "`\ufffd2J`", "<code>\ufffd2J</code>"),
    ],
)
def test_a_sentence_keeps_its_words_and_its_code(text, markdown, html):
    assert answer.sentence(text) == markdown
    assert answer.html(markdown) == f"<p>{html}</p>"


def test_a_notebook_shows_a_table_of_numbers_and_of_words_that_look_like_markup():
    rows = [("a <b>", 12345), (None, 0.123456), ("a | `b` | c", "1.5 s"), ("\\|", "unknown")]
    shown = answer.Table("t|t", ("", "n"), rows)._repr_html_()
    cells = re.findall("<t[dh]([^>]*)>(.*?)</", shown)
    left, right = (f' style="text-align: {side};"' for side in ("left", "right"))
    assert cells == [
        (left, ""), (right, "n"), (left, "a &lt;b&gt;"), (right, "12,345"), (left, "None"),
        (right, "0.123"), (left, "a | `b` | c"), (right, "1.5 s"), (left, "\\|"),
        (right, "unknown"),
    ]  # fmt: skip
