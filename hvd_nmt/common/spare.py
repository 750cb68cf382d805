"""A spare: a process that imports what takes long, and becomes a rank when it is needed.

Importing TensorFlow is the longest part of a restart. The agent of a host starts spares while ranks
train; they use only what processor time is left, and read their configuration when they are needed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable

from hvd_nmt.common.rank_environment import SPARE

_NEEDED = b"needed\n"
_began_s: float | None = None


def wait(imports: Callable[[], object]) -> None:
    """Nothing happens in a process that is no spare.

    Args:
        imports: what takes long.
    """
    global _began_s
    if os.environ.pop(SPARE, None) is None:
        return
    _schedule(os.SCHED_IDLE)
    imports()
    if sys.stdin.buffer.readline() != _NEEDED:
        os._exit(0)
    _schedule(os.SCHED_OTHER)
    _began_s = time.time()


def began_s() -> float | None:
    """Unix time at which this process became a rank; None: it was no spare."""
    return _began_s


def _schedule(policy: int) -> None:
    """For all threads, also those of libraries."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setscheduler(int(thread), policy, os.sched_param(0))
