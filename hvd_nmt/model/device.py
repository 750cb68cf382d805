"""Where the computation runs: what is cheap on a CPU makes the host wait for a GPU."""

import tensorflow as tf


def is_gpu() -> bool:
    """Whether what is traced now runs on one; a number of it that steers the host is awaited."""
    return bool(tf.config.get_visible_devices("GPU"))


def compute_capability() -> tuple[int, ...] | None:
    """CUDA's (major, minor) of the GPU in use, () if it does not tell; None without a GPU."""
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return None
    return tf.config.experimental.get_device_details(gpus[0]).get("compute_capability", ())
