"""scores.jsonl of a run: what `evaluate` has measured of its checkpoints, on which text."""

import contextlib
import json
from pathlib import Path
from typing import Any

from hvd_nmt.telemetry import jsonl

FILE = "scores.jsonl"


def add(run: Path, scores: dict[str, Any]) -> None:
    """Append the scores of a checkpoint, where the run's directory can be written."""
    with contextlib.suppress(OSError), (run / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(scores, ensure_ascii=False) + "\n")


def of(run: Path, sha256: str) -> list[dict[str, Any]]:
    """The newest scores on each text of the checkpoint whose data file has this SHA-256."""
    lines = (line for line in jsonl.read(run / FILE, []) if line.get("sha256") == sha256)
    return list({(line["text"], line["sentences"]): line for line in lines}.values())
