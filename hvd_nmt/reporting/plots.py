"""The figures of the report, as SVG text; None where the record has nothing to draw.

Text and axes take the colour of the page, and the colours of the data can be told apart on white
and on black. No pyplot: without global state the same data give the same bytes.
"""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from hvd_nmt.explain.intervals import EXCHANGING, PARTS, settled
from hvd_nmt.explain.learning import FullyTrained, LearningRate
from hvd_nmt.explain.machines import Correlation
from hvd_nmt.explain.traffic import main_interface
from hvd_nmt.records.record import HostSamples, Interval, Run

MOST_POINTS = 240
"""points of a curve over time; more samples are averaged"""
SERIES = ("#2f7fc1", "#d2622a", "#8e54b5", "#b8860b", "#2a9350", "#cf3a7b")
"""colours of data"""
INK = "#0a0b0c"
"""of text and axes: becomes currentColor"""
_WIDTH_IN = 3.9  # inches at 72 points: near a phone's width, so that text stays readable there
_PANEL_IN = 2.15
_LEGEND_ROW_IN = 0.17  # of a legend, from its second row on
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
_PART_COLOURS = dict(zip(
    ("compute_s", "input_wait_s", "straggler_wait_s", "communication_s"),
    (SERIES[0], SERIES[3], SERIES[2], SERIES[1]), strict=True,
))  # fmt: skip
Draw = Callable[[Axes], None]


def loss(run: Run) -> str | None:
    """Training and validation loss over steps."""
    x, y = _points(run, "loss")
    at, held = _columns([(e.step, e.loss) for e in run.evaluations])

    def draw(axes: Axes) -> None:
        axes.plot(x, y, label="training")
        axes.plot(at, held, "o--", markersize=3, label="validation" if at else None)
        axes.set(xlabel="step", ylabel="loss, nats per target token")

    return draw_panels("loss", "Training and validation loss over steps", [draw] if x or at else [])


def bleu(run: Run) -> str | None:
    """BLEU with its 95 % band over steps."""
    scored = [e for e in run.evaluations if e.bleu is not None]

    def draw(axes: Axes) -> None:
        x, y = [e.step for e in scored], np.array([e.bleu for e in scored])
        axes.plot(x, y, "o-", markersize=3)
        margins = [e.bleu_margin for e in scored]
        if None not in margins:
            band = np.array(margins)
            axes.fill_between(x, (y - band).clip(0), (y + band).clip(max=100), color=SERIES[0],
                              alpha=0.2, linewidth=0, label="95 % interval")  # fmt: skip
        axes.set(xlabel="step", ylabel="sacreBLEU on the dev set")
        axes.set_ylim(bottom=0)

    return draw_panels("bleu", "BLEU over steps", [draw] if scored else [])


def pseudo_bleu(run: Run) -> str | None:
    """The recipe's teacher-forced score over steps, marked as what it is."""
    title = "Pseudo-BLEU, no measure of translation quality,"
    points = [(e.step, e.pseudo_bleu) for e in run.evaluations if e.pseudo_bleu is not None]
    return _over_steps(title, "teacher-forced score, 0 to 1", *_columns(points), "o")


def outlook(fit: FullyTrained) -> str | None:
    """The fitted curve of the measure to twice the steps with its band; None without a curve."""

    def draw(axes: Axes) -> None:
        steps = [step for step, _ in fit.curve]
        axes.fill_between(steps, [e.low for _, e in fit.curve], [e.high for _, e in fit.curve],
                          color=SERIES[1], alpha=0.2, linewidth=0)  # fmt: skip
        axes.plot(steps, [e.value for _, e in fit.curve], color=SERIES[1], label="fitted curve")
        axes.plot(*zip(*fit.points, strict=True), "o", color=SERIES[0], markersize=3,
                  label="measured")  # fmt: skip
        axes.axvline(max(step for step, _ in fit.points), color=INK, linewidth=0.6, linestyle=":")
        axes.set(xlabel="step", ylabel=fit.measure)

    title = f"Outlook: {fit.measure} to twice the steps"
    return draw_panels("outlook", title, [draw] if fit.curve and fit.points else [])


def learning_rate(run: Run, explained: LearningRate) -> str | None:
    """The recorded rates on the curve of the formula, with the peak marked; None without any."""
    x, y = _points(run, "learning_rate")
    planned, peak = explained.curve, explained.schedule and explained.schedule.peak()

    def draw(axes: Axes) -> None:
        if planned:
            axes.plot(*zip(*planned, strict=True), color=SERIES[0], label="from the configuration")
        if x:
            some = slice(None, None, 1 + len(x) // MOST_POINTS)
            axes.plot(x[some], y[some], "o", color=SERIES[1], markersize=2.2, label="recorded")
        if peak:
            axes.plot(*peak, "v", color=SERIES[2], markersize=5,
                      label=f"peak {peak[1]:.3g} at step {peak[0]:,}")  # fmt: skip
        axes.set(xlabel="step", ylabel="learning rate")
        axes.set_ylim(bottom=0)

    return draw_panels("rate", "Learning rate over steps", [draw] if x or planned else [])


def gradient_norm(run: Run) -> str | None:
    """Norm of the whole gradient over steps."""
    return _over_steps("Gradient norm", "gradient norm", *_points(run, "gradient_norm"))


def step_time(run: Run) -> str | None:
    """Wall time of a step over steps."""
    timed = settled([i for i in run.intervals if i.step_s is not None])
    line = _line([i.step for i in timed], timed, "step_s")
    return _over_steps("Step time", "seconds per step", *line)


def _over_steps(title: str, label: str, x: Any, y: Any, marker: str = "") -> str | None:
    def draw(axes: Axes) -> None:
        axes.plot(x, y, marker=marker, markersize=3)
        axes.set(xlabel="step", ylabel=label)
        axes.set_ylim(bottom=0)

    return draw_panels(title, f"{title} over steps", [draw] if len(x) else [])


def step_parts(run: Run) -> str | None:
    """The parts of a step stacked over time; None if the steps were not taken apart."""
    split = settled([i for i in run.intervals if None not in (i.compute_s, i.communication_s)])
    colours, names = dict(_PART_COLOURS), dict(PARTS)
    if any(i.exchange_s is not None for i in split):
        colours["exchange_s"], names["exchange_s"] = SERIES[4], EXCHANGING
        split = [_without_exchange(interval) for interval in split]

    def draw(axes: Axes) -> None:
        x, label = _clock(run, split)
        parts = [_line(x, split, name) for name in colours]
        axes.stackplot(
            parts[0][0], [y for _, y in parts], labels=[names[name] for name in colours],
            colors=list(colours.values()), alpha=0.85, linewidth=0,
        )  # fmt: skip
        axes.set(xlabel=label, ylabel="seconds of a step")
        axes.margins(x=0)

    title = "Where the time of a step goes, over the run"
    return draw_panels("step-parts", title, [draw] if len(split) > 1 else [])


def _without_exchange(interval: Interval) -> Interval:
    """The same with exchanges of weights beside the other communication, and not a part of it."""
    exchange_s = interval.exchange_s or 0.0
    communication_s = (interval.communication_s or 0.0) - exchange_s
    return dataclasses.replace(interval, exchange_s=exchange_s, communication_s=communication_s)


def host_panels(run: Run, host: HostSamples) -> str | None:
    """A host over time in panels with one clock: step time, GPUs (or CPU), network card."""
    if len(host.samples) < 2:
        return None
    scale, clock = _scale(run)
    begun_s = host.samples[0]["time_s"] if run.started_s is None else run.started_s
    x = [(sample["time_s"] - begun_s) / scale for sample in host.samples]
    gpus_of = [sample.get("gpus", []) for sample in host.samples]
    indices = sorted({gpu["index"] for gpus in gpus_of for gpu in gpus})

    def panel(
        label: str, lines: Sequence[tuple[int, str, str, list[Any]]], top: Any = None
    ) -> Draw:
        """Lines are: number of the colour, style, name, a value for each sample."""

        def draw(axes: Axes) -> None:
            for colour, style, name, values in lines:
                axes.plot(*binned(x, values), style, color=SERIES[colour % len(SERIES)], label=name)
            axes.set(ylabel=label)
            axes.set_ylim(0, top)

        return draw

    def of_gpus(label: str, fields: dict[str, str]) -> Draw:
        """A colour for each GPU, a style for each field; fields with what the legend says."""
        return panel(label, [
            (number, style, f"GPU {index}{what}",
             [next((g.get(field) for g in gpus if g["index"] == index), None) for gpus in gpus_of])
            for number, index in enumerate(indices)
            for (field, what), style in zip(fields.items(), "-:", strict=False)
        ])  # fmt: skip

    panels = [lambda axes: _step_panel(axes, run)]
    if indices:
        share = {"utilisation_percent": " busy", "memory_activity_percent": " memory"}
        panels += [of_gpus("GPU power, W", {"power_w": ""}), of_gpus("GPU, %", share)]
    else:
        busy, stolen = ([s.get(f"{of}_percent") for s in host.samples] for of in ("cpu", "steal"))
        panels.append(panel("CPU, %", [(0, "-", "busy", busy), (1, "-", "stolen", stolen)], 105))
    if card := main_interface(host):
        readings = [sample.get("nics", {}).get(card, {}) for sample in host.samples]
        panels.append(panel("MB/s", [
            (number, "-", f"{card} {way}", [nic.get(f"{way}_MB_per_s") for nic in readings])
            for number, way in enumerate(("sent", "received"))
        ]))  # fmt: skip
    return draw_panels(f"host-{host.host}", f"Host {host.host} over time", panels, 1.3, clock)


def against_traffic(
    pairs: Sequence[tuple[float, float]], r: Correlation | None, bytes_per_step: float | None
) -> str | None:
    """Step time against the rate of the network card: pairs of MB/s sent and seconds per step.

    `bytes_per_step`: sent by a host, for the curve rate x time = bytes.
    """
    x, y = np.array(pairs).reshape(-1, 2).T

    def draw(axes: Axes) -> None:
        some = slice(None, None, 1 + len(pairs) // (2 * MOST_POINTS))
        label = f"an interval (n = {len(pairs)}{f', r = {r.r:.2f}' if r else ''})"
        axes.plot(x[some], y[some], "o", markersize=3, alpha=0.7, label=label)
        if bytes_per_step and x.min() > 0:
            rates = np.linspace(x.min() * 0.95, x.max() * 1.05, 80)
            label = f"{bytes_per_step / 1e6:.1f} MB a step"
            axes.plot(rates, bytes_per_step / 1e6 / rates, "--", label=label)
        axes.set(xlabel="sent by a host, MB/s (mean of an interval)", ylabel="seconds per step")

    title = "Step time against the rate of the network card"
    return draw_panels("traffic", title, [draw] if len(pairs) > 1 else [])


def binned(x: Sequence[float], y: Sequence[float | None]) -> tuple[np.ndarray, np.ndarray]:
    """Means of x and y, float64 [points], over at most MOST_POINTS groups of neighbours.

    Unknown values (None) are left out; a mean of y is NaN where none is known.
    """
    parts = np.array_split(np.arange(len(x)), max(1, min(MOST_POINTS, len(x))))
    at, values = np.asarray(x, np.float64), np.array(y, np.float64)  # None becomes NaN
    known = [part[~np.isnan(values[part])] for part in parts if len(part)]
    means = [values[part].mean() if len(part) else np.nan for part in known]
    return np.array([at[part].mean() for part in parts if len(part)]), np.array(means)


def _step_panel(axes: Axes, run: Run) -> None:
    timed = settled([i for i in run.intervals if None not in (i.time_s, i.step_s)])
    if timed:
        axes.plot(*_line(_clock(run, timed)[0], timed, "step_s"), color=SERIES[0])
    axes.set(ylabel="s per step")
    axes.set_ylim(bottom=0)


def _points(run: Run, field: str) -> tuple[list[int], list[float]]:
    return _columns([(i.step, getattr(i, field)) for i in run.intervals])


def _columns(points: Sequence[tuple[int, float | None]]) -> tuple[list[int], list[float]]:
    """Steps and values of the points that have one."""
    known = [(step, value) for step, value in points if value is not None]
    return [step for step, _ in known], [value for _, value in known]


def _line(
    x: Sequence[float], intervals: Sequence[Interval], name: str
) -> tuple[np.ndarray, np.ndarray]:
    """A field of the intervals as a line of means that is broken between two starts of the run."""
    points: list[tuple[float, float | None]] = []
    for number, interval in enumerate(intervals):
        if number and interval.start != intervals[number - 1].start:
            points.append((points[-1][0], None))
        points.append((x[number], getattr(interval, name)))
    return binned([at for at, _ in points], [value for _, value in points])


def _clock(run: Run, intervals: Sequence[Interval]) -> tuple[list[float], str]:
    """Where the intervals lie on a clock that begins with the run; without one, their steps."""
    times = [interval.time_s for interval in intervals]
    if None in times or run.started_s is None:
        return [float(interval.step) for interval in intervals], "step"
    scale, label = _scale(run)
    return [(time_s - run.started_s) / scale for time_s in times if time_s is not None], label


def _scale(run: Run) -> tuple[float, str]:
    whole_s = (run.ended_s or 0.0) - (run.started_s or 0.0)
    if whole_s > 3 * 3600:
        return 3600.0, "hours since the start"
    return (60.0, "minutes since the start") if whole_s > 180 else (1.0, "seconds since the start")


def draw_panels(
    name: str, title: str, panels: Sequence[Draw], height_in: float = _PANEL_IN, label: str = ""
) -> str | None:
    """Panels one above the other, with one horizontal axis, as SVG; None without a panel.

    Args:
        name: makes the ids of the figure differ from those of others on the page.
        title: text for those who cannot see it.
        panels: each draws into its axes.
        height_in: of a panel, inches.
        label: of the horizontal axis; "" if the last panel sets it.
    """
    if not panels:
        return None
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        size = (_WIDTH_IN, height_in * len(panels) + 0.25)
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        all_axes = figure.subplots(len(panels), squeeze=False, sharex=len(panels) > 1)[:, 0]
        for axes, draw in zip(all_axes, panels, strict=True):
            draw(axes)
            names = axes.get_legend_handles_labels()[1]
            rows = (len(names) + 1) // 2
            figure.set_figheight(figure.get_figheight() + _LEGEND_ROW_IN * max(0, rows - 1))
            if names:
                axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=2,
                            fontsize=7.5, handlelength=1.4, columnspacing=1.2)  # fmt: skip
        if label:
            all_axes[-1].set_xlabel(label)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata=_NO_METADATA)
    return _inline(stream.getvalue(), title)


def _inline(svg: str, title: str) -> str:
    """Makes matplotlib's file a part of a page, without its size and its fixed ink."""
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)  # it would style the page
    svg = svg.replace("xlink:href", "href").replace("'DejaVu Sans'", "system-ui, sans-serif")
    # Only shapes and clip paths are referred to; names of groups would repeat in each figure.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    head, _, rest = svg[svg.index("<svg") :].partition(">")
    view = head.split('viewBox="')[1].split('"')[0]
    return (
        f'<svg viewBox="{view}" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="{escape(title)}">{rest.replace(INK, "currentColor").strip()}'
    )
