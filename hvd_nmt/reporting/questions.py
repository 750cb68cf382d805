"""The eleven questions that people ask about a run, each answered from its record."""

import dataclasses
import re
import time
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import final

from hvd_nmt.checkpoints import contents
from hvd_nmt.checkpoints.find import find
from hvd_nmt.common.errors import RunError, UserError
from hvd_nmt.explain import bottleneck, machines
from hvd_nmt.records.record import Run
from hvd_nmt.reporting.answer import Answers, RunState

_PATIENCE_S = 600.0  # silence, as in an evaluation, that a run may keep and still go on


@final
class RunSummary:
    """A recorded run as `hvd_nmt.open_run` gives it; what follows is worked out when asked for."""

    def __init__(self, record: Run, now_s: float | None = None, ended: bool = False) -> None:
        """Wraps what `records.read.read_any_run` gives, as seen at a unix time, now if None.

        `ended`: the caller knows that the run goes on no more, finished or not.
        """
        self.record = record
        self.intervals = record.intervals
        """training metrics, interval by interval: loss, learning rate, step time and its parts"""
        self.evaluations = record.evaluations
        """scores of the dev set, evaluation by evaluation: loss, BLEU, chrF"""
        self.problems = record.problems
        """what is missing or damaged in the record, one sentence each"""
        self.now_s = time.time() if now_s is None else now_s
        self._ended = ended

    def __repr__(self) -> str:
        return f"Run {self.record.name}: {self.state}. {self.sentence}"

    def _repr_html_(self) -> str:
        from hvd_nmt.reporting import render  # which imports this module

        return render.cell(self)

    @property
    def checkpoints(self) -> tuple[Path, ...]:
        """Prefixes of the checkpoints in the run directory, oldest first; () for a log."""
        return tuple(contents.prefixes(self.record.path))

    @cached_property
    def verdict(self) -> bottleneck.Verdict:
        """What bound the steps, with its numbers and what would make them shorter."""
        return bottleneck.verdict(self.record)

    @cached_property
    def sentence(self) -> str:
        """The verdict in words, with its numbers."""
        from hvd_nmt.reporting import answers_network, answers_time

        longer = answers_time.longer_than_steps(self.record)
        return longer + answers_network.sentence(self.verdict, self.record)

    @cached_property
    def headline(self) -> tuple[tuple[str, str], ...]:
        """What is asked first: questions and their answers."""
        from hvd_nmt.reporting import answers_time

        path = self.record.path
        try:
            best = str(find(path, "best").relative_to(path))
        except RunError:
            best = "There is none here."
        return (
            ("How did it end?", answers_time.state_sentence(self)),
            ("Fully trained?", self.answers[1].answer),
            ("Best checkpoint?", best),
            ("What took the time?", self.sentence),
        )

    @cached_property
    def answers(self) -> Answers:
        """The eleven questions with their answers, in order."""
        from hvd_nmt.reporting import answers_files, answers_learning, answers_network, answers_time

        questions = (  # in the order of their numbers, as their texts
            answers_time.how_long, answers_learning.fully_trained, answers_learning.overfitting,
            answers_time.gpus_used, answers_network.network_bound, answers_learning.learning_rate,
            answers_files.training_set, answers_files.checkpoint_files,
            answers_files.checkpoint_size, answers_time.average_step,
            answers_network.step_and_traffic,
        )  # fmt: skip
        text = resources.files(__package__).joinpath("questions.md").read_text(encoding="utf-8")
        texts = re.findall(r"^## (.*)\n\n(.*)$", text, flags=re.MULTILINE)
        asked = zip(questions, texts, strict=True)
        return Answers(
            dataclasses.replace(answered(self), number=number, question=question, how=how)
            for number, (answered, (question, how)) in enumerate(asked, start=1)
        )

    @property
    def silent_s(self) -> float | None:
        """Seconds since the last sign of life; None without a clock."""
        last_s = machines.last_record_s(self.record)
        return None if last_s is None else max(0.0, self.now_s - last_s)

    @property
    def state(self) -> RunState:
        """Whether the run goes on; equal to a word such as "running" or "finished"."""
        if self.record.finished:
            return RunState.FINISHED
        if self._ended or self.record.stopped:
            return RunState.STOPPED
        lives = self.record.locked
        if lives is None and self.silent_s is not None:
            lives = self.silent_s <= _PATIENCE_S
        if lives is None:
            return RunState.NO_CLOCK
        return RunState.RUNNING if lives else RunState.SILENT

    @cached_property
    def anatomy(self) -> contents.Anatomy | str:
        """The newest checkpoint, taken apart; else a sentence that says why there is none."""
        path = self.record.path
        # Beside a log; OpenSeq2Seq's folder of checkpoints has any name, often this one.
        for folder in [path] if path.is_dir() else [path.parent, path.parent / "checkpoint"]:
            try:
                if prefixes := contents.prefixes(folder):
                    return contents.read(prefixes[-1])
            except UserError as error:
                return str(error)
            except OSError as error:  # a run that goes on removes its older checkpoints
                return f"Cannot read {error.filename or folder} ({error.strerror or error})."
        if self.record.source == "hvd_nmt":
            return f"{path} has none yet; the first is written at checkpoints.every_steps."
        return "no checkpoint is next to the log; copy its files (*.index, *.data-*) there."
