"""What a question is answered with, what the answers are made from, and numbers in words."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_nmt.checkpoints.contents import Anatomy
from hvd_nmt.explain.bottleneck import Verdict
from hvd_nmt.records.record import Run

RUNNING, FINISHED, STOPPED = "running", "finished", "stopped"
SILENT, NO_CLOCK, AHEAD = "silent", "no clock", "ahead of this clock"


@dataclass(frozen=True)
class Facts:
    """A run with what the analysis says of it."""

    run: Run
    verdict: Verdict
    anatomy: Anatomy | None
    """of the newest checkpoint; None if there is none to read"""
    anatomy_problem: str
    """why there is none, one sentence; "" if there is one"""
    state: str
    """running, finished, stopped before it was, silent (it ended without saying so), no clock, or
    ahead of this clock, which cannot be right"""
    silent_s: float | None
    """seconds since the last sign of life, below 0 only if ahead; None without a clock"""


@dataclass(frozen=True)
class Table:
    """Cells of text; the first column is a name, the others are numbers or words."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Answer:
    """One of the questions with its answer."""

    question: str
    answer: str
    """the answer in one or two sentences; for what cannot be known, what is missing"""
    how: str
    """how it was computed"""
    evidence: tuple[str, ...] = ()
    """sentences with numbers"""
    tables: tuple[Table, ...] = ()
    known: bool = True
    """False: the record does not tell; the answer says what is missing and how to get it"""


def duration(seconds: float) -> str:
    """Seconds as people say them, two units at most: 8.2 s, 24 min 42 s, 22 h 5 min, 3 d 2 h."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for big, big_name, small, small_name in (
        (86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")
    ):  # fmt: skip
        if whole >= big:
            rest = whole % big // small
            return f"{whole // big} {big_name}" + (f" {rest} {small_name}" if rest else "")
    return f"{whole} s"


def step_duration(seconds: float) -> str:
    """The time of a step or of a part of it: 1.62 s, 0.335 s, 4.2 ms."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"


def megabytes(n_bytes: float) -> str:
    """Bytes in MB of 1e6 bytes: 730.6 MB; below 0.1 MB in bytes."""
    return f"{n_bytes / 1e6:,.1f} MB" if n_bytes >= 1e5 else f"{n_bytes:,.0f} B"


def percent(share: float) -> str:
    """A share as a whole percentage; small ones with a digit more."""
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: 1 rank, 4 ranks."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
