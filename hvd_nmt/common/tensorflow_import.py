"""TensorFlow's import: quiet, and done ahead by a spare, which becomes a rank when it is needed.

It is the longest part of a restart. A host's agent starts spares; they read no file until needed.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.common.jsonl import uptime_s
from hvd_nmt.common.progress import announce
from hvd_nmt.common.rank_environment import SPARE

_NEEDED = b"needed\n"
began_s: float | None = None
"""unix time at which this process, a spare or that of a notebook, became a rank"""


def import_tensorflow() -> None:
    """Import TensorFlow, which takes seconds: not before --help, nor before a mistyped option.

    Meanwhile standard error goes nowhere: CUDA libraries complain about each other on every import,
    GPU or not, before any log level applies. ClusterError: the import fails.
    """
    if "tensorflow" not in sys.modules:
        announce("importing TensorFlow")
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import tensorflow  # noqa: F401
    except ImportError as error:
        remedy = "run `make install` again, or install the library that is missing"
        raise ClusterError(f"TensorFlow cannot be imported ({error}): {remedy}.") from error
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def wait_as_spare(imports: Callable[[], object]) -> None:
    """Import what takes long, and wait to be needed; a process that is no spare does neither."""
    global began_s
    if os.environ.pop(SPARE, None) is None:
        return
    imports()
    if sys.stdin.buffer.readline() != _NEEDED:
        os._exit(0)
    began_s = time.time()


def process_started_s() -> float:
    """Unix time at which this process began to run, or to be a rank; psutil is up to 1 s off."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return began_s or time.time() - uptime_s() + ticks / os.sysconf("SC_CLK_TCK")
