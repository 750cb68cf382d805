"""What is printed during long work: a line that moves on a terminal, few lines in a file."""

import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any

from hvd_nmt.common.rank_environment import TERMINAL

if TYPE_CHECKING:
    from tqdm import tqdm

COLUMNS = 100
"""width of what is printed"""
MOVES, CLEAR = "\r", "\r\x1b[K"
"""what ends a line that the next one replaces, and what empties the line of a terminal"""
_WRAPPER = textwrap.TextWrapper(
    COLUMNS, subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False
)
# In a file, as nohup makes one, a reader wants few lines, and none for what is over at once.
_IN_A_FILE: dict[str, Any] = {
    "delay": 60.0, "mininterval": 60.0, "maxinterval": 60.0,
    "bar_format": "{desc}{n_fmt} of {total_fmt}{unit} [{elapsed}<{remaining}, {rate_fmt}]\n",
}  # fmt: skip


def progress(
    total: int | None, unit: str, what: str | None = None, done: int = 0, shows: bool = True
) -> "tqdm":
    """A bar on a terminal, which goes when the work ends; elsewhere a line a minute.

    `total` is None where nobody knows it. The unit "B" is shown as kB, MB and so on.
    """
    from tqdm import tqdm  # a fifth of the time of --help

    class Bar(tqdm):
        """Its rate begins with the first update: a graph may have been built before."""

        first: tuple[float, float] | None = None  # what was done then, and when

        def update(self, n: float = 1) -> bool | None:
            if not self.disable:
                self.first = self.first or (self.n + n, self._time())
            return super().update(n)

        @property
        def format_dict(self) -> dict[str, Any]:
            n, time_s = self.first or (self.n, 0.0)
            rate = (self.n - n) / (self._time() - time_s or 1)
            return super().format_dict | {"rate": rate}

    scaled = unit == "B"
    return Bar(
        total=total,
        desc=f"{what}: " if what else None,
        unit=unit if scaled else f" {unit}",
        unit_scale=scaled,
        initial=done,
        leave=False,
        disable=not shows,
        **({} if sys.stderr.isatty() else _IN_A_FILE),
    )


def print_line(text: str) -> None:
    """A line on stderr that leaves a bar there whole."""
    print(CLEAR + text if sys.stderr.isatty() else text, file=sys.stderr)


def announce(what: str) -> None:
    """Says on a terminal what begins and takes long."""
    if sys.stderr.isatty():
        print_line(f"{what} ...")


def say(text: str, moves: bool = False, in_files: bool = True) -> None:
    """Lines of a run's log; on a terminal the next one replaces a line that `moves`."""
    is_launched, is_terminal = TERMINAL in os.environ, sys.stdout.isatty()
    if not moves and (is_launched or is_terminal):
        text = "\n".join(map(_WRAPPER.fill, text.split("\n")))
    if is_launched:
        print(text, end=MOVES if moves else "\n", flush=True)
    elif is_terminal:
        print(moving(text) if moves else CLEAR + text, end="" if moves else "\n", flush=True)
    elif in_files:
        print(text, flush=True)


def moving(line: str) -> str:
    """What replaces the line of a terminal, cut to its width."""
    return CLEAR + line[: shutil.get_terminal_size().columns - 1]
