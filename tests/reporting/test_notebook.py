"""What cells show."""

from __future__ import annotations

from hvd_nmt.reporting import notebook


def test_a_figure_or_that_there_is_none() -> None:
    assert "<svg" in notebook.figure("<svg></svg>")._repr_html_()
    assert "no data" in notebook.figure(None)._repr_html_()


def test_table_of_numbers_and_of_words_that_look_like_html() -> None:
    shown = notebook.table(("n",), [("a <b>",), (12345,), (0.123456,), (None,)]).text
    left = ' style="text-align:left"'
    assert shown == (
        f"<table><tr><th{left}>n</th></tr><tr><td{left}>a &lt;b&gt;</td></tr>"
        f"<tr><td>12,345</td></tr><tr><td>0.123</td></tr><tr><td{left}>None</td></tr></table>"
    )
