"""Results of launch/gpu-check.sh, written the moment they are known: a page and JSON lines.

    python launch/gpu_check/results.py PART TITLE CELL ...   a row, for the shell; see `main`

Nothing but Python's own library: the peer's environment need not have ours.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, final

PAGE, RECORDS = "gpu-check.md", "gpu-check.jsonl"
LONGEST_ERROR = 300
"""characters of an error that are shown, the last ones"""
SHELL_COLUMNS = ("what", "seconds", "result")


def main() -> None:
    """Write a row of the table TITLE, whose columns are `SHELL_COLUMNS`; no cells: a line."""
    part, title, *cells = sys.argv[1:]
    results = Results(part)
    if not cells:
        results.line(title)
        return
    results.table(title, *SHELL_COLUMNS)
    results.row(*cells, **dict(zip(SHELL_COLUMNS, cells, strict=True)))


def described(error: BaseException) -> str:
    """An error in one line."""
    return f"failed: {' '.join(f'{type(error).__name__}: {error}'.split())[-LONGEST_ERROR:]}"


@final
class Results:
    """What one part of the check has measured; the folder is that of OUT_DIR."""

    def __init__(self, part: str) -> None:
        self._part, self._folder = part, Path(os.environ["OUT_DIR"])
        self._columns: tuple[str, ...] = ()

    def table(self, title: str, *columns: str) -> None:
        """Begin a table, unless it is already there."""
        self._columns = columns
        page = self._folder / PAGE
        head = f"\n### {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n"
        if not page.exists() or head not in page.read_text(encoding="utf-8"):
            self._append(PAGE, head)

    def row(self, *cells: str, **facts: Any) -> None:
        """A row of the table, and the same as a record."""
        filled = [*cells, *[""] * (len(self._columns) - len(cells))]
        plain = (" ".join(cell.split()).replace("|", "/") for cell in filled)
        self._append(PAGE, f"| {' | '.join(plain)} |\n")
        self.record(row=cells[0], **facts)

    def line(self, text: str, **facts: Any) -> None:
        """A sentence, and a record."""
        self._append(PAGE, f"\n{text}\n")
        self.record(line=text, **facts)

    def record(self, **facts: Any) -> None:
        """A JSON line alone."""
        line = {"part": self._part, "time_s": round(time.time(), 1), **facts}
        self._append(RECORDS, json.dumps(line) + "\n")
        print(f"{self._part}: {json.dumps(facts)[:LONGEST_ERROR]}", file=sys.stderr, flush=True)

    def records(self, **wanted: Any) -> list[dict[str, Any]]:
        """The records, of all parts and also of earlier calls, that have these values."""
        path = self._folder / RECORDS
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if wanted.items() <= one.items()]

    def _append(self, name: str, text: str) -> None:
        with (self._folder / name).open("a", encoding="utf-8", errors="replace") as file:
            file.write(text)


if __name__ == "__main__":
    main()
