"""Work beside the training: one piece at a time, in a thread of the lowest priority."""

import contextlib
import os
import threading
from collections.abc import Callable

_LOWEST = 19


class Background:
    """At most one piece of work, whose error waits for whoever asks for its end.

    The thread is no daemon: a process that ends by an error, and says so, ends when the work has.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], object]) -> None:
        """Start it; what was begun before must have ended, see `wait`."""
        self._thread = threading.Thread(target=self._run, args=(work,), name="background")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end of the work.

        Raises:
            BaseException: what the work raised, once.
        """
        self.has_ended()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def has_ended(self, timeout_s: float | None = None) -> bool:
        """Wait likewise, and raise nothing; whether it has ended in that time."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def _run(self, work: Callable[[], object]) -> None:
        with contextlib.suppress(OSError):  # a container may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
        try:
            work()
        except BaseException as error:
            self._error = error
