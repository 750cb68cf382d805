"""Signals that ask a run to stop."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

_STDERR = 2


class StopRequest:
    """Whether SIGTERM or SIGINT asked this process to stop, and the line that says so at once.

    Python runs a handler between two operations of its own: a step that computes ends first.

    Args:
        speaks: whether this rank says it.
    """

    LINE = (
        "stopping    asked to by a signal: after this step, or the next, the checkpoint is saved "
        "and the run ends\n"
    )

    def __init__(self, speaks: bool) -> None:
        self.asked = False
        self._speaks = speaks
        self._previous: dict[int, Any] = {}

    def listen(self) -> None:
        """From now on signals only ask."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._ask)

    def ignore(self) -> None:
        """From now on signals do what they did before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def say(self) -> None:
        """Say it, but only once. `print` cannot: the signal may have come inside of a `print`."""
        if self._speaks:
            self._speaks = False
            with contextlib.suppress(OSError):  # nobody listens any more
                os.write(_STDERR, self.LINE.encode())

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True
        self.say()
