"""A run as `hvd_nmt.open_run` gives it: what was recorded, and what follows from it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import final

from hvd_nmt.checkpoints import contents
from hvd_nmt.explain.bottleneck import Verdict
from hvd_nmt.records.record import Evaluation, Interval, Run
from hvd_nmt.reporting import questions
from hvd_nmt.reporting.answer import Answer, Facts, State


@final
class RunSummary:
    """A recorded run. What follows from the record is worked out when it is first asked for."""

    def __init__(self, record: Run) -> None:
        """Wraps a record, as `records.read.read_any_run` gives it."""
        self.record = record
        """everything that the run's files tell, for the functions of `explain` and `reporting`"""
        self.intervals: tuple[Interval, ...] = record.intervals
        """training metrics, interval by interval: loss, learning rate, step time and its parts"""
        self.evaluations: tuple[Evaluation, ...] = record.evaluations
        """scores of the dev set, evaluation by evaluation: loss, BLEU, chrF"""
        self.problems: tuple[str, ...] = record.problems
        """what is missing or damaged in the record, one sentence each"""

    @property
    def checkpoints(self) -> tuple[Path, ...]:
        """Prefixes of the checkpoints in the run directory, oldest first; () for a log."""
        return tuple(contents.prefixes(self.record.path)) if self.record.path.is_dir() else ()

    @property
    def verdict(self) -> Verdict:
        """What bound the steps, with its numbers and what would make them shorter."""
        return self.facts.verdict

    @property
    def state(self) -> State:
        """Whether the run goes on; equal to a word such as "running" or "finished"."""
        return self.facts.state

    @cached_property
    def facts(self) -> Facts:
        """What the questions are answered from."""
        return questions.gather(self.record)

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """The eleven questions with their answers, in order."""
        return questions.answers(self.facts)
