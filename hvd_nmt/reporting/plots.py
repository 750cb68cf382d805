"""The figures of the report, as HTML with SVG in it; "" where the record has nothing to draw.

Text and axes take the colour of the page, and the colours of the data can be told apart on white
and on black. No pyplot: without global state the same data give the same bytes.
"""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from hvd_nmt.explain import between_hosts, learning, machines
from hvd_nmt.explain.intervals import PARTS, settled
from hvd_nmt.records.record import HostSamples, Run

if TYPE_CHECKING:
    from hvd_nmt.reporting.questions import RunSummary

MOST_POINTS = 240
"""of a curve; more are averaged"""
SERIES = ("#2f7fc1", "#d2622a", "#8e54b5", "#b8860b", "#2a9350", "#cf3a7b")
"""colours of data"""
INK = "#0a0b0c"
"""of text and axes: becomes currentColor"""
_WIDTH_IN = 3.9  # inches at 72 points: near a phone's width, so that text stays readable there
_HEIGHT_IN = 2.15  # of a figure's only panel
_LOW_IN = 1.3  # of one of several panels
_LEGEND_ROW_IN = 0.17  # of a legend, from its second row on
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "font.family": ["DejaVu Sans"], "font.size": 8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
    "patch.linewidth": 0, "axes.grid": True, "axes.axisbelow": True,
    "grid.alpha": 0.15, "grid.linewidth": 0.5, "legend.frameon": False, "lines.linewidth": 1.2,
    "lines.markersize": 3, "text.parse_math": False,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color",
                     "ytick.color", "grid.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none"),
}  # fmt: skip
_PART_COLOURS = (3, 0, 2, 1, 4)  # of the parts of a step: computing blue, communication red
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

Points = Sequence[tuple[float, float | None]]
"""x and y; None leaves a gap"""


@dataclass(frozen=True)
class Curve:
    """Points in matplotlib's style and in the colour of a number in `SERIES`."""

    points: Points
    label: str = ""
    style: str = "-"
    colour: int = 0
    band: Sequence[tuple[float, float, float]] = ()
    """x, lowest and highest y"""


@dataclass(frozen=True)
class Panel:
    """Axes with what is drawn in them."""

    label: str
    """of the vertical axis"""
    curves: Sequence[Curve]
    from_zero: bool = True
    stacked: bool = False
    """the curves have the same x; each is drawn as an area on those before it"""


def loss(summary: "RunSummary") -> str:
    """Training and validation loss over steps."""
    curves = [
        Curve(_points(summary.intervals, "loss"), "training"),
        Curve(_points(summary.evaluations, "loss"), "validation", "o--", 1),
    ]
    caption = (
        "Label-smoothed cross-entropy less the label's entropy. Training loss is measured with "
        "dropout, validation loss without."
    )
    return draw(caption, [Panel("loss, nats per target token", curves, from_zero=False)])


def bleu(summary: "RunSummary") -> str:
    """BLEU with its 95 % interval over steps."""
    band = [
        (each.step, max(0, each.bleu - each.bleu_margin), min(100, each.bleu + each.bleu_margin))
        for each in summary.evaluations
        if each.bleu is not None and each.bleu_margin is not None
    ]
    curve = Curve(_points(summary.evaluations, "bleu"), "", "o-", band=band)
    caption = "sacreBLEU of the dev set, with its 95 % interval where measured."
    return draw(caption, [Panel("sacreBLEU on the dev set", [curve])])


def outlook(summary: "RunSummary") -> str:
    """The fitted curve of the measure to twice the steps, with its band."""
    fit = learning.fully_trained(summary.record)
    fitted = [(step, e.value) for step, e in fit.curve]
    curves = [
        Curve(fitted, "fitted curve", "-", 1, [(step, e.low, e.high) for step, e in fit.curve]),
        Curve(fit.points if fitted else (), "measured", "o"),
    ]
    caption = "What was measured, and the fitted curve to twice the steps with its 90 % band."
    return draw(caption, [Panel(str(fit.measure), curves, from_zero=False)])


def gradient_norm(summary: "RunSummary") -> str:
    """Norm of the whole gradient over steps."""
    curve = Curve(_points(summary.intervals, "gradient_norm"))
    return draw("Norm of the whole gradient, before clipping.", [Panel("gradient norm", [curve])])


def learning_rate(summary: "RunSummary") -> str:
    """The recorded rates on the curve of the formula, with the peak marked."""
    explained = learning.learning_rate(summary.record)
    curves = [
        Curve(explained.curve, "from the configuration"),
        Curve(explained.seen, "recorded", "o", 1),
    ]
    caption = "As recorded."
    if explained.schedule:
        step, rate = explained.schedule.peak()
        curves.append(Curve([(step, rate)], f"peak {rate:.3g} at step {step:,}", "v", 2))
        caption = f"The line: {explained.schedule.formula()}."
    return draw(caption, [Panel("learning rate", curves)])


def step_time(summary: "RunSummary") -> str:
    """Wall time of a step over steps."""
    timed = settled([i for i in summary.intervals if i.step_s is not None])
    curve = Curve(_points(timed, "step_s"))
    return draw("Mean of each logged interval.", [Panel("seconds per step", [curve])])


def step_parts(summary: "RunSummary") -> str:
    """The parts of a step stacked over steps, where the steps were taken apart."""
    split = settled([i for i in summary.intervals if None not in (i.compute_s, i.communication_s)])
    if len(split) < 2:
        return ""
    parts = dict(PARTS)
    if any(i.exchange_s is not None for i in split):
        parts["exchange_s"] = "exchanging weights"
        split = [
            replace(i, exchange_s=own_s, communication_s=(i.communication_s or 0.0) - own_s)
            for i in split
            for own_s in [i.exchange_s or 0.0]
        ]
    curves = [
        Curve([(i.step, getattr(i, name)) for i in split], part, colour=colour)
        for (name, part), colour in zip(parts.items(), _PART_COLOURS, strict=False)
    ]
    caption = "Means of all ranks; the parts add up to the step."
    return draw(caption, [Panel("seconds of a step", curves, stacked=True)])


def hosts(summary: "RunSummary") -> str:
    """Each host over time, on one clock: step time, GPUs (or CPU), network card."""
    return "".join(_host(summary.record, host) for host in summary.record.telemetry)


def _host(run: Run, host: HostSamples) -> str:
    if len(host.samples) < 2:
        return ""
    began_s = run.started_s or 0.0
    x = [(sample["time_s"] - began_s) / 60 for sample in host.samples]
    gpus_of = [{gpu["index"]: gpu for gpu in sample.get("gpus", [])} for sample in host.samples]
    indices = sorted(set().union(*gpus_of))

    def points(values: Iterable[float | None]) -> Points:
        return list(zip(x, values, strict=True))

    def of_gpus(field: str, what: str = "", style: str = "-") -> list[Curve]:
        return [
            Curve(points(gpus.get(index, {}).get(field) for gpus in gpus_of),
                  f"GPU {index}{what}", style, number)
            for number, index in enumerate(indices)
        ]  # fmt: skip

    timed = settled([i for i in run.intervals if None not in (i.time_s, i.step_s)])
    step_times = [(((i.time_s or 0.0) - began_s) / 60, i.step_s) for i in timed]
    panels = [Panel("s per step", [Curve(step_times)])]
    if indices:
        share = of_gpus("utilisation_percent", " busy")
        share += of_gpus("memory_activity_percent", " memory", ":")
        panels += [Panel("GPU power, W", of_gpus("power_w")), Panel("GPU, %", share)]
    else:
        busy = points(sample.get("cpu_percent") for sample in host.samples)
        panels.append(Panel("CPU, %", [Curve(busy, "busy")]))
    if card := between_hosts.main_interface(host):
        nics = [sample.get("nics", {}).get(card, {}) for sample in host.samples]
        panels.append(Panel("MB/s", [
            Curve(points(nic.get(f"{way}_MB_per_s") for nic in nics), f"{card} {way}", "-", n)
            for n, way in enumerate(("sent", "received"))
        ]))  # fmt: skip
    caption = f"{host.host}: means of neighbouring samples, with the step time."
    return draw(caption, panels, "minutes since the start")


def against_traffic(summary: "RunSummary") -> str:
    """Step time against the rate of the network card, of a run on several hosts."""
    pairs = [(rate, i.step_s or 0.0) for i, rate in between_hosts.rates(summary.record)]
    if len(set(summary.record.hosts)) < 2 or len(pairs) < 2:
        return ""
    r = machines.pearson(pairs)
    label = f"an interval (n = {len(pairs)}{f', r = {r.value:.2f}' if r else ''})"
    curves = [Curve(pairs[:: 1 + len(pairs) // MOST_POINTS], label, "o")]
    sent = summary.verdict.seen_bytes or summary.verdict.predicted_bytes
    slowest, fastest = min(pairs)[0], max(pairs)[0]
    if sent and slowest > 0:
        rates = np.linspace(slowest * 0.95, fastest * 1.05, 80).tolist()
        constant = [(rate, sent / 1e6 / rate) for rate in rates]
        curves.append(Curve(constant, f"{sent / 1e6:.1f} MB a step", "--", 1))
    caption = "A point is an interval. On the curve, rate x time gives the bytes of one step."
    panel = Panel("seconds per step", curves, from_zero=False)
    return draw(caption, [panel], "sent by a host, MB/s (mean of an interval)")


FIGURES = {
    2: (outlook, bleu, gradient_norm),
    3: (loss,),
    4: (hosts,),
    5: (step_parts,),
    6: (learning_rate,),
    10: (step_time,),
    11: (against_traffic,),
}
"""of each question, by its number"""


def _points(rows: Iterable[Any], field: str) -> list[tuple[int, float]]:
    """Steps and values of intervals or evaluations that have one."""
    return [(row.step, value) for row in rows if (value := getattr(row, field)) is not None]


def draw(caption: str, panels: Sequence[Panel], label: str = "step") -> str:
    """Panels one above the other on one horizontal axis, as HTML; "" where nothing is in them.

    `caption` is said below, and to who cannot see the figure; it is another for each of a page.
    """
    if not any(curve.points for panel in panels for curve in panel.curves):
        return ""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": caption}):
        height_in = _HEIGHT_IN if len(panels) == 1 else _LOW_IN * len(panels)
        figure = Figure(figsize=(_WIDTH_IN, height_in + 0.25), layout="constrained")
        FigureCanvasSVG(figure)
        all_axes = figure.subplots(len(panels), squeeze=False, sharex=len(panels) > 1)[:, 0]
        for axes, panel in zip(all_axes, panels, strict=True):
            _draw_panel(axes, panel)
            if names := axes.get_legend_handles_labels()[1]:
                more_in = _LEGEND_ROW_IN * ((len(names) + 1) // 2 - 1)
                figure.set_figheight(figure.get_figheight() + more_in)
                axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=2,
                            fontsize=7.5, handlelength=1.4, columnspacing=0.8)  # fmt: skip
        all_axes[-1].set_xlabel(label)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata=_NO_METADATA)
    said = escape(caption)
    return f"<figure>{_inline(stream.getvalue(), said)}<figcaption>{said}</figcaption></figure>"


def _draw_panel(axes: Axes, panel: Panel) -> None:
    below: Any = 0.0
    for curve in panel.curves:
        if not curve.points:
            continue
        color, (x, y) = SERIES[curve.colour % len(SERIES)], averaged(curve.points).T
        if panel.stacked:
            axes.fill_between(x, below, below + y, color=color, alpha=0.85, label=curve.label)
            below = below + y
            continue
        if curve.band:
            at, low, high = np.array(curve.band).T
            axes.fill_between(at, low, high, color=color, alpha=0.2)
        axes.plot(x, y, curve.style, label=curve.label, color=color)
    axes.set_ylabel(panel.label)
    if panel.from_zero:
        axes.set_ylim(bottom=0)


def averaged(points: Points) -> np.ndarray:
    """Points x 2: means of at most MOST_POINTS groups of neighbours; NaN where no y is known."""
    values = np.array(points, float)
    if len(values) <= MOST_POINTS:
        return values
    groups = np.array_split(np.ma.masked_invalid(values), MOST_POINTS)
    return np.array([group.mean(0).filled(np.nan) for group in groups])


def _inline(svg: str, label: str) -> str:
    """Makes matplotlib's file a part of a page, without its size and its fixed ink."""
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)  # it would style the page
    svg = svg.replace("xlink:href", "href").replace("'DejaVu Sans'", "system-ui, sans-serif")
    # Only shapes and clip paths are referred to; names of groups would repeat in each figure.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    head, _, rest = svg[svg.index("<svg") :].partition(">")
    view = head.split('viewBox="')[1].split('"')[0]
    return (
        f'<svg viewBox="{view}" xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="{label}">{rest.replace(INK, "currentColor").strip()}'
    )
