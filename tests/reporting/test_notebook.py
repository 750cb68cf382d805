"""What cells show."""

from __future__ import annotations

from hvd_nmt.reporting import notebook
from hvd_nmt.reporting.answer import Answer, Table


def test_figure_carries_the_colours_it_names() -> None:
    shown = notebook.figure('<svg style="stroke: var(--s6)"></svg>')._repr_html_()
    assert "--s6:#" in shown
    assert "<svg" in shown
    assert "no data" in notebook.figure(None)._repr_html_()


def test_table_of_numbers_and_of_words_that_look_like_html() -> None:
    shown = notebook.table(("n",), [("a <b>",), (12345,), (0.123456,), (None,)]).text
    left = ' style="text-align:left"'
    assert shown == (
        f"<table><tr><th{left}>n</th></tr><tr><td{left}>a &lt;b&gt;</td></tr>"
        f"<tr><td>12,345</td></tr><tr><td>0.123</td></tr><tr><td{left}>None</td></tr></table>"
    )


def test_answer_shows_all_of_it() -> None:
    of = Answer("How & why?", "So.", "Counted.", ("1 < 2.",), (Table("T", ("x",), (("y",),)),))
    shown = notebook.answer(3, of).text
    for part in ("3. How &amp; why?", "<b>So.</b>", "<li>1 &lt; 2.</li>", ">y</td>", "Counted."):
        assert part in shown
