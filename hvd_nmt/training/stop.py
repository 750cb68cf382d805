"""Signals that ask a run to stop."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import tensorflow as tf

from hvd_nmt.training import horovod

_STDERR = 2


class StopRequest:
    """Whether SIGTERM or SIGINT asked this process to stop, and the line that says so at once.

    Python runs a handler between two operations of its own: a step that computes ends first.

    Args:
        announces: whether this rank prints the line.
    """

    LINE = (
        "stopping    asked to by a signal: after this step, or the next, the checkpoint is saved "
        "and the run ends\n"
    )

    def __init__(self, announces: bool) -> None:
        self.requested = False
        """whether a signal has asked this rank"""
        self._announces = announces
        self._previous_handlers: dict[int, Any] = {}

    def listen(self) -> None:
        """From now on signals only ask."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous_handlers[number] = signal.signal(number, self._ask)

    def stop_listening(self) -> None:
        """From now on signals do what they did before."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """From now on signals do nothing: the run is ending, and the launcher hurries its ranks."""
        self._announces = False

    def requested_on_any_rank(self) -> bool:
        """Whether any rank was asked up to now; all ranks must call it."""
        requested = tf.constant(float(self.requested))
        return float(horovod.sum_over_ranks(requested, name="stop")) > 0

    def announce(self) -> None:
        """Print the line, once. `print` cannot: the signal may have come inside of a `print`."""
        if self._announces:
            self._announces = False
            with contextlib.suppress(OSError):  # nobody listens any more
                os.write(_STDERR, self.LINE.encode())

    def _ask(self, number: int, frame: Any) -> None:
        self.requested = True
        if not horovod.rank_is_lost():  # whose launcher then stops the others: nothing is saved
            self.announce()
