"""The lines of metrics.jsonl as the parts of a `Run`."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from hvd_nmt.config.exchange import Exchange
from hvd_nmt.data import bleu
from hvd_nmt.records.record import Evaluation, Interval, Start
from hvd_nmt.telemetry.events import CORPUS_TAG, short

Line = dict[str, Any]

_FIELDS = {"total_s": "step_s", "sacrebleu": "bleu", "sacrebleu_margin": "bleu_margin"}
"""short name, without step_time/ -> field of `Interval` or `Evaluation` of another name"""


def of_kind(lines: Iterable[Line], *kinds: str) -> list[Line]:
    """The lines of some kinds, in their order."""
    return [line for line in lines if line["kind"] in kinds]


def end(lines: Iterable[Line]) -> Line | None:
    """What the newest start recorded at its end; None if it continues or was killed."""
    newest = of_kind(lines, "start", "end")[-1:]
    return newest[0] if newest and newest[0]["kind"] == "end" else None


def starts(lines: Iterable[Line]) -> tuple[Start, ...]:
    """The starts of the run, in their order."""
    return tuple(
        Start(
            tuple(line.get("hosts", ())),
            Exchange(line.get("exchange", "float32"), line.get("sync_every", 1)),
            line.get("all_reduce_s"),
        )
        for line in of_kind(lines, "start")
    )


def tokenizers(now: Mapping[str, str], lines: Iterable[Line]) -> dict[str, str]:
    """Tokenizers of BLEU by corpus, "" for all text: of the start, else those of `now`."""
    begun = of_kind(lines, "start")
    before = dict.fromkeys(["", *now], bleu.USUAL)  # of runs from before one was recorded
    return {**now, **(begun[-1].get("tokenizers", before) if begun else {})}


def intervals(lines: Iterable[Line]) -> tuple[Interval, ...]:
    """Training metrics; a resumed run has dropped the lines of the steps that it does again."""
    rows: list[Interval] = []
    start = done = 0
    for line in of_kind(lines, "start", "train"):
        if line["kind"] == "start":
            start += 1
            done = line.get("first_step", 1) - 1
            continue
        values = {"steps": line["step"] - done, **fields_of(Interval, line)}
        corpora = _after(CORPUS_TAG, line)
        rows.append(Interval(**values, start=max(0, start - 1), corpora=corpora))
        done = line["step"]
    return tuple(rows)


def evaluations(lines: Iterable[Line]) -> tuple[Evaluation, ...]:
    """Scores of the dev set, and of each of several dev corpora."""
    rows: list[Evaluation] = []
    for line in of_kind(lines, "eval"):
        losses = _after("eval_loss/", line).items()
        by_corpus = {corpus: (loss, line.get(f"sacrebleu/{corpus}")) for corpus, loss in losses}
        rows.append(Evaluation(**fields_of(Evaluation, line), by_corpus=by_corpus))
    return tuple(rows)


def fields_of(kind: type[Any], line: Line) -> Line:
    """The fields of a dataclass that a line of metrics.jsonl has."""
    known = {field.name for field in dataclasses.fields(kind)}
    named = ((short(name).removeprefix("step_time/"), value) for name, value in line.items())
    values = {_FIELDS.get(name, name): value for name, value in named}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in values.items()
        if name in known
    }


def _after(prefix: str, line: Line) -> Line:
    """The values whose names have a prefix, by the rest of the name."""
    return {
        name.removeprefix(prefix): value for name, value in line.items() if name.startswith(prefix)
    }


def times_s(lines: Iterable[Line]) -> tuple[float | None, float | None]:
    """Unix times of the first record and, as if no clock had been set back, of the last."""
    times = [line[key] for line in lines for key in ("process_started_s", "time_s") if key in line]
    grown = (max(0.0, after - before) for before, after in itertools.pairwise(times))
    return (times[0], times[0] + sum(grown)) if times else (None, None)


def trained_s(lines: Iterable[Line]) -> float:
    """Seconds from the first to the last record of each start, all starts together.

    A start records those of the starts before it: the lines of steps that are done again go.
    """
    before_s = first_s = last_s = 0.0
    for line in lines:
        if line["kind"] == "start":
            before_s = line.get("trained_s", before_s + last_s - first_s)
            first_s = last_s = line["time_s"]
        last_s = max(last_s, line["time_s"])
    return before_s + last_s - first_s


def startup_s(lines: Iterable[Line]) -> float | None:
    """Seconds from rank 0's process to its first record, over all starts; None if not recorded."""
    begun = [line for line in of_kind(lines, "start") if "process_started_s" in line]
    times = [max(0.0, line["time_s"] - line["process_started_s"]) for line in begun]
    return sum(times) if times else None


def steps_after(step: int, lines: Iterable[Line]) -> int:
    """Number of steps after `step` that were logged."""
    return max([0, *(line["step"] - step for line in of_kind(lines, "train"))])


def pauses(lines: Iterable[Line]) -> tuple[tuple[float, float, int], ...]:
    """What `Run.pauses` explains."""
    begun = [line for line in of_kind(lines, "start") if "trained_s" in line]
    ends_s = [a["time_s"] + b["trained_s"] - a["trained_s"] for a, b in itertools.pairwise(begun)]
    return tuple(
        (end_s, max(0.0, line["process_started_s"] - end_s), line.get("lost_steps", 0))
        for end_s, line in zip(ends_s, begun[1:], strict=True)
    )
