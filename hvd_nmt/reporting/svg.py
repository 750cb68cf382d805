"""A figure as SVG text that takes its colours from the page around it.

Every figure is drawn with fixed stand-in colours, which become CSS variables (`--s1` ... `--s6`)
and `currentColor`, so that one SVG is right on a dark page and on a light one. No pyplot: a figure
here is a value without global state, and the same data give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

WIDTH_IN = 3.9
"""inches at 72 points: near a phone's width, so that text stays readable there"""
PANEL_IN = 2.15
"""height of a panel, inches"""
ROW_IN = 0.17
"""of a legend, from its second row on"""
INK = "#0a0b0c"
"""of text and axes: becomes currentColor"""
SERIES = ("#0a1b01", "#0a1b02", "#0a1b03", "#0a1b04", "#0a1b05", "#0a1b06")
"""of data: become the CSS variables --s1 to --s6"""
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "font.family": ["DejaVu Sans"], "font.size": 8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "axes.prop_cycle": cycler(color=SERIES), "axes.grid": True, "axes.axisbelow": True,
    "grid.alpha": 0.15, "grid.linewidth": 0.5, "legend.frameon": False, "lines.linewidth": 1.2,
    "text.parse_math": False,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color",
                     "ytick.color", "grid.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
}  # fmt: skip
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
Draw = Callable[[Axes], None]


def draw_panels(
    name: str, title: str, panels: Sequence[Draw], height_in: float = PANEL_IN, label: str = ""
) -> str:
    """Draws panels one above the other, with one horizontal axis.

    Args:
        name: of the figure; makes its ids differ from those of the others on the page.
        title: what a reader who cannot see it is told.
        panels: each draws into its axes.
        height_in: of a panel, inches.
        label: of the horizontal axis below the last panel; "" if the panel sets it.
    """
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        size = (WIDTH_IN, height_in * len(panels) + 0.25)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        all_axes = figure.subplots(len(panels), squeeze=False, sharex=len(panels) > 1)[:, 0]
        for axes, draw in zip(all_axes, panels, strict=True):
            draw(axes)
            names = axes.get_legend_handles_labels()[1]
            rows = (len(names) + 1) // 2
            figure.set_figheight(figure.get_figheight() + ROW_IN * max(0, rows - 1))
            if names:
                axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=2,
                            fontsize=7.5, handlelength=1.4, columnspacing=1.2)  # fmt: skip
        if label:
            all_axes[-1].set_xlabel(label)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata=_NO_METADATA)
    return _inline(stream.getvalue(), title)


def _inline(svg: str, title: str) -> str:
    """Makes matplotlib's file a part of a page, without size and fixed colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)  # it would style the page
    svg = svg.replace("xlink:href", "href").replace("'DejaVu Sans'", "system-ui, sans-serif")
    # Only shapes and clip paths are referred to; names of groups would repeat in each figure.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    view = re.search(r'viewBox="([^"]*)"', svg)
    assert view is not None
    head = (
        f'<svg viewBox="{view[1]}" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="{escape(title)}">'
    )
    svg = head + svg[svg.index(">") + 1 :]
    for number, stand_in in enumerate(SERIES, start=1):
        svg = svg.replace(stand_in, f"var(--s{number})")
    return svg.replace(INK, "currentColor").strip()
