"""Where the computation runs, and in which arithmetic: the GPUs in use, or the processor."""

from collections.abc import Collection

import tensorflow as tf

from hvd_nmt.config import Precision


def is_gpu() -> bool:
    """Whether what is traced now runs on one; a number of it that steers the host is awaited."""
    return bool(tf.config.get_visible_devices("GPU"))


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
