"""Text of any origin: nothing of it becomes markup, and code stays code."""

import pytest

from hvd_nmt.reporting import markup


@pytest.mark.parametrize(
    ("text", "markdown", "html"),
    [
        ("a <b> & c", "a &lt;b&gt; &amp; c", "a &lt;b&gt; &amp; c"),
        ("snake_case *x*", r"snake\_case \*x\*", "snake_case *x*"),
        ("two\nlines", "two lines", "two\nlines"),
        ("run `wc -l a_b` now", "run `wc -l a_b` now", "run <code>wc -l a_b</code> now"),
        ("`<i>`", "`&lt;i&gt;`", "<code>&lt;i&gt;</code>"),
        ("one ` alone", r"one \` alone", "one ` alone"),
    ],
)
def test_a_sentence_keeps_its_words_and_its_code(text, markdown, html):
    assert markup.sentence(text) == markdown
    assert markup.with_code(text) == html


def test_a_cell_has_no_bars_and_no_code():
    assert markup.cell("a | `b` | c") == r"a \| \`b\` \| c"
