"""A line on stderr that says how far long work is, how fast, and how long it will take."""

import sys
from typing import Any

from tqdm import tqdm

# In a file, as nohup makes one, a reader wants few lines, and none for what is over at once.
_IN_A_FILE: dict[str, Any] = {
    "delay": 60.0, "mininterval": 60.0, "maxinterval": 60.0,
    "bar_format": "{desc}{n_fmt} of {total_fmt}{unit} [{elapsed}<{remaining}, {rate_fmt}]\n",
}  # fmt: skip


def progress(total: int | None, unit: str, what: str | None = None, done: int = 0) -> tqdm:
    """A bar on a terminal, which goes when the work ends; elsewhere a line a minute.

    `total` is None where nobody knows it. The unit "B" is shown as kB, MB and so on.
    """
    scaled = unit == "B"
    return tqdm(
        total=total,
        desc=f"{what}: " if what else None,
        unit=unit if scaled else f" {unit}",
        unit_scale=scaled,
        initial=done,
        leave=False,
        **({} if sys.stderr.isatty() else _IN_A_FILE),
    )


def print_line(text: str) -> None:
    """A line on stderr that leaves a bar there whole."""
    if sys.stderr.isatty():
        tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr)
