"""The eleven questions that people ask about a run, each answered from its record."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from functools import cached_property
from importlib import resources
from pathlib import Path
from statistics import median
from typing import final

from hvd_nmt.checkpoints import contents
from hvd_nmt.common.errors import UserError
from hvd_nmt.explain import bottleneck, machines
from hvd_nmt.explain.bottleneck import Verdict
from hvd_nmt.records.record import Evaluation, Interval, Run
from hvd_nmt.reporting import answers_files, answers_learning, answers_network, answers_time
from hvd_nmt.reporting.answer import Answer, Facts, State
from hvd_nmt.reporting.verdict import sentence as verdict_in_words

QUESTIONS: tuple[Callable[[Facts], Answer], ...] = (
    answers_time.how_long,
    answers_learning.fully_trained,
    answers_learning.overfitting,
    answers_time.gpus_used,
    answers_network.network_bound,
    answers_learning.learning_rate,
    answers_files.training_set,
    answers_files.checkpoint_files,
    answers_files.checkpoint_size,
    answers_time.average_step,
    answers_network.step_and_traffic,
)
"""in the order of their numbers, from 1, as their texts in questions.md"""

_PATIENCE_S = 60.0  # silence that a run with telemetry, or a log, may keep and still be running
_PATIENCE_INTERVALS = 4  # likewise where only intervals tell: an evaluation may lie between two
_CLOCKS_DIFFER_S = 60.0  # difference between the clocks of two hosts that is nothing to report


@final
class RunSummary:
    """A recorded run as `hvd_nmt.open_run` gives it; what follows is worked out when asked for."""

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
    def sentence(self) -> str:
        """The verdict in words, with its numbers."""
        return self.facts.sentence

    @property
    def state(self) -> State:
        """Whether the run goes on; equal to a word such as "running" or "finished"."""
        return self.facts.state

    @cached_property
    def facts(self) -> Facts:
        """What the questions are answered from."""
        return gather(self.record)

    @cached_property
    def answers(self) -> tuple[Answer, ...]:
        """The eleven questions with their answers, in order."""
        return answers(self.facts)


def answers(facts: Facts) -> tuple[Answer, ...]:
    """All eleven answers, in order."""
    text = resources.files(__package__).joinpath("questions.md").read_text(encoding="utf-8")
    texts = re.findall(r"^## (.*)\n\n(.*)$", text, flags=re.MULTILINE)
    return tuple(
        dataclasses.replace(answered(facts), question=question, how=how)
        for answered, (question, how) in zip(QUESTIONS, texts, strict=True)
    )


def gather(run: Run, now_s: float | None = None, ended: bool = False) -> Facts:
    """Everything the questions are answered from; arguments as for `render.write`."""
    now_s = time.time() if now_s is None else now_s
    taken_apart, problem = _anatomy(run)
    last_s = machines.last_record_s(run)
    silent_s = None if last_s is None else now_s - last_s
    state = State.STOPPED if ended and not run.finished else _state(run, silent_s)
    if silent_s is not None and state != State.AHEAD:
        silent_s = max(0.0, silent_s)
    verdict = bottleneck.verdict(run)
    words = verdict_in_words(verdict, run)
    return Facts(run, verdict, words, taken_apart, problem, state, silent_s)


def _state(run: Run, silent_s: float | None) -> State:
    if run.finished:
        return State.FINISHED
    if run.locked is not None:
        return State.RUNNING if run.locked else State.SILENT
    if silent_s is None:
        return State.NO_CLOCK
    if silent_s < -_CLOCKS_DIFFER_S:
        return State.AHEAD
    patience_s = _PATIENCE_S
    if not any(host.samples for host in run.telemetry):
        lasted = [i.step_s * i.steps for i in run.intervals if i.step_s is not None]
        patience_s += _PATIENCE_INTERVALS * (median(lasted) if lasted else 0.0)
    return State.RUNNING if silent_s <= patience_s else State.SILENT


def _anatomy(run: Run) -> tuple[contents.Anatomy | None, str]:
    """The newest checkpoint, taken apart; else why not."""
    if run.path.is_dir():
        folders = [run.path]
    else:  # a log; OpenSeq2Seq's folder of checkpoints has any name, often this one
        folders = [run.path.parent, run.path.parent / "checkpoint"]
    for folder in folders:
        try:
            prefix = contents.latest(folder) if folder.is_dir() else None
            if prefix is not None:
                return contents.read(prefix), ""
        except UserError as error:
            return None, str(error)
        except OSError as error:  # a run that goes on removes its older checkpoints
            return None, f"{error.filename or folder} cannot be read ({error.strerror or error})."
    if run.source == "hvd_nmt":
        return None, f"{run.path} holds none yet; the first is written at checkpoints.every_steps."
    return None, "no checkpoint lies beside the log; copy its files (*.index, *.data-*) there."
