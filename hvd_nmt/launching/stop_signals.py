"""Signals that ask the launcher to stop."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any, final


@final
class StopSignals:
    """SIGTERM, SIGINT, SIGHUP: the ranks are to save; between two starts they interrupt."""

    def __init__(self) -> None:
        self.requested = False
        """whether one has come"""
        self.wake: Callable[[], None] = lambda: None
        """called when one comes"""
        self._interrupts = 0
        self._interrupting = False

    @property
    def at_once(self) -> bool:
        """Whether SIGINT has come a second time: whoever sent it does not want to wait."""
        return self._interrupts > 1

    def listen(self) -> None:
        """From now on. Ctrl-Z does nothing: ranks would wait for a launcher that stands still."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) == signal.SIG_DFL:  # no nohup
                signal.signal(number, self._ask)
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """In the block they raise KeyboardInterrupt, at its beginning if one has come before."""
        self._interrupting = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._interrupting = False

    def _ask(self, number: int, frame: Any) -> None:
        self.requested = True
        self._interrupts += number == signal.SIGINT
        if self._interrupting:
            self._interrupting = False
            raise KeyboardInterrupt
        self.wake()
