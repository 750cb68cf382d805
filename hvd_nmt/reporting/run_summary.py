"""A run as `hvd_nmt.open_run` gives it: its record, its verdict and the answers about it."""

import inspect
import time
from collections import Counter
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import final

from hvd_nmt.checkpoints import contents
from hvd_nmt.checkpoints.find import find
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.units import count, duration, step_duration
from hvd_nmt.explain import durations
from hvd_nmt.explain.bottleneck import Verdict
from hvd_nmt.explain.goodput import Goodput, goodput
from hvd_nmt.records.record import Run
from hvd_nmt.reporting import answers_time, plots
from hvd_nmt.reporting.answer import Answers, blocks, html, plain, sentence
from hvd_nmt.reporting.questions import QUESTIONS
from hvd_nmt.reporting.run_facts import RunFacts, RunState


@final
class RunSummary:
    """A recorded run; what follows from the record is computed at the first use."""

    def __init__(self, record: Run, now_s: float | None = None, ended: bool = False) -> None:
        """Wraps what `records.read.read_any_run` gives, as seen at a unix time, now if None.

        `ended`: the caller knows that the run has ended, finished or not.
        """
        self.record = record
        self.intervals = record.intervals
        """training metrics, interval by interval: loss, learning rate, step time and its parts"""
        self.evaluations = record.evaluations
        """scores of the dev set, evaluation by evaluation: loss, BLEU, chrF"""
        self.problems = record.problems
        """sentences on what is missing or damaged in the record"""
        self.facts = RunFacts(record, time.time() if now_s is None else now_s, ended)

    def __repr__(self) -> str:
        return f"Run {self.record.name}: {self.state}. {self.sentence}"

    def _repr_html_(self) -> str:
        head = html(blocks(f"### Run {plain(self.record.name)}", self.key_numbers()))
        return f"{head}{plots.loss(self.record)}{plots.bleu(self.record)}"

    @property
    def checkpoints(self) -> tuple[Path, ...]:
        """Prefixes of the checkpoints in the run directory, oldest first; () for a log."""
        return tuple(contents.readable(self.record.path))

    @property
    def state(self) -> RunState:
        """Whether the run continues; equal to a word such as "running" or "finished"."""
        return self.facts.state

    @property
    def verdict(self) -> Verdict:
        """What bound the steps, with its numbers and what would make them shorter."""
        return self.facts.verdict

    @cached_property
    def goodput(self) -> Goodput | None:
        """The share of its wall time in steps that counted, and what took the rest."""
        return goodput(self.record)

    @property
    def sentence(self) -> str:
        """The verdict in words, with its numbers."""
        return self.facts.sentence

    @cached_property
    def answers(self) -> Answers:
        """The questions of the report with their answers, in order."""
        return Answers(
            replace(
                question.answered(self.facts), number=number, question=question.text,
                how=inspect.getdoc(question.answered) or "",
            )
            for number, question in enumerate(QUESTIONS, start=1)
        )  # fmt: skip

    @cached_property
    def headline(self) -> tuple[tuple[str, str], ...]:
        """What is asked first: questions and their answers."""
        path = self.record.path
        try:
            best = str(find(path, "best").relative_to(path))
            best = best if self.evaluations else f"Not evaluated; the newest is {best}"
        except RunError:
            best = "There is none here."
        return (
            ("How did it end?", answers_time.state_sentence(self.facts)),
            ("Fully trained?", self.answers[1].answer),
            ("Best checkpoint?", best),
            ("What took the time?", self.sentence),
        )

    def key_numbers(self) -> str:
        """Markdown of the headline, and of the numbers that are asked for first."""
        run = self.record
        about = [f"Recorded by {run.source}"]
        if run.hosts:
            where = ", ".join(f"{host}:{ranks}" for host, ranks in Counter(run.hosts).items())
            about.append(f"{count(run.ranks, 'rank')} on {where}")
        if run.parameters:
            about.append(f"{run.parameters:,} parameters")
        wall_s, times = durations.wall_s(run), durations.step_times(run)
        seconds = wall_s or durations.training_s(run)
        of_log = run.environment.get("average_tokens_per_s")
        tokens = durations.mean_rate(run, "tokens_per_s") or of_log
        planned = f"of {run.max_steps:,} steps" if run.max_steps else "steps"
        numbers = [
            (seconds and duration(seconds), "time in steps" if wall_s is None else "wall time"),
            (f"{durations.steps_done(run):,}", planned),
            (times and step_duration(times.mean_s), "mean step"),
            (tokens and f"{tokens:,.0f} tokens/s", "source and target, all ranks"),
            _best_bleu(run),
        ]
        return blocks(
            "\n".join(f"- **{asked}** {sentence(answer)}" for asked, answer in self.headline),
            sentence(f"{'; '.join(about)}."),
            "\n".join(f"- **{value or 'unknown'}** {name}" for value, name in numbers),
        )


def _best_bleu(run: Run) -> tuple[str, str]:
    scored = [(e.bleu, e) for e in run.evaluations if e.bleu is not None]
    pseudo = [e.pseudo_bleu for e in run.evaluations if e.pseudo_bleu is not None]
    if scored:
        bleu, best = max(scored, key=lambda pair: pair[0])
        margin = f" ± {best.bleu_margin:.1f}" if best.bleu_margin is not None else ""
        return f"{bleu:.1f}{margin}", f"best sacre{run.bleu()}, dev, step {best.step:,}"
    if pseudo:
        return f"{pseudo[-1]:.3f}", "last pseudo-BLEU, no measure of quality"
    return "", "BLEU: never evaluated"
