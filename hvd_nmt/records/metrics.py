"""The lines of metrics.jsonl as records, and as the parts of a `Run`."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from hvd_nmt.checkpoints.run_files import Line
from hvd_nmt.data import bleu
from hvd_nmt.records.record import End, Evaluation, Interval, Record, Run, Save, Start, Stop

Kind = TypeVar("Kind", bound=Record)
_KINDS: dict[str, type[Record]] = {kind.kind: kind for kind in Record.__subclasses__()}
_NAMES: dict[type[Record], dict[str, Any]] = {
    kind: {
        field: hint.__metadata__
        for field, hint in get_type_hints(kind, include_extras=True).items()
        if hasattr(hint, "__metadata__")
    }
    for kind in _KINDS.values()
}
"""names and tags of each field of a record, in the order of a line"""
_TAGS = {
    name: {key: tag for of in _NAMES[kind].values() for key, tag in of if tag}
    for name, kind in _KINDS.items()
}
"""by kind of a line: tag of TensorBoard by name"""
_UNTAGGED = {
    key for names in _NAMES.values() for of in names.values() for key, tag in of if not tag
}


def line_of(record: Record, now_s: float) -> Line:
    """A record as it is written; what is None has no name in the line."""
    line: Line = {"time_s": now_s, "kind": record.kind}
    for field, known in _NAMES[type(record)].items():
        value = getattr(record, field)
        by_corpus = value if known[0].name.endswith("/") else {"": value}
        for corpus, parts in by_corpus.items():
            values = parts if len(known) > 1 else (parts,)
            for (name, tag), part in zip(known, values, strict=True):
                if part is not None:
                    is_number = tag and not isinstance(part, str)
                    line[f"{name}{corpus}"] = float(part) if is_number else part
    return line


def tagged(line: Line) -> dict[str, Any]:
    """What TensorBoard and trackers show of a line, by tag: numbers, or a text in Markdown.

    docs/run-directory.md lists the tags; what earlier versions wrote has its name for a tag.
    """
    tags, shown = _TAGS.get(line["kind"], {}), {}
    for name, value in line.items():
        prefix, slash, corpus = name.partition("/")
        if not isinstance(value, float | str):
            continue
        if name in tags:
            shown[tags[name]] = value
        elif prefix + slash in tags:
            shown[f"{tags[prefix + slash]}{corpus}"] = value
        elif tags and isinstance(value, float) and name not in _UNTAGGED:
            shown[f"{'train' if line['kind'] == Interval.kind else 'dev'}/{name}"] = value
    return shown


def records(lines: Iterable[Line]) -> list[Record]:
    """What was written, without lines of a kind that is not known here."""
    kinds = ((_KINDS.get(line["kind"]), line) for line in lines)
    return [kind(**fields_of(kind, line)) for kind, line in kinds if kind is not None]


def fields_of(kind: type[Record], line: Line) -> dict[str, Any]:
    """The fields of a record that a line of metrics.jsonl has."""
    fields: dict[str, Any] = {}
    for field, known in _NAMES[kind].items():
        name = known[0].name
        if name.endswith("/"):
            corpora = [key.removeprefix(name) for key in line if key.startswith(name)]
            parts = {of: tuple(line.get(prefix + of) for prefix, _ in known) for of in corpora}
            fields[field] = parts if len(known) > 1 else {of: part for of, (part,) in parts.items()}
        elif name in line:
            value = line[name]
            fields[field] = tuple(value) if isinstance(value, list) else value
    return fields


def run_of(run_dir: Path, records: Sequence[Record], **known: Any) -> Run:
    """A run as its records tell it; `known` are fields that its other files tell."""
    begun, newest = starts(records), records[-1] if records else None
    started_s, ended_s = span_s(times_s(records))
    fields = {
        "stopped": isinstance(newest, Stop), "finished": end(records) is not None,
        "starts": begun, "started_s": started_s, "startup_s": startup_s(begun),
        "pauses": pauses(begun), "ended_s": ended_s, "intervals": intervals(records),
        "evaluations": tuple(of_kind(Evaluation, records)),
        "saves": tuple(of_kind(Save, records)),
    }  # fmt: skip
    return Run(run_dir.resolve().name, run_dir, "hvd_nmt", **{**fields, **known})


def of_kind(kind: type[Kind], records: Iterable[Record]) -> list[Kind]:
    """The records of a kind, in their order."""
    return [record for record in records if isinstance(record, kind)]


def end(records: Iterable[Record]) -> End | None:
    """What the newest start recorded at its end; None if it continues or was killed."""
    newest = [record for record in records if isinstance(record, Start | End)][-1:]
    return newest[0] if newest and isinstance(newest[0], End) else None


def starts(records: Iterable[Record]) -> tuple[Start, ...]:
    """The starts of the run, in their order."""
    begun: list[Start] = []
    for record in records:
        if isinstance(record, Start):
            begun.append(record)
        elif isinstance(record, Stop | End) and begun:
            begun[-1] = replace(begun[-1], has_end=True)
    return tuple(begun)


def tokenizers(now: Mapping[str, str], records: Iterable[Record]) -> dict[str, str]:
    """Tokenizers of BLEU by corpus, "" for all text: of the start, else those of `now`."""
    begun = of_kind(Start, records)
    before = dict.fromkeys(["", *now], bleu.USUAL)  # of runs from before one was recorded
    known = begun[-1].tokenizers if begun else {}
    return {**now, **(before if known is None else known)}


def intervals(records: Iterable[Record]) -> tuple[Interval, ...]:
    """Training metrics; a resumed run has dropped the lines of the steps that it does again."""
    rows: list[Interval] = []
    start, done = -1, 0
    for record in records:
        if isinstance(record, Start):
            start, done = start + 1, record.first_step - 1
        elif isinstance(record, Interval):
            steps = record.steps or record.step - done  # of runs from before it was recorded
            rows.append(replace(record, steps=steps, start=max(0, start)))
            done = record.step
    return tuple(rows)


def span_s(times_s: Sequence[float]) -> tuple[float | None, float | None]:
    """The first of the times of records and, as if no clock had been set back, the last."""
    grown = (max(0.0, after - before) for before, after in itertools.pairwise(times_s))
    return (times_s[0], times_s[0] + sum(grown)) if times_s else (None, None)


def times_s(records: Iterable[Record]) -> list[float]:
    """Unix times of the records, each start's after that of its process."""
    times = ((getattr(of, "process_started_s", None), of.time_s) for of in records)
    return [time_s for of_one in times for time_s in of_one if time_s is not None]


def trained_s(records: Iterable[Record]) -> float:
    """Seconds from the first to the last record of each start, all starts together.

    A start records those of the starts before it: the lines of steps that are done again go.
    """
    before_s = first_s = last_s = 0.0
    for record in records:
        time_s = record.time_s or 0.0
        if isinstance(record, Start):
            known = record.trained_s
            before_s = before_s + last_s - first_s if known is None else known
            first_s = last_s = time_s
        last_s = max(last_s, time_s)
    return before_s + last_s - first_s


def startup_s(starts: Iterable[Start]) -> float | None:
    """Seconds from rank 0's process to its first record, over all starts; None if not recorded."""
    begun = ((start.process_started_s, start.time_s or 0.0) for start in starts)
    times = [max(0.0, time_s - began_s) for began_s, time_s in begun if began_s is not None]
    return sum(times) if times else None


def steps_after(step: int, records: Iterable[Record]) -> int:
    """Number of steps after `step` that were logged."""
    return max([0, *(interval.step - step for interval in of_kind(Interval, records))])


def pauses(starts: Iterable[Start]) -> tuple[tuple[float, float, int], ...]:
    """What `Run.pauses` explains."""
    gaps = []
    for start, later in itertools.pairwise(of for of in starts if of.trained_s is not None):
        end_s = (start.time_s or 0.0) + (later.trained_s or 0.0) - (start.trained_s or 0.0)
        pause_s = max(0.0, (later.process_started_s or 0.0) - end_s)
        gaps.append((end_s, pause_s, later.lost_steps))
    return tuple(gaps)
