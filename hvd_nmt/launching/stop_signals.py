"""Signals that end a launcher."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, final


@final
class StopSignals:
    """SIGTERM, SIGINT, SIGHUP: the ranks are to save; between two starts they interrupt."""

    def __init__(self) -> None:
        self.requested = False
        """whether one has come"""
        self.at_once = False
        """whether SIGINT has come a second time, from someone who does not want to wait"""
        self._interrupts = 0
        self._interrupting = False

    def listen(self) -> None:
        """Begin. Ctrl-Z then does nothing: ranks would wait for a launcher that stands still."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) == signal.SIG_DFL:  # no nohup
                signal.signal(number, self._note)
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

    def _note(self, number: int, frame: Any) -> None:
        self.requested = True
        self._interrupts += number == signal.SIGINT
        self.at_once = self._interrupts > 1
        if self._interrupting:
            self._interrupting = False
            raise KeyboardInterrupt
