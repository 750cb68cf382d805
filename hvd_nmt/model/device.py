"""Where the computation runs, and in which arithmetic: the GPUs in use, or the processor."""

import contextlib
import os
from collections.abc import Collection

import tensorflow as tf

from hvd_nmt.config import Precision

MOST_SEARCHES = 4
"""batches at once on processors: more would be small, and each converts the weights for itself"""


def is_gpu() -> bool:
    """Whether what is traced now runs on one; a number of it that steers the host is awaited."""
    return bool(tf.config.get_visible_devices("GPU"))


def divide_cores() -> None:
    """Let processors search several batches at once; before TensorFlow computes.

    A step is small: on two cores two searches of one thread do 1.3 to 1.7 times as much as one of
    two, and a lone sentence takes three quarters of its time.
    """
    cores, threading = len(os.sched_getaffinity(0)), tf.config.threading
    if not is_gpu():
        with contextlib.suppress(RuntimeError):  # it has computed
            threading.set_inter_op_parallelism_threads(min(cores, MOST_SEARCHES))
            threading.set_intra_op_parallelism_threads(max(1, cores - MOST_SEARCHES))  # for all


def searches() -> int:
    """How many batches to search at once."""
    set_to = tf.config.threading
    threads = set_to.get_inter_op_parallelism_threads() or set_to.get_intra_op_parallelism_threads()
    return 1 if is_gpu() else min(threads or len(os.sched_getaffinity(0)), MOST_SEARCHES)


def compute_capability() -> tuple[int, ...] | None:
    """CUDA's (major, minor) of the GPU in use, () if it does not tell; None without a GPU."""
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return None
    return tf.config.experimental.get_device_details(gpus[0]).get("compute_capability", ())


def precision(wanted: Precision, cpu_flags: Collection[str] = ()) -> Precision:
    """The arithmetic that was wanted, or for "auto" the one that suits the hardware.

    That is bfloat16 where the GPU (Ampere and later) or the CPU (by its flags) multiplies it faster
    than float32; float16, with loss scaling, on Volta and Turing; else float32.
    """
    if wanted != "auto":
        return wanted
    capability = compute_capability()
    if capability is None:
        return "bfloat16" if {"avx512_bf16", "amx_bf16"}.intersection(cpu_flags) else "float32"
    if capability >= (8, 0):  # Ampere
        return "bfloat16"
    return "float16" if capability >= (7, 0) else "float32"  # Volta
