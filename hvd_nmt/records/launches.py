"""The starts of a run by `hvd_nmt.launch`, from `launch.jsonl`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hvd_nmt.checkpoints.run_files import LAUNCHES
from hvd_nmt.records.metrics import Line
from hvd_nmt.records.reached import reached
from hvd_nmt.records.record import Launch
from hvd_nmt.telemetry import jsonl


def read(run_dir: Path, lines: Iterable[Line], problems: list[str]) -> tuple[Launch, ...]:
    """The starts, in their order; () where nobody launched the run so.

    Args:
        lines: of metrics.jsonl, which know more of a start that has not ended yet.
        problems: gets a sentence about lines that are left out.
    """
    path = run_dir / LAUNCHES
    if not path.exists():
        return ()
    found: list[Launch] = []
    left_out: tuple[str, ...] = ()
    for event in jsonl.read(path, problems):
        if event["kind"] == "left out":
            left_out = tuple(event["why"])
        elif event["kind"] == "start":
            found.append(Launch(
                started_s=event["time_s"], ranks_by_host=event["hosts"], left_out=left_out,
                start_id=event.get("start_id", ""),
            ))  # fmt: skip
            left_out = ()
        elif event["kind"] == "end" and found and found[-1].ended_s is None:
            found[-1] = _ended(found[-1], event)
    lines = list(lines)
    return tuple(each if each.ended_s is not None else _going_on(each, lines) for each in found)


def _ended(begun: Launch, event: dict[str, Any]) -> Launch:
    return dataclasses.replace(
        begun, ended_s=event["time_s"], exit_code=event.get("exit_code"),
        sentence=event.get("sentence") or "", resumed_step=event.get("resumed_step"),
        last_step=event.get("step"), saved_step=event.get("saved_step"),
        first_s=event.get("first_s"), last_s=event.get("last_s"),
    )  # fmt: skip


def _going_on(begun: Launch, lines: Iterable[Line]) -> Launch:
    """What its own records tell of a start that goes on, or whose launcher was killed."""
    found = reached(lines, begun.start_id)
    if not found:
        return begun
    return dataclasses.replace(
        begun, first_s=found["first_s"], last_s=found.get("last_s", found["first_s"]),
        resumed_step=found["resumed_step"], last_step=found.get("step"),
    )  # fmt: skip
