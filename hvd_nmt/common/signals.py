"""What SIGTERM and SIGINT do to a command, and how long a rank then has."""

import contextlib
import ctypes
import math
import os
import signal
from collections.abc import Iterator

from hvd_nmt.common.errors import ConfigError

EXIT_CODE_BASE = 128
"""exit code of a killed process, less the number of the signal, as shells have it"""
_libc = ctypes.CDLL(None)


def grace_s() -> float:
    """Seconds for a rank to save and end before it is killed; ConfigError: they are none."""
    text = os.environ.get("HVD_NMT_GRACE_S", "60")
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) < math.inf:
            return seconds
    raise ConfigError(f"HVD_NMT_GRACE_S is {text!r}: set it to a number of seconds.")


def signal_name(number: int) -> str:
    """Name of a signal, such as SIGKILL; those for real time have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_with_parent(parent: int) -> None:
    """In a new child: the kernel kills it when its parent ends, however that ends."""
    _libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it has ended before
        os._exit(1)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """After the block the signals do what they did before it."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # else it was not set by Python, and Python cannot set it
                signal.signal(number, handler)
