"""Which GPUs TensorFlow can use here, and what keeps it from the others.

TensorFlow says why only to its log, and only where a process first looks for GPUs. So a process of
its own looks, and its log is read. No TensorFlow in this one.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys

_LOOK = """
import tensorflow as tf
built = tf.sysconfig.get_build_info()
print("GPUS", len(tf.config.list_physical_devices("GPU")), bool(built["is_cuda_build"]))
"""
_LIBRARY = re.compile(r"Could not load dynamic library '([^']+)'")
_COMPLAINT = re.compile(r"^[WEF]\d{4}.*?\] (.*(?:CUDA|cuInit|GPU).*)$", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class TensorFlowGpus:
    """What a new TensorFlow process finds."""

    count: int
    """GPUs that it can use"""
    why: str
    """what it says of the others; empty: nothing"""


def look(timeout_s: float = 120.0) -> TensorFlowGpus:
    """Start TensorFlow and let it look for GPUs; takes some seconds.

    Raises:
        OSError: it did not end well, or in time.
    """
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "dso_loader=1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOOK], env=env, capture_output=True, text=True,
            errors="replace", timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(f"TensorFlow did not start within {timeout_s:g} s") from None
    found = re.search(r"^GPUS (\d+) (\w+)$", done.stdout, re.MULTILINE)
    if not found:
        last = done.stderr.strip().splitlines()[-1:] or ["no word"]
        raise OSError(f"TensorFlow does not start: {last[0]}")
    return TensorFlowGpus(int(found[1]), _why(done.stderr, found[2] == "True"))


def _why(log: str, built_with_cuda: bool) -> str:
    if not built_with_cuda:
        return "this TensorFlow was built without CUDA"
    missing = dict.fromkeys(_LIBRARY.findall(log))
    if missing:
        return f"it cannot load {', '.join(missing)}"
    return next(iter(_COMPLAINT.findall(log)), "")
