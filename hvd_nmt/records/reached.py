"""How far a start came. An agent imports this, so it is light."""

from collections.abc import Iterable, Mapping
from typing import Any


def reached(lines: Iterable[Mapping[str, Any]], start_id: str) -> dict[str, int]:
    """How far a start came: `resumed_step` and, if further, `step`; {}: it did not begin."""
    found: dict[str, int] = {}
    is_own = False
    for line in lines:
        if line["kind"] == "start":
            is_own = line.get("start_id") == start_id
            if is_own:
                found = {"resumed_step": line["first_step"] - 1}
        elif is_own and "step" in line:
            found["step"] = max(line["step"], found.get("step", 0))
    return found
