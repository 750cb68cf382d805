"""The starts of a run by `hvd_nmt.launch`, from `launch.jsonl`, as far as it can be believed."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hvd_nmt.checkpoints.run_files import LAUNCHES
from hvd_nmt.records import metrics
from hvd_nmt.records.metrics import Line
from hvd_nmt.records.record import Launch
from hvd_nmt.telemetry import jsonl


def read(run_dir: Path, lines: Iterable[Line], problems: list[str]) -> tuple[Launch, ...]:
    """The starts, in their order; () where nobody launched the run so.

    Args:
        run_dir: run directory.
        lines: of metrics.jsonl, which know more of a start that has not ended yet.
        problems: gets a sentence about damage.
    """
    path = run_dir / LAUNCHES
    if not path.exists():
        return ()
    damaged: list[int] = []
    try:
        events = list(jsonl.read(path, damaged))
    except OSError as error:
        problems.append(f"{path} cannot be read ({error.strerror or error}).")
        return ()
    if damaged:
        problems.append(metrics.damage_sentence(path, damaged))
    found: list[Launch] = []
    left_out: tuple[str, ...] = ()
    for event in events:
        kind, time_s = event.get("kind"), event.get("time_s")
        if not metrics.is_time(time_s):
            continue
        if kind == "left out" and isinstance(event.get("why"), dict):
            left_out = tuple(event["why"])
        elif kind == "start":
            found.append(_begun(event, left_out))
            left_out = ()
        elif kind == "end" and found and found[-1].ended_s is None:
            found[-1] = _ended(found[-1], event)
    lines = list(lines)
    return tuple(each if each.ended_s is not None else _going_on(each, lines) for each in found)


def _begun(event: dict[str, Any], left_out: tuple[str, ...]) -> Launch:
    hosts = event.get("hosts")
    slots = hosts.items() if isinstance(hosts, dict) else ()
    return Launch(
        started_s=event["time_s"],
        ranks_by_host={host: ranks for host, ranks in slots if isinstance(ranks, int)},
        left_out=left_out, start_id=str(event.get("start_id", "")),
    )  # fmt: skip


def _ended(begun: Launch, event: dict[str, Any]) -> Launch:
    times = {name: _valid(event, name, metrics.is_time) for name in ("first_s", "last_s")}
    steps = ("resumed_step", "step", "saved_step")
    resumed, step, saved = (_valid(event, name, _is_step) for name in steps)
    return dataclasses.replace(
        begun, ended_s=event["time_s"], exit_code=_valid(event, "exit_code", _is_step),
        sentence=str(event.get("sentence") or ""), resumed_step=resumed, last_step=step,
        saved_step=saved, **times,
    )  # fmt: skip


def _going_on(begun: Launch, lines: Iterable[Line]) -> Launch:
    """What its own records tell of a start that goes on, or whose launcher was killed."""
    own: list[Line] = []
    is_own = False
    for line in lines:
        if line.get("kind") == "start":
            is_own = line.get("start_id") == begun.start_id
        if is_own:
            own.append(line)
    times = [line["time_s"] for line in own if "time_s" in line]
    if not times:
        return begun
    return dataclasses.replace(
        begun, first_s=times[0], last_s=times[-1], resumed_step=own[0].get("first_step", 1) - 1,
        last_step=max((line["step"] for line in own if "step" in line), default=None),
    )  # fmt: skip


def _valid(event: dict[str, Any], name: str, is_valid: Any) -> Any:
    value = event.get(name)
    return value if is_valid(value) else None


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
