"""Keeps a rank alive that C++ would abort because a peer is gone.

Gloo throws when a connection ends. Where several groups of ranks have connections, Horovod's thread
throws a second time, out of reach of anything that catches it: C++ then calls `std::terminate`, and
the rank is aborted before it can say who was lost.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

_HANDLER = ctypes.CFUNCTYPE(None)
_SECONDS = 3600.0

_kept: list[ctypes._FuncPointer] = []
"""what C++ has the address of must not be collected"""


def stay_alive_if(condition: Callable[[], bool]) -> None:
    """From now on a thread that would abort this process sleeps instead, where the condition holds.

    Nothing happens where this process has no GNU C++ library.

    Args:
        condition: asked in the thread that failed, any time later.
    """
    try:
        set_handler = ctypes.CDLL("libstdc++.so.6")["_ZSt13set_terminatePFvvE"]
    except (OSError, AttributeError):
        return
    set_handler.restype = _HANDLER
    set_handler.argtypes = [_HANDLER]

    @_HANDLER
    def handle() -> None:
        while condition():
            time.sleep(_SECONDS)
        before()  # prints what was thrown, and aborts

    _kept.append(handle)
    before = set_handler(handle)
