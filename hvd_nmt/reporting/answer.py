"""What a question is answered with, and what the answers are made from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hvd_nmt.checkpoints.contents import Anatomy
from hvd_nmt.explain.bottleneck import Verdict
from hvd_nmt.records.record import Run


class State(StrEnum):
    """Whether a run goes on."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """before it was finished, and it says so"""
    SILENT = "silent"
    """it ended without saying so"""
    NO_CLOCK = "no clock"
    AHEAD = "ahead of this clock"
    """which cannot be right"""


@dataclass(frozen=True)
class Facts:
    """A run with what the analysis says of it."""

    run: Run
    verdict: Verdict
    sentence: str
    """the verdict in words"""
    anatomy: Anatomy | None
    """anatomy of the newest checkpoint; None if there is none to read"""
    anatomy_problem: str
    """why there is none, one sentence; "" if there is one"""
    state: State
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

    answer: str
    """the answer in one or two sentences; for what cannot be known, what is missing"""
    evidence: tuple[str, ...] = ()
    """sentences with numbers"""
    tables: tuple[Table, ...] = ()
    known: bool = True
    """False: the record does not tell; the answer says what is missing and how to get it"""
    question: str = ""
    how: str = ""
    """how it was computed; both from `questions.md`"""
