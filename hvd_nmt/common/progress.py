"""A line on stderr that says how far long work is, how fast, and how long it will take."""

import sys
from collections.abc import Callable
from typing import IO, final

from tqdm import tqdm

# In a file, as nohup makes one, a reader wants few lines, and none for what is over at once.
_QUIETLY_S = 60.0
_FORM = "{desc}{percentage:.0f} %, {n_fmt} of {total_fmt}{unit} [{elapsed}<{remaining}, {rate_fmt}]"


def progress(total: int | None, unit: str, what: str | None = None, done: int = 0) -> tqdm:
    """A bar on a terminal, which goes when the work ends; elsewhere a line a minute.

    `total` is None where nobody knows it. The unit "B" is shown as kB, MB and so on.
    """
    bar = tqdm if sys.stderr.isatty() else _Lines
    scaled = unit == "B"
    return bar(
        total=total,
        desc=f"{what}: " if what else None,
        unit=unit if scaled else f" {unit}",
        unit_scale=scaled,
        initial=done,
        leave=False,
    )


def print_line(text: str) -> None:
    """A line on stderr that leaves a bar there whole."""
    if sys.stderr.isatty():
        tqdm.write(text, file=sys.stderr)
    else:
        print(text, file=sys.stderr)


@final
class _Lines(tqdm):
    """A bar whose every state is a line of its own, as a file wants it."""

    def __init__(self, total: int | None, **options: object) -> None:
        pace = {"delay": _QUIETLY_S, "mininterval": _QUIETLY_S, "maxinterval": _QUIETLY_S}
        form = None if total is None else _FORM
        super().__init__(total=total, position=1, bar_format=form, **pace, **options)

    @staticmethod
    def status_printer(file: IO[str]) -> Callable[[str], None]:
        """What shows a state; the empty one, which clears a bar, is none."""
        return lambda state: print(state, file=file, flush=True) if state else None

    def moveto(self, n: int) -> None:
        """There is no other line to go to."""
