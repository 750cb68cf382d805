"""The figures: well-formed SVG in the page's own colours, or nothing without anything to draw."""

import html
import re
import xml.etree.ElementTree as ElementTree

import pytest

from hvd_nmt.records.record import Run
from hvd_nmt.reporting import plots
from hvd_nmt.reporting.questions import QUESTIONS
from hvd_nmt.reporting.run_summary import RunSummary

FIGURES = [plots.bleu, *(draw for question in QUESTIONS for draw in question.figures)]


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_svg_in_the_colours_of_the_page(figure, two_host_run, tmp_path):
    text = figure(two_host_run())
    assert figure(two_host_run()) == text  # the same data, the same bytes
    for drawn in ElementTree.fromstring(f"<div>{text}</div>"):
        svg, caption = drawn
        assert svg.get("role") == "img"
        assert svg.get("aria-label") == caption.text
        assert "width" not in svg.attrib  # the page decides
    assert "currentColor" in text
    assert any(colour in text for colour in plots.SERIES)
    assert [words for words in (plots.INK, "<metadata") if words in text] == []
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert figure(Run("empty", tmp_path, "hvd_nmt")) == ""


def test_a_lone_value_has_axes_from_zero(two_host_run):
    drawn = plots.bleu(two_host_run(evaluations=two_host_run().evaluations[:1]))
    ticks = [float(text) for text in re.findall(r">(\d+)</text>", drawn)]
    assert (ticks[0], ticks[ticks.index(0, 1) - 1], ticks[-1]) == (0, 400, 100)


def test_many_points_become_their_means():
    points = plots.averaged([(n, float(n % 2)) for n in range(2400)])
    assert points.shape == (plots.MOST_POINTS, 2)
    assert points[0].tolist() == [4.5, 0.5]
    known = plots.averaged([(0.0, None), (0.0, 2.0)] * 250)  # the unknown ones are left out
    assert set(known[:, 1]) == {2.0}


def test_a_notebook_shows_runs_and_answers(two_host_run):
    summary = RunSummary(two_host_run())
    shown = summary._repr_html_()
    assert shown.count("<svg") == 2
    assert summary.sentence in html.unescape(re.sub("<[^>]*>", "", shown))
    assert "1. How long did the run take?" in summary.answers[0]._repr_html_()
