"""The report of a run: report.md, and report.html with its figures, all in one file."""

import datetime
import re
from html import escape
from importlib import resources
from pathlib import Path
from string import Template

from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import write_atomically
from hvd_nmt.common.progress import announce
from hvd_nmt.common.version import __version__
from hvd_nmt.config.serialization import flat
from hvd_nmt.records import metrics
from hvd_nmt.records.record import Run, Samples
from hvd_nmt.reporting import plots
from hvd_nmt.reporting.answer import Table, blocks, html, listed, plain, sentence, table
from hvd_nmt.reporting.questions import QUESTIONS
from hvd_nmt.reporting.run_summary import RunSummary

MOST_SAMPLES = 5


def write(summary: RunSummary, folder: Path) -> list[Path]:
    """Writes report.html and report.md into a folder, made if missing, and returns their paths.

    RunError: the folder cannot be written.
    """
    paths = [folder / "report.html", folder / "report.md"]
    texts = rendered(summary)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts, strict=True):
            write_atomically(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise RunError(
            f"Cannot write the report to {folder} ({error.strerror or error}): make room, or give "
            "another folder with --output."
        ) from None
    return paths


def rendered(summary: RunSummary) -> tuple[str, str]:
    """The texts of report.html and report.md."""
    run, now = summary.record, datetime.datetime.fromtimestamp(summary.facts.now_s, datetime.UTC)
    made = now.strftime("%Y-%m-%d %H:%M UTC")
    head = blocks(f"# Run {plain(run.name)}", f"Made by hvd_nmt {__version__} on {made}.")
    key_numbers, last = summary.key_numbers(), _last(run)
    markdown = blocks(
        head, "The figures are in report.html.", key_numbers,
        *(blocks(*answer.parts()) for answer in summary.answers), last,
    )  # fmt: skip
    links = (f'<li><a href="#q{a.number}">{escape(a.question)}</a></li>' for a in summary.answers)
    articles = [
        f"<header>{html(head)}</header>",
        f"<article><div>{html(key_numbers)}</div>{_figures(plots.bleu(run))}</article>",
        f"<nav><strong>{len(QUESTIONS)} questions</strong><ol>{''.join(links)}</ol></nav>",
    ]
    announce(f"report of {run.name}")
    for question, answer in zip(QUESTIONS, summary.answers, strict=True):
        words, *tables = (f"<div>{html(part)}</div>" for part in answer.parts()[:2] if part)
        how = html(sentence(answer.how))
        unknown = "" if answer.known else ' class="unknown"'
        articles.append(
            f'<article id="q{answer.number}"{unknown}>{words}'
            f"{_figures(*(draw(run) for draw in question.figures))}{''.join(tables)}"
            f"<details><summary>How it was computed</summary>{how}</details></article>"
        )
    articles.append(f"<article>{html(last)}{_settings(run)}</article>")
    page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    title = f"Run {escape(run.name)}"
    return Template(page).substitute(title=title, body="\n".join(articles)), f"{markdown}\n"


def _figures(*drawn: str) -> str:
    return f'<div class="figures">{"".join(drawn)}</div>' if any(drawn) else ""


def _last(run: Run) -> str:
    """Translations of the last evaluation, and what is missing in the record."""
    records = metrics.records(RunDirectory(run.path).read_metrics([]))
    texts = metrics.of_kind(Samples, records)
    rows = texts[-1].samples.splitlines()[2 : 2 + MOST_SAMPLES] if texts else []
    samples = tuple(
        tuple(cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1])
        for row in rows
    )
    head = ("source", "reference", "translation")
    shown = table(Table("The first sentences of the dev set", head, samples))
    return blocks(
        *(["### Translations of the last evaluation", shown] if samples else []),
        "### The record",
        listed(run.problems) or "Nothing is missing in it.",
    )


def _settings(run: Run) -> str:
    sections = ""
    for title, values in (("Configuration", run.config), ("Environment", run.environment)):
        if rows := [(name, str(value)) for name, value in flat(values)]:
            shown = html(table(Table(title, ("name", "value"), rows)))
            sections += f"<details><summary>{title}</summary>{shown}</details>"
    return sections
