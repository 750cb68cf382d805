"""GPU and thread settings of this rank, and the precision its hardware is good at."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import tensorflow as tf

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.config import Precision
from hvd_nmt.training.horovod import Rank

_BF16_CPU_FLAGS = {"avx512_bf16", "amx_bf16"}
_AMPERE, _VOLTA = (8, 0), (7, 0)


def set_up(rank: Rank) -> None:
    """Give this rank its GPU, or its share of the cores. Must run before TensorFlow computes.

    Raises:
        ClusterError: this host has GPUs, but fewer than ranks.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        if rank.local_size > len(gpus):
            raise ClusterError(
                f"{rank.host} runs {rank.local_size} ranks but TensorFlow sees {len(gpus)} GPU(s) "
                f"there: start it with {len(gpus)} slot(s)."
            )
        tf.config.set_visible_devices(gpus[rank.local_rank], "GPU")
        tf.config.experimental.set_memory_growth(gpus[rank.local_rank], True)
    else:
        cores = len(os.sched_getaffinity(0))
        tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // rank.local_size))
        keep_freed_memory()


def keep_freed_memory() -> None:
    """Ask glibc to keep freed memory for the next step instead of returning it to the kernel.

    A training step on a CPU frees and takes the same hundreds of megabytes each time; by default
    every large tensor is a fresh mapping whose pages the kernel has to clear.
    """
    try:
        libc = ctypes.CDLL("libc.so.6")
    except OSError:
        return  # not glibc: nothing to ask
    m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
    libc.mallopt(m_mmap_threshold, 1 << 30)
    libc.mallopt(m_trim_threshold, (1 << 31) - 1)
    libc.mallopt(m_top_pad, 64 << 20)


def pick_precision(wanted: Precision) -> str:
    """The arithmetic of the forward and backward pass.

    Args:
        wanted: a precision, or "auto".

    Returns:
        "bfloat16" where the GPU (Ampere and later) or the CPU (avx512_bf16, AMX) multiplies
        bfloat16 faster than float32; "float16", with loss scaling, on Volta and Turing; "float32"
        elsewhere.
    """
    if wanted != "auto":
        return wanted
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        capability = tf.config.experimental.get_device_details(gpus[0]).get(
            "compute_capability", (0, 0)
        )
        return (
            "bfloat16"
            if capability >= _AMPERE
            else "float16"
            if capability >= _VOLTA
            else "float32"
        )
    return "bfloat16" if _BF16_CPU_FLAGS & cpu_flags() else "float32"


def cpu_flags() -> set[str]:
    """Instruction-set flags of this host's processor, as the kernel names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith("flags")), set())
