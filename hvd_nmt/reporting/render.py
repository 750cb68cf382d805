"""The report of a run: report.md, and report.html with its figures, all in one file."""

from __future__ import annotations

import datetime
import re
import time
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import write_atomically
from hvd_nmt.common.units import count, duration, step_duration
from hvd_nmt.common.version import __version__
from hvd_nmt.explain import learning, machines
from hvd_nmt.records.record import Run
from hvd_nmt.reporting import answers_network, answers_time, markup, plots, questions
from hvd_nmt.reporting.answer import Answer, Facts, Table

HTML, MARKDOWN = "report.html", "report.md"
MOST_SAMPLES = 5

Plot = tuple[str | None, str]
"""SVG and caption of a figure; None: there were no data for it"""


def write(run: Run, folder: Path, now_s: float | None = None, ended: bool = False) -> list[Path]:
    """Writes report.html and report.md into a folder, made if missing, and returns their paths.

    Args:
        now_s: unix time of the report; the time now if None.
        ended: the caller knows that the run goes on no more, finished or not.

    Raises:
        RunError: the folder cannot be written.
    """
    paths = [folder / HTML, folder / MARKDOWN]
    texts = rendered(run, time.time() if now_s is None else now_s, ended)
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


def rendered(run: Run, now_s: float, ended: bool = False) -> tuple[str, str]:
    """The texts of report.html and report.md; arguments as for `write`."""
    facts = questions.gather(run, now_s, ended)
    answers, plots_of = questions.answers(facts), _plots(facts)
    made = datetime.datetime.fromtimestamp(now_s, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    head = markup.blocks(
        f"# Run {markup.plain(run.name)}", f"Made by hvd_nmt {__version__} on {made}."
    )
    headline, last = _headline(facts), _last(run)
    articles = [
        (answer, *markup.answered(number, answer), plots_of.get(number, []))
        for number, answer in enumerate(answers, start=1)
    ]
    markdown = markup.blocks(
        head, "The figures are in report.html.", headline,
        *(markup.blocks(words, tables, f"How it was computed: {markup.sentence(answer.how)}")
          for answer, words, tables, _ in articles),
        last,
    )  # fmt: skip
    links = "".join(
        f'<li><a href="#q{number}">{escape(answer.question)}</a></li>'
        for number, answer in enumerate(answers, start=1)
    )
    body = [
        f"<header>{markup.html(head)}</header>",
        f"<article>{markup.html(headline)}</article>",
        f"<nav><strong>Eleven questions</strong><ol>{links}</ol></nav>",
        *(_article(number, *of) for number, of in enumerate(articles, start=1)),
        f"<article>{markup.html(last)}{_settings(run)}</article>",
    ]
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    title = f"Run {escape(run.name)}"
    return Template(page).substitute(title=title, body="\n".join(body)), f"{markdown}\n"


def _article(number: int, answer: Answer, words: str, tables: str, drawn: Sequence[Plot]) -> str:
    figures = "".join(
        f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
        for svg, caption in drawn if svg
    )  # fmt: skip
    unknown = "" if answer.known else ' class="unknown"'
    return (
        f'<article id="q{number}"{unknown}>{markup.html(words)}'
        f'<div class="figures">{figures}</div>{markup.html(tables)}<details><summary>How it was '
        f"computed</summary>{markup.html(markup.sentence(answer.how))}</details></article>"
    )


def _headline(facts: Facts) -> str:
    """State, the numbers that are asked for first, and the verdict."""
    run, wall_s, training_s = facts.run, machines.wall_s(facts.run), machines.training_s(facts.run)
    about = [f"Recorded by {run.source}"]
    if run.hosts:
        where = ", ".join(f"{host}:{ranks}" for host, ranks in Counter(run.hosts).items())
        about.append(f"{count(run.ranks, 'rank')} on {where}")
    if run.parameters:
        about.append(f"{run.parameters:,} parameters")
    seconds, since = wall_s, f"{'first' if run.startup_s is None else 'start'} to last record"
    if wall_s is None:
        seconds, since = training_s or None, "in steps only"
    times, tokens = machines.step_times(run), machines.tokens_per_s(run)
    tokens = tokens or run.environment.get("average_tokens_per_s")
    numbers = [
        ("Time", "unknown" if seconds is None else duration(seconds), since),
        (
            "Steps",
            f"{machines.steps_done(run):,}",
            f"of {run.max_steps:,}" if run.max_steps else "",
        ),
        ("Step time", step_duration(times.mean_s) if times else "unknown", "mean"),
        ("Speed", f"{tokens:,.0f} tokens/s" if tokens else "unknown", "source + target, all ranks"),
        ("Best BLEU", *_best_bleu(run)),
    ]
    lines = [
        f"- {name}: **{value}**" + (f" ({note})" if note else "") for name, value, note in numbers
    ]
    return markup.blocks(
        markup.sentence(f"{answers_time.state_sentence(facts)} {'; '.join(about)}."),
        "\n".join(lines),
        f"**{markup.sentence(facts.sentence)}**",
    )


def _best_bleu(run: Run) -> tuple[str, str]:
    """It and a note; how many points, of what."""
    scored = [e for e in run.evaluations if e.bleu is not None]
    if scored:
        best = max(scored, key=lambda e: e.bleu or 0.0)
        margin = f" ± {best.bleu_margin:.1f}" if best.bleu_margin is not None else ""
        return f"{best.bleu:.1f}{margin}", f"sacreBLEU, dev, step {best.step:,}"
    pseudo = [e.pseudo_bleu for e in run.evaluations if e.pseudo_bleu is not None]
    note = f"only pseudo-BLEU, last {pseudo[-1]:.3f}: no quality" if pseudo else "never evaluated"
    return "unknown", note


def _last(run: Run) -> str:
    """Translations of the last evaluation, and what is missing in the record."""
    samples = _samples(run)
    return markup.blocks(
        "### Translations of the last evaluation" if samples else "",
        markup.table(samples) if samples else "",
        "### The record",
        markup.listed(run.problems) or "Nothing is missing in it.",
    )


def _settings(run: Run) -> str:
    tables = [
        Table(title, ("name", "value"), tuple(_dotted(values)))
        for title, values in (("Configuration", run.config), ("Environment", run.environment))
    ]
    return "".join(
        f"<details><summary>{each.title}</summary>{markup.html(markup.table(each))}</details>"
        for each in tables if each.rows
    )  # fmt: skip


def _dotted(config: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """A nested configuration as dotted names and values."""
    rows = []
    for name, value in config.items():
        if isinstance(value, dict):
            rows += _dotted(value, f"{prefix}{name}.")
        else:
            rows.append((prefix + str(name), str(value)))
    return rows


def _plots(facts: Facts) -> dict[int, list[Plot]]:
    """The figures of each question."""
    run = facts.run
    rate, trained = learning.learning_rate(run), learning.fully_trained(run)
    pairs = answers_network.traffic_pairs(facts)
    sent = facts.verdict.seen_bytes or facts.verdict.predicted_bytes
    return {
        2: [
            (plots.outlook(trained), "What was measured, and the fitted curve to twice the steps "
             "with its 90 % band."),
            (plots.bleu(run), "sacreBLEU of the dev set, with its 95 % interval where measured."),
            (plots.pseudo_bleu(run), "The recipe's teacher-forced score: arg-max with the "
             "reference as prefix. It is no measure of translation quality."),
            (plots.gradient_norm(run), "Norm of the whole gradient, before clipping."),
        ],
        3: [(plots.loss(run), "Label-smoothed cross-entropy less the label's entropy. Training "
             "loss is measured with dropout, validation loss without.")],
        4: [
            (plots.host_panels(run, host),
             f"{host.host}: means of neighbouring samples, with the step time.")
            for host in run.telemetry
        ],
        5: [(plots.step_parts(run), "Means of all ranks; the parts add up to the step.")],
        6: [(plots.learning_rate(run, rate),
             f"The line: {rate.schedule.formula()}." if rate.schedule else "As recorded.")],
        10: [(plots.step_time(run), "Mean of each logged interval.")],
        11: [(plots.against_traffic(pairs, machines.pearson(pairs), sent),
              "A point is an interval. On the curve, rate x time gives the bytes of one step.")]
        if len(set(run.hosts)) > 1 else [],
    }  # fmt: skip


def _samples(run: Run) -> Table | None:
    """Source, reference and translation of a few sentences of the last evaluation."""
    rows = _logged_samples(run.path) if run.path.is_dir() else []
    head = ("source", "reference", "translation")
    title = "The first sentences of the dev set"
    return Table(title, head, tuple(rows[:MOST_SAMPLES])) if rows else None


def _logged_samples(run_dir: Path) -> list[tuple[str, str, str]]:
    from hvd_nmt.telemetry.events import read_metrics

    try:
        lines = [line for line in read_metrics(run_dir) if line.get("kind") == "text"]
    except (RunError, OSError):
        return []
    found = []
    for line in str(lines[-1].get("samples", "")).splitlines()[2:] if lines else []:
        cells = [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3:
            found.append((cells[0], cells[1], cells[2]))
    return found
