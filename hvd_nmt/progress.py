"""A line on stderr that says how far long work is, how fast, and how long it will take."""

from __future__ import annotations

import sys

from tqdm import tqdm

# In a file, as nohup makes one, a reader wants few lines, and none for what is over at once.
_QUIETLY_S = 60.0


def progress(
    total: int | None, unit: str, what: str | None = None, *, done: int = 0, show: bool = True
) -> tqdm:
    """A bar on a terminal, which goes when the work ends; elsewhere a line a minute.

    Args:
        total: how much there is to do; None where nobody knows.
        unit: what is counted, such as "lines"; "B" is shown as kB, MB and so on.
        what: the work, put before the bar.
        done: how much of it was done earlier.
        show: False on ranks that do not speak.
    """
    pace = {"delay": _QUIETLY_S, "mininterval": _QUIETLY_S, "maxinterval": _QUIETLY_S}
    scaled = unit == "B"
    return tqdm(
        total=total,
        desc=what,
        unit=unit if scaled else f" {unit}",
        unit_scale=scaled,
        initial=done,
        leave=False,
        disable=not show,
        **({} if sys.stderr.isatty() else pace),
    )


def remark(text: str) -> None:
    """A line on stderr that leaves a bar there whole."""
    if sys.stderr.isatty():
        tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr)
