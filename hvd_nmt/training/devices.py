"""GPU and thread settings of this rank, and its memory."""

import contextlib
import ctypes
import os
import re
import resource
from collections.abc import Iterator

import tensorflow as tf

from hvd_nmt.common.errors import ClusterError, ConfigError
from hvd_nmt.common.units import count
from hvd_nmt.telemetry.gpu import gpu_names
from hvd_nmt.training.horovod import Rank

_TOO_LITTLE_MEMORY = re.compile(
    "OOM when allocating|failed to allocate memory|out.of.memory|Dst tensor is not initialized",
    re.IGNORECASE,
)
"""in messages of TensorFlow, CUDA and NCCL; "resource exhausted" is also said of full disks"""
_NAMES_A_GPU = re.compile(r"(^|,)\s*(\d|GPU-|MIG-)")
_SMALLER_STEPS = (
    "start with more ranks or more --training.micro-batches, or with a lower "
    "--training.tokens-per-step or a smaller model in a new --run-dir."
)


def set_up(rank: Rank, wanted: str = "auto", deterministic: bool = False) -> None:
    """Give this rank its GPU, or its share of the cores. Must run before TensorFlow computes.

    Raises ClusterError if this host has GPUs, but fewer than ranks, or TensorFlow cannot use them.
    """
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    gpus = tf.config.list_physical_devices("GPU")
    if wanted == "cpu":
        tf.config.set_visible_devices([], "GPU")
        gpus = []
    elif not gpus:
        _require_no_gpu(rank.host)
    if not gpus:
        with contextlib.suppress(RuntimeError):  # a notebook has computed before, with all cores
            tf.config.threading.set_intra_op_parallelism_threads(_threads(rank))
        keep_freed_memory()
        return
    # One for several ranks may be a GPU for each: Slurm shows each task its own by this variable.
    one_each = len(gpus) == 1 and "CUDA_VISIBLE_DEVICES" in os.environ
    if rank.local_size > len(gpus) and not one_each:
        raise ClusterError(
            f"{rank.host} runs {rank.local_size} ranks, but TensorFlow sees "
            f"{count(len(gpus), 'GPU')} there: give this host {count(len(gpus), 'slot')}."
        )
    gpu = gpus[rank.local_rank if len(gpus) > 1 else 0]
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)


def _threads(rank: Rank) -> int:
    return max(1, len(os.sched_getaffinity(0)) // rank.local_size)


def _require_no_gpu(host: str) -> None:
    """See that TensorFlow finds no GPU because there is none: it trains on the CPU without a word.

    Who hides them with CUDA_VISIBLE_DEVICES wants it so.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None and not _NAMES_A_GPU.search(chosen):  # "", "-1", Slurm's "NoDevFiles"
        return
    if names := gpu_names():
        built = tf.sysconfig.get_build_info()["is_cuda_build"]
        why = "" if built else " (this one was built without CUDA)"
        raise ClusterError(
            f"{host} has {count(len(names), 'GPU')} ({', '.join(dict.fromkeys(names))}) that "
            f"TensorFlow cannot use{why}. `CUDA_WHEELS=1 make install` there brings CUDA and "
            "cuDNN, nvidia-smi shows the driver. The reason is printed by "
            "`TF_CPP_MIN_LOG_LEVEL=0 TF_CPP_VMODULE=dso_loader=1 python -c 'import tensorflow as "
            "tf; tf.config.list_physical_devices()'`. --training.device cpu uses no GPU."
        )


def keep_freed_memory() -> None:
    """Ask glibc to keep freed memory for the next step instead of returning it to the kernel.

    A step on a CPU takes the same hundreds of megabytes each time; by default every large tensor is
    a fresh mapping whose pages the kernel has to clear.
    """
    with contextlib.suppress(OSError):  # not glibc: nothing to ask
        libc = ctypes.CDLL("libc.so.6")
        m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
        libc.mallopt(m_mmap_threshold, 1 << 30)
        libc.mallopt(m_trim_threshold, (1 << 31) - 1)
        libc.mallopt(m_top_pad, 64 << 20)


def description(rank: Rank) -> str:
    """What this rank computes with, for a reader."""
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return f"CPU, {count(_threads(rank), 'thread')}"
    return str(tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU"))


def peak_memory_bytes() -> int:
    """Most memory that this rank has held: on its GPU if it has one, else as a process."""
    if tf.config.get_visible_devices("GPU"):
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def is_of_memory(error: Exception) -> bool:
    """Whether an error of TensorFlow or Python says that there was too little memory."""
    return isinstance(error, MemoryError) or bool(_TOO_LITTLE_MEMORY.search(str(error)))


@contextlib.contextmanager
def explain_memory(rank: Rank, remedy: str = _SMALLER_STEPS) -> Iterator[None]:
    """Say in a ConfigError that there is too little memory, on the GPU or the host."""
    try:
        yield
    except (tf.errors.OpError, MemoryError) as error:
        if not is_of_memory(error):
            raise
        on_gpu = tf.config.get_visible_devices("GPU") and "device:CPU:" not in str(error)
        what = "its GPU has" if on_gpu else "there is"
        raise ConfigError(
            f"Rank {rank.index} on {rank.host} needs more memory than {what}: {remedy}"
        ) from error
