"""How far a start of the ranks came, as the records of its run tell it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from hvd_nmt.telemetry import jsonl

_METRICS = "metrics.jsonl"


def reached(run_dir: Path, start_id: str) -> dict[str, Any]:
    """The first and the last step of a start, and when they were recorded, in unix time.

    Args:
        run_dir: of the run.
        start_id: of the start.

    Returns:
        `resumed_step`, `first_s`, `step` and `last_s`; {} if it came to no step.
    """
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, LookupError, TypeError, ValueError):
        for line in jsonl.read(run_dir / _METRICS):
            if line.get("kind") == "start":
                found = {}
                if line.get("start_id") == start_id:
                    found = {"resumed_step": line["first_step"] - 1, "first_s": line["time_s"]}
            elif found:
                found["last_s"] = line["time_s"]
                found["step"] = max(line.get("step", 0), found.get("step", 0))
    return found
