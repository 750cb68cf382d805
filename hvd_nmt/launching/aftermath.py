"""After a start has ended: no process of it is left on any host, and how far it came.

    python -m hvd_nmt.launching.aftermath       runs on each host, asked as `diagnosis.probe` is

A rank on another host than horovodrun's learns late that it was left behind, and one that is
stopped never: its watchdog ends it in the end, and this is only faster.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hvd_nmt.checkpoints.manifest import newest_step
from hvd_nmt.common.rank_environment import START_ID
from hvd_nmt.diagnosis import hosts, probe
from hvd_nmt.diagnosis.hosts import Host
from hvd_nmt.telemetry import jsonl

_MODULE = "hvd_nmt.launching.aftermath"
_METRICS = "metrics.jsonl"
_GONE_S = 10.0
"""for killed processes to be gone"""
_ANSWER_S = 20.0
"""for everything else: ssh, the start of Python, reading"""
_LOOK_S = 0.2


@dataclass(frozen=True)
class Aftermath:
    """What the hosts say after a start."""

    killed: dict[str, int]
    """host -> processes that had not ended by themselves, if any"""
    left: dict[str, int]
    """host -> processes that even SIGKILL did not end in time, if any"""
    silent: tuple[str, ...]
    """hosts without an answer"""
    saved_step: int | None
    """step of the newest complete checkpoint"""
    reached: dict[str, Any]
    """what `_reached` says of the start, {} if it came to no step"""


def clear_up(
    among: Sequence[Host], launch_id: str, start_id: str, run_dir: Path | None, patience_s: float
) -> Aftermath:
    """End what is left of the starts of a launcher, on all hosts at once.

    Args:
        among: hosts, and this one, if it is none of them.
        launch_id: how the ids of its starts begin.
        start_id: the newest of them.
        run_dir: run directory; None: of no run.
        patience_s: what the processes have to end by themselves.
    """
    request = {
        "launch_id": launch_id, "start_id": start_id, "patience_s": patience_s,
        "run_dir": None if run_dir is None else os.fspath(run_dir),
    }  # fmt: skip
    asked = list(among)
    if not any(hosts.is_here(host.name) for host in asked):
        asked.append(Host("localhost", 1))
    answers = hosts.ask(asked, request, patience_s + _GONE_S + _ANSWER_S, _MODULE)
    facts = {answer.host.name: answer.facts for answer in answers if answer.facts}
    steps = [found["saved_step"] for found in facts.values() if found["saved_step"] is not None]
    reached = [found["reached"] for found in facts.values() if found["reached"]]
    return Aftermath(
        killed={name: found["killed"] for name, found in facts.items() if found["killed"]},
        left={name: found["left"] for name, found in facts.items() if found["left"]},
        silent=tuple(answer.host.name for answer in answers if not answer.facts),
        saved_step=max(steps, default=None),
        reached=reached[0] if reached else {},
    )


def facts(request: dict[str, Any]) -> dict[str, Any]:
    """Of this host: processes killed, processes left, and how far the start came."""
    killed, left = _end_processes(request["launch_id"], request["patience_s"])
    run_dir = request["run_dir"]
    found: dict[str, Any] = {"killed": killed, "left": left, "saved_step": None, "reached": {}}
    if run_dir is not None:
        found["saved_step"] = newest_step(Path(run_dir))
        found["reached"] = _reached(Path(run_dir), request["start_id"])
    return found


def _end_processes(launch_id: str, patience_s: float) -> tuple[int, int]:
    """Wait for the processes of all starts, kill those that stay; how many, and how many stay."""
    patient_until_s = time.monotonic() + patience_s
    while (left := _processes(launch_id)) and time.monotonic() < patient_until_s:
        time.sleep(_LOOK_S)
    killed: set[int] = set()
    gone_until_s = time.monotonic() + _GONE_S
    while left and time.monotonic() < gone_until_s:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
                killed.add(process.pid)
        time.sleep(_LOOK_S)
        left = _processes(launch_id)
    return len(killed), len(left)


def _processes(launch_id: str) -> list[psutil.Process]:
    """Those of this host, which may be a container or a network namespace beside others."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if not process.environ().get(START_ID, "").startswith(launch_id):
                continue
            here = os.readlink("/proc/self/ns/net") == os.readlink(f"/proc/{process.pid}/ns/net")
            if here and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _reached(run_dir: Path, start_id: str) -> dict[str, Any]:
    """The first and the last step of a start, and when they were recorded, in unix time."""
    found: dict[str, Any] = {}
    damaged: list[int] = []
    with contextlib.suppress(OSError, KeyError):
        for line in jsonl.read(run_dir / _METRICS, damaged):
            if line.get("kind") == "start":
                found = {}
                if line.get("start_id") == start_id:
                    found = {"resumed_step": line["first_step"] - 1, "first_s": line["time_s"]}
            elif found:
                found["last_s"] = line["time_s"]
                found["step"] = max(line.get("step", 0), found.get("step", 0))
    return found


def as_event(aftermath: Aftermath) -> dict[str, Any]:
    """For `launch.jsonl`."""
    event = dataclasses.asdict(aftermath)
    return event.pop("reached") | event


if __name__ == "__main__":
    probe.serve(facts)
    sys.stdout.flush()
    os._exit(0)  # a thread of a library must not hold it
