"""The figures: well-formed SVG in the page's own colours, or None without anything to draw."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes

from hvd_nmt.explain import learning, traffic
from hvd_nmt.explain.intervals import EXCHANGING, PARTS
from hvd_nmt.records.record import Run
from hvd_nmt.reporting import plots

FIGURES = {
    "loss": plots.loss,
    "bleu": plots.bleu,
    "pseudo": plots.pseudo_bleu,
    "outlook": lambda run: plots.outlook(learning.fully_trained(run)),
    "rate": lambda run: plots.learning_rate(run, learning.learning_rate(run)),
    "norm": plots.gradient_norm,
    "step parts": plots.step_parts,
    "step time": plots.step_time,
    "host": lambda run: plots.host_panels(run, run.telemetry[0]) if run.telemetry else None,
    "traffic": lambda run: plots.against_traffic(
        [(rate, i.step_s) for i, rate in traffic.rates(run)], None, 3.65e8
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_svg_in_the_colours_of_the_page(name, two_host_run):
    svg = FIGURES[name](two_host_run())
    assert svg.startswith("<svg ")
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert "width" not in root.attrib  # the page decides
    assert "currentColor" in svg
    assert any(colour in svg for colour in plots.SERIES)
    assert [words for words in (plots.INK, "<metadata") if words in svg] == []
    assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")


@pytest.mark.parametrize("name", FIGURES)
def test_without_data_there_is_no_figure(name, tmp_path):
    assert FIGURES[name](Run("empty", tmp_path, "hvd_nmt")) is None


def test_the_same_data_give_the_same_bytes(two_host_run):
    run = two_host_run()
    assert plots.host_panels(run, run.telemetry[1]) == plots.host_panels(run, run.telemetry[1])
    assert plots.loss(run) == plots.loss(run)


def test_a_resumed_run_is_drawn_start_by_start_without_its_tracing(two_host_run, monkeypatch):
    drawn, tracing = [], {600: {"step_s": 60.0}}
    monkeypatch.setattr(Axes, "plot", lambda axes, x, y, **_: drawn.append(y))
    run = two_host_run(lambda i: {"start": int(i.step > 500), **tracing.get(i.step, {})})
    plots.step_time(run)
    (seconds,) = drawn
    counted = [np.nan if i.step == 600 else i.step_s for i in run.intervals[1:]]
    np.testing.assert_allclose(seconds, counted)


def test_many_points_become_their_means():
    x, y = plots.binned(range(2400), [float(n % 2) for n in range(2400)])
    assert len(x) == len(y) == plots.MOST_POINTS
    np.testing.assert_allclose(y, 0.5)
    assert x[0] == 4.5
    _, y = plots.binned([0.0] * 500, [None, 2.0] * 250)  # the unknown ones are left out
    assert set(y[~np.isnan(y)]) == {2.0}


def test_exchanges_of_weights_are_a_part_of_their_own(two_host_run, monkeypatch):
    drawn = []
    monkeypatch.setattr(Axes, "stackplot", lambda self, x, parts, **_: drawn.append(parts))
    of = two_host_run(lambda i: {"exchange_s": 0.25} if i.step > 500 else {})
    plots.step_parts(of)
    totals = np.sum(drawn[0], axis=0)
    assert len(drawn[0]) == len(PARTS) + 1
    assert totals == pytest.approx([i.step_s for i in of.intervals[1:]])
    monkeypatch.undo()
    svg = plots.step_parts(of)
    assert [name for name in (*PARTS.values(), EXCHANGING) if name not in svg] == []
