"""Signals that ask a run to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any

import tensorflow as tf

from hvd_nmt.training import horovod

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STDERR = 2
_INTERRUPTED = 130
_LOSS_S = 0.5
"""for the loss of a rank to be noticed here"""
_AT_ONCE = "hvd_nmt.train: interrupted; the same command goes on from the last checkpoint saved.\n"


class StopRequest:
    """Whether SIGTERM or SIGINT asked this process to stop, and the line that says so at once.

    Python runs a handler between two operations of its own, and a step is one: the line comes from
    a thread that the signal wakes, and a second SIGINT, from whoever does not want to wait, ends
    the process there. A second SIGTERM does nothing: launchers send it more than once.
    """

    LINE = (
        "stopping    asked to by a signal: the run ends after this step, or the next, and says so "
        "when its checkpoint is saved; a second Ctrl-C ends it at once\n"
    )

    def __init__(self, announces: bool) -> None:
        self.requested = False
        """whether a signal has asked this rank"""
        self._lines = [self.LINE] if announces else []
        self._before: tuple[dict[int, Any], int] | None = None
        self._wakes: int | None = None

    def listen(self) -> None:
        """From now on signals only ask; harmless when it listens already."""
        if self._before is not None:
            return
        woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)  # as `set_wakeup_fd` demands
        handlers: dict[int, Any] = {n: signal.signal(n, self._ask) for n in _SIGNALS}
        self._before = handlers, signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        threading.Thread(target=self._answer, args=(woken,), name="signals", daemon=True).start()

    def stop_listening(self) -> None:
        """From now on signals do what they did before; harmless when it never listened."""
        self._end_listening((signal.SIGTERM, signal.SIGINT))

    def hold_back(self) -> None:
        """After an error: SIGTERM does nothing any more, and SIGINT what it did before.

        When one rank has ended, the launcher sends SIGTERM to the others, which must not keep the
        first from its sentence. `common.signals.restored` ends this.
        """
        self._end_listening((signal.SIGINT,))
        signal.signal(signal.SIGTERM, _nothing)

    def agreed(self, ends: bool = False) -> tuple[bool, bool]:
        """Whether any rank was asked up to now, and whether any wants to end; for all ranks.

        `ends` says that this rank wants the run to end, with nothing left to do.
        """
        wishes = tf.constant([float(self.requested), float(ends)])
        asked, enough = horovod.sum_over_ranks(wishes, name="stop").numpy() > 0
        return bool(asked), bool(enough)

    def announce(self) -> None:
        """Print the line, once. `print` cannot: the signal may have come inside of a `print`."""
        with contextlib.suppress(IndexError, OSError):  # said already; nobody listens any more
            os.write(_STDERR, self._lines.pop().encode())

    def _ask(self, number: int, frame: Any) -> None:
        self.requested = True

    def _answer(self, woken: int) -> None:
        """In a thread, until `stop_listening` closes the other end of the pipe."""
        interrupts = 0
        while number := int.from_bytes(os.read(woken, 1), "big"):
            interrupts += number == signal.SIGINT
            if interrupts > 1:
                with contextlib.suppress(OSError):
                    os.write(_STDERR, _AT_ONCE.encode())
                os._exit(_INTERRUPTED)
            if number in _SIGNALS:
                # horovodrun sends it when another rank is gone; then nothing is saved.
                time.sleep(_LOSS_S)
                if horovod.heartbeat.is_lost:
                    continue
                self.announce()
        os.close(woken)

    def _end_listening(self, restored: tuple[int, ...]) -> None:
        if self._before is None or self._wakes is None:
            return
        handlers, wakeup = self._before
        self._before = None
        signal.set_wakeup_fd(wakeup)
        os.close(self._wakes)
        for number in restored:
            signal.signal(number, handlers[number])


def _nothing(number: int, frame: Any) -> None:
    """Not SIG_IGN, which a process that is started now would inherit."""
