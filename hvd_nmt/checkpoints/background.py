"""Work beside the training, in a thread of the lowest priority."""

import contextlib
import os
import threading
from collections.abc import Callable

_LOWEST = 19


class Background:
    """At most one piece of work, whose error waits for whoever asks for its end.

    Whoever waits for it lends it his priority, where the system allows that. The thread is no
    daemon: a process that ends by an error, and says so, ends when the work has.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], object]) -> None:
        """Start it; what was begun before must have ended, see `wait`."""
        self._thread = threading.Thread(target=self._run, args=(work,), name="background")
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end of the work, and raise once what it raised."""
        self.has_ended()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def has_ended(self, timeout_s: float | None = None) -> bool:
        """Wait likewise, but raise nothing; whether it has ended in that time."""
        thread = self._thread
        if thread is None:
            return True
        if thread.is_alive() and thread.native_id is not None:
            _set_priority(thread.native_id, os.getpriority(os.PRIO_PROCESS, 0))
            thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self, work: Callable[[], object]) -> None:
        _set_priority(threading.get_native_id(), _LOWEST)
        try:
            work()
        except BaseException as error:
            self._error = error


def _set_priority(thread: int, priority: int) -> None:
    with contextlib.suppress(OSError):  # raising it needs a right, and the thread may have ended
        os.setpriority(os.PRIO_PROCESS, thread, priority)
