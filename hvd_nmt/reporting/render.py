"""The report of one run or of several: report.html, all in one file, and report.md."""

from __future__ import annotations

import dataclasses
import datetime
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import write_atomically
from hvd_nmt.common.units import count, duration, step_duration
from hvd_nmt.common.version import __version__
from hvd_nmt.explain import learning, learning_rate, machines
from hvd_nmt.records.record import Run
from hvd_nmt.reporting import (
    answers_network,
    answers_time,
    cost,
    markup,
    plots,
    questions,
    scaling,
)
from hvd_nmt.reporting.answer import Facts, Table

HTML, MARKDOWN = "report.html", "report.md"
MOST_SAMPLES = 5
_NUMBER = re.compile(r"[-+]?\d[\d,.]*(e[-+]\d+)?( (%|x|s|ms|min|h|d|MB|B|W|J|Wh|kWh)( .*)?| ± .*)?")
_NO_NUMBER = ("", "unknown", "not encoded")


Plot = tuple[str, str]
"""SVG and caption of a figure"""
Card = tuple[str, str, str]
"""name, value and note of a number of the headline"""


def write(
    runs: Sequence[Run],
    folder: Path,
    prices: cost.Prices | None = None,
    now_s: float | None = None,
    ended: bool = False,
) -> list[Path]:
    """Writes the report of one run, or of several side by side, and returns its two files.

    Args:
        runs: as for `rendered`; so are `prices` (without them the cost is not said) and `ended`.
        folder: where report.html and report.md go; made if it is missing.
        now_s: unix time of the report; the time now if None.

    Raises:
        RunError: the folder cannot be written.
    """
    now_s = time.time() if now_s is None else now_s
    paths = [folder / HTML, folder / MARKDOWN]
    texts = rendered(runs, prices or cost.Prices(), now_s, ended)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts, strict=True):
            write_atomically(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise RunError(
            f"The report cannot be written to {folder} ({error.strerror or error}): make room, or "
            "give another folder with --output."
        ) from None
    return paths


def rendered(
    runs: Sequence[Run], prices: cost.Prices, now_s: float, ended: bool = False
) -> tuple[str, str]:
    """The texts of report.html and report.md.

    Args:
        runs: their records, at least one.
        prices: of hosts and energy.
        now_s: unix time of the report.
        ended: the caller knows that the runs go on no more, finished or not.
    """
    runs = _distinct(runs)
    gathered = [questions.gather(run, now_s, ended) for run in runs]
    pages = [_page(f"run{n}", facts, prices) for n, facts in enumerate(gathered, start=1)]
    made = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    context = {
        "title": f"Run {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs side by side",
        "version": __version__,
        "made": made.strftime("%Y-%m-%d %H:%M UTC"),
        "pages": pages,
        "comparison": _comparison(gathered) if len(runs) > 1 else None,
    }
    return _environment(True).get_template("report.html.j2").render(context), _environment(
        False
    ).get_template("report.md.j2").render(context)


def _environment(html: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hvd_nmt.reporting"), autoescape=html,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.tests["figures"] = _holds_figures
    environment.filters["md"] = markup.sentence
    environment.filters["code"] = markup.with_code
    environment.filters["cell"] = markup.cell
    return environment


def _holds_figures(table: Table, column: int) -> bool:
    cells = [row[column] for row in table.rows if row[column] not in _NO_NUMBER]
    return column > 0 and bool(cells) and all(_NUMBER.fullmatch(cell) for cell in cells)


def _distinct(runs: Sequence[Run]) -> list[Run]:
    """Runs of one name get their path for a name."""
    names = [run.name for run in runs]
    return [
        dataclasses.replace(run, name=str(run.path)) if names.count(run.name) > 1 else run
        for run in runs
    ]


def _page(anchor: str, facts: Facts, prices: cost.Prices) -> dict[str, Any]:
    """What the templates show of a run."""
    run, plots_of = facts.run, _plots(facts)
    answers = [
        (number, f"{anchor}-q{number}", answer,
         _drawn(f"{anchor}-{number}", plots_of.get(number, [])))
        for number, answer in enumerate(questions.answers(facts), start=1)
    ]  # fmt: skip
    environment = {name: value for name, value in run.environment.items() if name != "samples"}
    settings = [
        Table(title, ("name", "value"), tuple(_dotted(values)))
        for title, values in (("Configuration", run.config), ("Environment", environment))
    ]
    return {
        "anchor": anchor,
        "name": run.name,
        "state": answers_time.state_sentence(facts),
        "about": _about(run),
        "cards": _cards(facts),
        "verdict": facts.verdict,
        "answers": answers,
        "energy": cost.energy_and_cost(facts, prices),
        "samples": _samples(run),
        "problems": run.problems,
        "settings": [table for table in settings if table.rows],
    }


def _dotted(config: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested configuration as dotted names and values."""
    rows = []
    for name, value in config.items():
        if isinstance(value, dict):
            rows += _dotted(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + str(name), str(value)))
    return rows


def _about(run: Run) -> str:
    facts = [f"Recorded by {run.source}"]
    if run.hosts:
        where = ", ".join(f"{host}:{ranks}" for host, ranks in Counter(run.hosts).items())
        facts.append(f"{count(run.ranks, 'rank')} on {where}")
    if run.parameters:
        facts.append(f"{run.parameters:,} parameters")
    return "; ".join(facts) + "."


def _cards(facts: Facts) -> list[Card]:
    run, wall_s, training_s = facts.run, machines.wall_s(facts.run), machines.training_s(facts.run)
    seconds, since = wall_s, f"{'first' if run.startup_s is None else 'start'} to last record"
    if wall_s is None:
        seconds, since = training_s or None, "in steps only"
    times, tokens = machines.step_times(run), machines.tokens_per_s(run)
    tokens = tokens or run.environment.get("average_tokens_per_s")
    planned = f"of {run.max_steps:,}" if run.max_steps else ""
    return [
        ("Time", "unknown" if seconds is None else duration(seconds), since),
        ("Steps", f"{machines.steps_done(run):,}", planned),
        ("Step time", step_duration(times.mean_s) if times else "unknown", "mean"),
        ("Speed", f"{tokens:,.0f} tokens/s" if tokens else "unknown", "source + target, all ranks"),
        _bleu_card(run),
    ]


def _bleu_card(run: Run) -> Card:
    scored = [e for e in run.evaluations if e.bleu is not None]
    if scored:
        best = max(scored, key=lambda e: e.bleu or 0.0)
        margin = f" ± {best.bleu_margin:.1f}" if best.bleu_margin is not None else ""
        return "Best BLEU", f"{best.bleu:.1f}{margin}", f"sacreBLEU, dev, step {best.step:,}"
    pseudo = [e.pseudo_bleu for e in run.evaluations if e.pseudo_bleu is not None]
    note = f"only pseudo-BLEU, last {pseudo[-1]:.3f}: no quality" if pseudo else "never evaluated"
    return "Best BLEU", "unknown", note


def _plots(facts: Facts) -> dict[int, list[tuple[str | None, str]]]:
    """The figures of each question."""
    run, one = facts.run, [facts.run]
    rate, trained = learning_rate.explain(run), learning.fully_trained(run)
    pairs = answers_network.traffic_pairs(facts)
    sent = facts.verdict.seen_bytes or facts.verdict.predicted_bytes
    return {
        2: [
            (plots.outlook(trained), "What was measured, and the fitted curve to twice the steps "
             "with its 90 % band."),
            (plots.bleu(one), "sacreBLEU of the dev set, with its 95 % interval where measured."),
            (plots.pseudo_bleu(run), "The recipe's teacher-forced score: arg-max with the "
             "reference as prefix. It is no measure of translation quality."),
            (plots.gradient_norm(one), "Norm of the whole gradient, before clipping."),
        ],
        3: [(plots.loss(one), "Label-smoothed cross-entropy less the label's entropy. Training "
             "loss is measured with dropout, validation loss without.")],
        4: [
            (plots.host_panels(run, host),
             f"{host.host}: means of neighbouring samples, with the step time.")
            for host in run.telemetry
        ],
        5: [(plots.step_parts(run), "Means of all ranks; the parts add up to the step.")],
        6: [(plots.learning_rate(run, rate),
             f"The line: {rate.schedule.formula()}." if rate.schedule else "As recorded.")],
        7: [(plots.corpora(run), "What the steps were fed, as the ranks counted it.")],
        10: [(plots.step_time(one), "Mean of each logged interval.")],
        11: [(plots.against_traffic(pairs, machines.pearson(pairs), sent),
              "A point is an interval. On the curve, rate x time gives the bytes of one step.")]
        if len(set(run.hosts)) > 1 else [],
    }  # fmt: skip


def _drawn(prefix: str, plots_found: Sequence[tuple[str | None, str]]) -> list[Plot]:
    """The figures for which there were data, their shapes named as in no other of the page."""
    return [
        (re.sub(r'(\bid="|href="#|url\(#)', rf"\1{prefix}-{index}-", svg), caption)
        for index, (svg, caption) in enumerate(plots_found) if svg
    ]  # fmt: skip


def _comparison(gathered: Sequence[Facts]) -> dict[str, Any]:
    runs = [facts.run for facts in gathered]
    return {
        "table": scaling.table(gathered, [_bleu_card(run)[1] for run in runs]),
        "notes": scaling.notes(gathered),
        "plots": _drawn("all", [
            (plots.loss(runs), "Loss of all runs: lines while training, points on the dev set."),
            (plots.bleu(runs), "BLEU of all runs."),
            (plots.step_time(runs), "Step time of all runs."),
            (plots.gradient_norm(runs), "Gradient norm of all runs."),
        ]),
    }  # fmt: skip


def _samples(run: Run) -> Table | None:
    """Source, reference and translation of a few sentences of the last evaluation."""
    head: tuple[str, ...] = ("source", "reference", "translation")
    title = "The first sentences of the dev set"
    texts: list[dict[str, Any]] = run.environment.get("samples", [])
    kept = [text for text in texts if text.get("kind") == "evaluation"]
    last = max((text["step"] for text in kept), default=None)
    rows = [
        (text.get("source", ""), text.get("target", ""), text.get("prediction", ""))
        for text in kept if text["step"] == last
    ]  # fmt: skip
    if rows:
        title += "; with the reference as prefix, so these are no translations"
    elif run.path.is_dir():
        rows = _logged_samples(run.path)
    return Table(title, head, tuple(rows[:MOST_SAMPLES])) if rows else None


def _logged_samples(run_dir: Path) -> list[tuple[str, str, str]]:
    from hvd_nmt.telemetry.events import read_metrics

    try:
        lines = [line for line in read_metrics(run_dir, damaged=[]) if line.get("kind") == "text"]
    except (RunError, OSError):
        return []
    if not lines:
        return []
    found = []
    for line in str(lines[-1].get("samples", "")).splitlines()[2:]:
        cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3:
            found.append((cells[0], cells[1], cells[2]))
    return found
