"""How far a start came. An agent imports this, so it is light."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def reached(lines: Iterable[Mapping[str, Any]], start_id: str) -> dict[str, Any]:
    """How far a start came, by the lines of metrics.jsonl: the values of an `end` in launch.jsonl.

    Returns `resumed_step`, `first_s`, and, if it came further, `last_s` and `step`; {} if it did
    not begin.
    """
    found: dict[str, Any] = {}
    is_own = False
    for line in lines:
        if line["kind"] == "start":
            is_own = line.get("start_id") == start_id
            if is_own:
                found = {"resumed_step": line["first_step"] - 1, "first_s": line["time_s"]}
        elif is_own:
            found["last_s"] = line["time_s"]
            if "step" in line:
                found["step"] = max(line["step"], found.get("step", 0))
    return found
