"""The lines of metrics.jsonl as the parts of a `Run`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hvd_nmt.common.gradient import bytes_of_gradients, ring_bytes
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.records.record import (
    EarlyEnd,
    Evaluation,
    ExchangeInEffect,
    Interval,
    Save,
)
from hvd_nmt.telemetry import events

Line = dict[str, Any]

_INTERVAL = {
    "time_s": "time_s",
    "step_s": "step_time/total_s",
    "input_wait_s": "step_time/input_wait_s",
    "compute_s": "step_time/compute_s",
    "straggler_wait_s": "step_time/straggler_wait_s",
    "communication_s": "step_time/communication_s",
    "exchange_s": "step_time/exchange_s",
    "loss": "train_loss",
    "learning_rate": "learning_rate",
    "gradient_norm": "Loss_Optimization/global_gradient_norm",
    "tokens_per_s": "tokens_per_s",
    "model_flop_per_s": "model_flop_per_s",
    "epoch": "epoch",
}
"""field of `Interval` -> its name in the file"""
_SAVE = tuple(field.name for field in dataclasses.fields(Save))
_EVALUATION = {
    "time_s": "time_s",
    "loss": "eval_loss",
    "bleu": "sacrebleu",
    "bleu_margin": "sacrebleu_margin",
    "chrf": "chrf",
    "chrf_margin": "chrf_margin",
    "ter": "ter",
    "ter_margin": "ter_margin",
    "pseudo_bleu": "Eval_BLEU_Score",
    "seconds": "eval_seconds",
}
"""likewise of `Evaluation`"""


def read_lines(run_dir: Path, problems: list[str]) -> list[Line]:
    """The lines of a run; `problems` gets a sentence about what is missing."""
    path = run_dir / events.METRICS_FILE
    if not path.exists():
        problems.append(f"{path} is missing, so nothing is known of the run's steps.")
        return []
    try:
        return events.read_metrics(run_dir, problems)
    except OSError as error:
        problems.append(f"{path} cannot be read ({error.strerror or error}).")
        return []


def last_start(lines: Iterable[Line]) -> Line:
    """What the newest start of the run recorded; {} without one."""
    return next((line for line in reversed(list(lines)) if line.get("kind") == "start"), {})


def start_hosts(lines: Iterable[Line]) -> tuple[tuple[str, ...], ...]:
    """Host of each rank, start by start; () for a start that does not tell."""
    return tuple(tuple(line.get("hosts", ())) for line in lines if line.get("kind") == "start")


def finished(lines: Iterable[Line]) -> bool:
    """Whether the newest start came to its end."""
    kinds = [line["kind"] for line in lines if line.get("kind") in ("start", "end")]
    return bool(kinds) and kinds[-1] == "end"


def early_end(lines: Iterable[Line]) -> EarlyEnd | None:
    """Why the newest start ended the run before its last step; None if it did not."""
    newest = [line for line in lines if line.get("kind") in ("start", "end")][-1:]
    if not newest or not newest[0].get("because") or "steps" not in newest[0]:
        return None
    return EarlyEnd(newest[0]["steps"], newest[0]["because"], newest[0].get("reason", ""))


def trained_s(lines: Iterable[Line]) -> float:
    """Seconds from the first to the last record of each start, all starts together.

    A start records those of the starts before it: the lines of steps that are done again go.
    """
    before_s, first_s, last_s = 0.0, 0.0, 0.0
    for line in lines:
        time_s = line.get("time_s", last_s)
        if line.get("kind") == "start":
            before_s = line.get("trained_s", before_s + last_s - first_s)
            first_s = last_s = time_s
        last_s = max(last_s, time_s)
    return before_s + last_s - first_s


def startup_s(lines: Iterable[Line]) -> float | None:
    """Seconds from rank 0's process to its first record, over all starts; None if not recorded."""
    times = [
        max(0.0, line["time_s"] - line["process_started_s"])
        for line in lines
        if line.get("kind") == "start" and {"time_s", "process_started_s"} <= line.keys()
    ]
    return sum(times) if times else None


def times_s(lines: Iterable[Line]) -> list[float]:
    """Every unix time that is recorded: of the lines, and of the starts of processes."""
    return [
        line[name] for line in lines for name in ("process_started_s", "time_s") if name in line
    ]


def gradient(start: Line, ranks: int) -> tuple[int | None, float | None]:
    """Parameters, and bytes of the gradient: recorded, or from the ring's 2(N-1)/N."""
    parameters, gradient_bytes = start.get("parameters"), start.get("gradient_bytes")
    sent_bytes = start.get("sent_bytes_per_step")
    if gradient_bytes is None and sent_bytes and ranks > 1:
        gradient_bytes = sent_bytes / ring_bytes(1, ranks)
        parameters = parameters or round(gradient_bytes / bytes_of_gradients(1))
    if gradient_bytes is None and parameters is not None:
        gradient_bytes = float(bytes_of_gradients(parameters))
    return parameters, gradient_bytes


def history(lines: Iterable[Line]) -> tuple[list[Interval], list[Evaluation]]:
    """What was done, without what a resumed run did again."""
    intervals: list[Interval] = []
    evaluations: list[Evaluation] = []
    done, start = 0, -1
    for line in lines:
        kind, step = line.get("kind"), line.get("step")
        if kind == "start":
            start += 1
            done = line.get("first_step", 1) - 1
            intervals = [interval for interval in intervals if interval.step <= done]
            evaluations = [evaluation for evaluation in evaluations if evaluation.step <= done]
        elif kind == "train" and step is not None:
            if step <= done:
                intervals = [interval for interval in intervals if interval.step < step]
                done = intervals[-1].step if intervals else 0
            intervals.append(_interval(line, line.get("steps", step - done), max(0, start)))
            done = step
        elif kind == "eval" and step is not None:
            evaluations = [evaluation for evaluation in evaluations if evaluation.step < step]
            values = {field: line.get(name) for field, name in _EVALUATION.items()}
            evaluations.append(Evaluation(step, **values, by_corpus=_by_corpus(line)))
    return intervals, evaluations


def saves(lines: Iterable[Line]) -> tuple[Save, ...]:
    """Every checkpoint that was written, as long as a resumed run has not done its step again."""
    own = [line for line in lines if line.get("kind") == "save" and {*_SAVE} <= line.keys()]
    return tuple(Save(*(line[name] for name in _SAVE)) for line in own)


def exchanges(lines: Iterable[Line]) -> tuple[ExchangeInEffect, ...]:
    """How hosts exchanged what they learned: what a start says, and formerly lines of their own."""
    found: list[ExchangeInEffect] = []
    for line in lines:
        step = line.get("step")
        if line.get("kind") == "start":
            step = line.get("first_step", 1) - 1
            found = [one for one in found if one.after_step <= step]
        if step is None or line.get("kind") not in ("start", "exchange"):
            continue
        kind = line.get("exchange", "islands" if line.get("islands") else line.get("wire"))
        if kind is None:
            continue
        exchange = Exchange(kind, line.get("sync_every", 1) if kind == "islands" else 1)
        found = [one for one in found if one.after_step < step]
        if found or exchange != Exchange():
            found.append(ExchangeInEffect(step, exchange, line.get("all_reduce_s")))
    return tuple(found)


def _by_corpus(line: Line) -> dict[str, tuple[float, float | None]]:
    """Of each of several dev corpora, its loss and its BLEU, if that is known."""
    losses = {
        name.removeprefix("eval_loss/"): value
        for name, value in line.items()
        if name.startswith("eval_loss/")
    }
    return {name: (loss, line.get(f"sacrebleu/{name}")) for name, loss in losses.items()}


def _interval(line: Line, steps: int, start: int) -> Interval:
    return Interval(
        line["step"], steps, **{field: line.get(name) for field, name in _INTERVAL.items()},
        rank_ready_s=tuple(line.get("rank_ready_s", ())),
        rank_input_wait_s=tuple(line.get("rank_input_wait_s", ())), start=start,
        sentences=_sentences(line.get("sentences")),
        corpora={name.removeprefix(events.CORPUS_TAG): share for name, share in line.items()
                 if name.startswith(events.CORPUS_TAG)},
    )  # fmt: skip


def _sentences(recorded: Any) -> int | None:
    """Their number; formerly it was recorded by epoch, each with a digest."""
    if isinstance(recorded, dict):
        return sum(count for count, _ in recorded.values())
    return recorded
