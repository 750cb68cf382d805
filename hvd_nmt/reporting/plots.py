"""The figures of the report, as HTML with SVG in it; "" where the record has nothing to draw.

Text and axes take the colour of the page; the colours of the data differ on white and on black. No
pyplot: without global state the same data give the same bytes.
"""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_nmt.explain import between_hosts, estimates, learning
from hvd_nmt.explain.intervals import named_parts, settled
from hvd_nmt.records.record import HostSamples, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 240
"""number of points of a curve; more are averaged"""
SERIES = ("#2f7fc1", "#d2622a", "#8e54b5", "#b8860b", "#2a9350", "#cf3a7b")
"""colours of data, C0 to C5"""
INK = "#0a0b0c"
"""colour of text and axes, which becomes currentColor"""
_WIDTH_IN = 3.9  # inches at 72 points: near a phone's width, so that text stays readable there
_HEIGHT_IN = 2.15  # height of a figure's only panel
_LOW_IN = 1.3  # height of one of several panels
_LEGEND_ROW_IN = 0.17  # height of each row of a legend but the first
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
_PART_STYLES = ("C3", "C0", "C2", "C1")  # parts of a step: computing blue, communication red
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

Points = Sequence[tuple[float, float | None]]
"""x and y; None leaves a gap"""


@dataclass(frozen=True)
class Curve:
    """Points in matplotlib's style: colour, markers and line."""

    points: Points
    label: str = ""
    style: str = "C0-"
    band: Sequence[tuple[float, float, float]] = ()
    """x, lowest and highest y"""


def loss(run: Run) -> str:
    """Training and validation loss over steps."""
    curves = [
        Curve(learning.series(run.intervals, "loss"), "training"),
        Curve(learning.series(run.evaluations, "loss"), "validation", "C1o--"),
    ]
    caption = (
        "Label-smoothed cross-entropy less the label's entropy. Training loss is measured with "
        "dropout, validation loss without."
    )
    return draw(caption, {"loss, nats per target token": curves}, from_zero=False)


def bleu(run: Run) -> str:
    """BLEU with its 95 % interval over steps."""
    band = [
        (e.step, max(0, e.bleu - e.bleu_margin), min(100, e.bleu + e.bleu_margin))
        for e in run.evaluations
        if e.bleu is not None and e.bleu_margin is not None
    ]
    curve = Curve(learning.series(run.evaluations, "bleu"), "", "C0o-", band)
    name = f"sacre{run.bleu()}"
    caption = f"{name} of the dev set, with its 95 % interval where measured."
    top = 100.0 if len(curve.points) == 1 else None
    return draw(caption, {f"{name}, 0 to 100": [curve]}, top=top)


def outlook(run: Run) -> str:
    """The fitted curve of the measure to twice the steps, with its band."""
    fit = learning.fully_trained(run)
    fitted = [(step, e.value) for step, e in fit.curve]
    band = [(step, e.low, e.high) for step, e in fit.curve]
    curves = [
        Curve(fitted, "fitted curve", "C1-", band),
        Curve(fit.points if fitted else (), "measured", "C0o"),
    ]
    caption = "What was measured, and the fitted curve to twice the steps with its 90 % band."
    unit = "0 to 100" if fit.measure == "BLEU" else "nats per target token"
    return draw(caption, {f"{fit.measure}, {unit}": curves}, from_zero=False)


def gradient_norm(run: Run) -> str:
    """Norm of the whole gradient over steps."""
    curve = Curve(learning.series(run.intervals, "gradient_norm"))
    return draw("Norm of the whole gradient, before clipping.", {"gradient norm": [curve]})


def learning_rate(run: Run) -> str:
    """The recorded rates on the curve of the formula, with the peak marked."""
    curves = [Curve(learning.series(run.intervals, "learning_rate"), "recorded", "C1o")]
    caption = "As recorded."
    if schedule := learning.schedule(run):
        end = max(run.max_steps or 0, run.steps_done, 1)
        steps = np.unique(np.linspace(1, end, MOST_POINTS, dtype=int)).tolist()
        formula = [(step, schedule.rate(step - 1)) for step in steps]
        step, rate = schedule.peak()
        peak = Curve([(step, rate)], f"peak {rate:.3g}, step {step:,}", "C2v")
        curves = [Curve(formula, "from the configuration"), *curves, peak]
        caption = f"The line: {schedule.formula()}."
    return draw(caption, {"learning rate": curves})


def step_time(run: Run) -> str:
    """Wall time of a step over steps, its parts stacked where steps were taken apart."""
    timed = settled([i for i in run.intervals if i.step_s is not None])
    split = [i for i in timed if None not in (i.compute_s, i.communication_s)]
    parts = named_parts(run.ranks).items()
    curves = [
        Curve([(i.step, getattr(i, name)) for i in split], part, style)
        for (name, part), style in zip(parts, _PART_STYLES, strict=True)
    ]
    if len(split) < 2:
        curves = [Curve(learning.series(timed, "step_s"))]
    caption = "Means of each logged interval and all ranks."
    return draw(caption, {"seconds of a step": curves}, stacked=len(split) >= 2)


def hosts(run: Run) -> str:
    """Each host over time, on one clock: step time, GPUs (or CPU), network card."""
    return "".join(_host(run, host) for host in run.telemetry)


def _host(run: Run, host: HostSamples) -> str:
    began_s = run.started_s or 0.0
    x = [(sample["time_s"] - began_s) / 60 for sample in host.samples]
    gpus_of = [{gpu["index"]: gpu for gpu in sample.get("gpus", [])} for sample in host.samples]
    indices = sorted(set().union(*gpus_of))

    def curve(values: Iterable[float | None], label: str, style: str = "C0-") -> Curve:
        return Curve(list(zip(x, values, strict=True)), label, style)

    def of_gpus(field: str, what: str = "", line: str = "-") -> list[Curve]:
        return [
            curve((gpus.get(index, {}).get(field) for gpus in gpus_of), f"GPU {index}{what}",
                  f"C{number}{line}")
            for number, index in enumerate(indices)
        ]  # fmt: skip

    timed = settled([i for i in run.intervals if None not in (i.time_s, i.step_s)])
    step_times = [(((i.time_s or 0.0) - began_s) / 60, i.step_s) for i in timed]
    panels = {"s per step": [Curve(step_times)]}
    if indices:
        panels["GPU power, W"] = of_gpus("power_w")
        panels["GPU, %"] = [*of_gpus("utilisation_percent", " busy"),
                            *of_gpus("memory_activity_percent", " memory", ":")]  # fmt: skip
    else:
        panels["CPU, %"] = [curve((s.get("cpu_percent") for s in host.samples), "busy")]
    if card := between_hosts.main_interface(host):
        nics = [sample.get("nics", {}).get(card, {}) for sample in host.samples]
        panels["MB/s"] = [
            curve((nic.get(f"{way}_MB_per_s") for nic in nics), f"{card} {way}", style)
            for way, style in (("sent", "C0-"), ("received", "C1-"))
        ]
    caption = f"{host.host}: means of neighbouring samples, with the step time."
    return draw(caption, panels, "minutes since the start")


def against_traffic(run: Run) -> str:
    """Step time against the rate of the network card, of a run on several hosts."""
    pairs = [(rate, i.step_s or 0.0) for i, rate in between_hosts.rates(run)]
    if len(set(run.hosts)) < 2 or len(pairs) < 2:
        return ""
    r = estimates.pearson(pairs)
    label = f"an interval (n = {len(pairs)}{f', r = {r.value:.2f}' if r else ''})"
    curve = Curve(pairs[:: 1 + len(pairs) // MOST_POINTS], label, "C0o")
    across = "sent by the busiest host, MB/s (mean of an interval)"
    return draw("A point is an interval.", {"seconds per step": [curve]}, across, from_zero=False)


def draw(
    caption: str, panels: Mapping[str, Sequence[Curve]], label: str = "step", *,
    from_zero: bool = True, stacked: bool = False, top: float | None = None,
) -> str:  # fmt: skip
    """Panels one above the other on one horizontal axis, as HTML; "" where nothing is in them.

    `caption` is said below, and to who cannot see the figure; it is another for each of a page.
    `panels` are named by their vertical axes, which end at `top`. The curves of one that is
    `stacked` have the same x; each is drawn as an area on those before it.
    """
    if not any(curve.points for curves in panels.values() for curve in curves):
        return ""
    import matplotlib  # a second that a run without a page need not wait
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.rcsetup import cycler

    colours = cycler(color=SERIES)
    with matplotlib.rc_context(_STYLE | {"axes.prop_cycle": colours, "svg.hashsalt": caption}):
        height_in = _HEIGHT_IN if len(panels) == 1 else _LOW_IN * len(panels)
        figure = Figure(figsize=(_WIDTH_IN, height_in + 0.25), layout="constrained")
        FigureCanvasSVG(figure)
        all_axes = figure.subplots(len(panels), squeeze=False, sharex=len(panels) > 1)[:, 0]
        for axes, (name, curves) in zip(all_axes, panels.items(), strict=True):
            _draw_curves(axes, curves, stacked)
            axes.set_ylabel(name)
            if is_lone := axes.dataLim.width == 0:  # one value, whose axes would be a few steps
                axes.set_xlim(0, 2 * axes.dataLim.x0 or 1)
            if from_zero or is_lone:
                axes.axhline(0, linewidth=0)  # a part of the range, so that the margin is of it all
                axes.set_ylim(0, top)
            if names := axes.get_legend_handles_labels()[1]:
                more_in = _LEGEND_ROW_IN * ((len(names) + 1) // 2 - 1)
                figure.set_figheight(figure.get_figheight() + more_in)
                axes.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2, ncols=2,
                            fontsize=7.5, handlelength=1.4, columnspacing=0.8)  # fmt: skip
        all_axes[-1].set_xlabel(label)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata=_NO_METADATA)
    text = escape(caption)
    svg = _inline(stream.getvalue(), text)
    style = "max-width:31rem;margin:.5rem 0"  # also in a notebook
    return f'<figure style="{style}">{svg}<figcaption>{text}</figcaption></figure>'


def _draw_curves(axes: "Axes", curves: Sequence[Curve], stacked: bool) -> None:
    below: Any = 0.0
    for curve in curves:
        if not curve.points:
            continue
        x, y = averaged(curve.points).T
        if stacked:
            axes.fill_between(x, below, below + y, color=curve.style, alpha=0.85, label=curve.label)
            below = below + y
            continue
        is_unseen = len(x) == 1 and curve.style.endswith("-")
        style = f"{curve.style.rstrip('o-')}o" if is_unseen else curve.style
        (line,) = axes.plot(x, y, style, label=curve.label)
        if curve.band:
            at, low, high = np.array(curve.band).T
            # The edge shows the band of a single point.
            axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=1)


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
