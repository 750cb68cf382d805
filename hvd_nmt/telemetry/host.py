"""CPU and memory of this host."""

import os
import platform
from pathlib import Path
from typing import Any

import psutil

from hvd_nmt.common import spare


def host_facts() -> dict[str, Any]:
    """What this host is, for the head of its file."""
    return {
        "kernel": platform.release(),
        # ARM's cpuinfo has no model name.
        "cpu_model": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_total_bytes": psutil.virtual_memory().total,
    }


def host_sample() -> dict[str, float]:
    """CPU use since this thread's call before, 0 to 100 over all cores, and the memory now."""
    memory = psutil.virtual_memory()
    return {
        "cpu_percent": psutil.cpu_percent(),
        "memory_used_bytes": memory.total - memory.available,
    }


def process_started_s() -> float:
    """Unix time, right to about a second, at which this process began to run, or to be a rank."""
    return spare.began_s() or psutil.Process().create_time()


def cpu_flags() -> set[str]:
    """Instruction-set flags of this host's processor, as the kernel names them."""
    return set(_cpuinfo("flags").split())


def _cpuinfo(wanted: str) -> str:
    """What the kernel says of the first processor under some key; "" where it says nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    values = (line.partition(":")[2] for line in lines if line.partition(":")[0].strip() == wanted)
    return next(values, "").strip()
