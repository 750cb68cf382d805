"""What the follower needs of a library that shows runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Line = dict[str, Any]
"""a line of metrics.jsonl that is about a step"""


class TrackedRun(ABC):
    """One run, in whatever the library keeps it. Every method may raise anything, or hang."""

    run_id: str
    """by which a resumed run finds it again"""
    lasts_after_s: float = 0.0
    """how long the library may hold what it was sent in memory alone"""
    takes_no_files: Exception | None = None
    """why files and texts do not arrive, although values do"""

    @abstractmethod
    def describe(self, config: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Show what was asked for; values may have changed since the run was started.

        Args:
            config: dotted name -> value.
            files: what else explains the run, kept as files.
        """

    @abstractmethod
    def send(self, lines: Sequence[Line]) -> None:
        """Add lines of kind train, eval or text; twice the same must not show twice, if possible.

        Args:
            lines: in the order of writing.
        """

    @abstractmethod
    def end(self, finished: bool, report: Path | None) -> None:
        """Say that nothing comes any more, from this start.

        Args:
            finished: whether the run came to its end; else it was stopped.
            report: its report, if there is one.
        """


def scalars(line: Line) -> dict[str, float]:
    """The values of a line that TensorBoard shows, too, with their margins.

    The event store writes them as floats, and what only a program reads as something else.
    """
    return {
        name: value
        for name, value in line.items()
        if isinstance(value, float) and name not in ("time_s", "step")
    }


def texts(line: Line) -> dict[str, str]:
    """The texts of a line of kind text, as Markdown, by tag."""
    return {tag: text for tag, text in line.items() if tag != "kind" and isinstance(text, str)}
