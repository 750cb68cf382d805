"""A spare: a process that imports what takes long, and becomes a rank when it is needed.

Importing TensorFlow is the longest part of a restart. The agent of a host starts spares while ranks
train; they read their configuration when they are needed, and where memory is short they go first.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hvd_nmt.common.rank_environment import SPARE

_NEEDED = b"needed\n"
_FIRST = "1000"
_began_s: float | None = None


def wait(imports: Callable[[], object]) -> None:
    """Import what takes long, and wait to be needed; a process that is no spare goes on at once."""
    global _began_s
    if os.environ.pop(SPARE, None) is None:
        return
    before = _put_forward(_FIRST)
    imports()
    if sys.stdin.buffer.readline() != _NEEDED:
        os._exit(0)
    _put_forward(before)
    _began_s = time.time()


def began_s() -> float | None:
    """Unix time at which this process became a rank; None: it was no spare."""
    return _began_s


def _put_forward(score: str) -> str:
    """To the kernel, which kills by that where memory is short; returns the score before."""
    path, before = Path("/proc/self/oom_score_adj"), "0"
    with contextlib.suppress(OSError):  # not every container lets it
        before = path.read_text()
        path.write_text(score)
    return before
