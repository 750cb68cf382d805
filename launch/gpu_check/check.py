"""What all parts of launch/gpu-check.sh share: its environment, data, and this process's device."""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from hvd_nmt.config import Config, command_line
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.diagnosis import checks
from hvd_nmt.hosts import facts
from hvd_nmt.telemetry.gpu import GpuProbe

ENV = os.environ
"""as launch/gpu-check.sh explains it, with all its defaults, and OUT_DIR, WORK and DATA"""
WORK = Path(ENV["WORK"])
STEPS, WARMUP_STEPS = int(ENV["STEPS"]), 5
"""training steps that are measured, and those before them, in which graphs are made"""
PRESETS, PRECISIONS = ENV["PRESETS"].split(), ENV["PRECISIONS"].split()
SEARCH_TOKENS = (4096, 16384)
"""source tokens of a batch: the default of hvd_nmt.translate, and more"""


def started(deterministic: bool = False) -> Any:
    """This process as the only rank, on its device."""
    from hvd_nmt.training import devices, horovod

    rank = horovod.init()
    devices.set_up(rank, config_of(PRESETS[0]).training.device, deterministic)
    return rank


def config_of(preset: str, *more: str) -> Config:
    """A preset on the data of the check, with OPTIONS; `more` may repeat an option."""
    data = ("--data.corpus", "files", "--data.directory", ENV["DATA"])
    words = ["--preset", preset, *data, *ENV["OPTIONS"].split(), *more]
    return command_line.run_config(Config, "launch/gpu-check.sh", "", words)


def vocabulary(data: DataDirectory) -> int:
    """Rows of the embedding, at least as many as the text has pieces."""
    return max(int(ENV["VOCABULARY"]), data.manifest.vocabulary_size)


def sentences(data: DataDirectory) -> list[np.ndarray]:
    """Sources of the training text that are searched, int32 with eos."""
    count = min(int(ENV["SENTENCES"]), len(data.train))
    return [data.train.source[index].astype(np.int32) for index in range(count)]


def energy() -> float | None:
    """Joules that the GPU in use has drawn since the driver was loaded; None if it does not say."""
    index = gpu_in_use()
    return None if index is None else _gpus().sample()[index]["energy_j"]


@functools.cache
def gpu_in_use() -> int | None:
    """NVML's number of the GPU that this process computes with; None without one."""
    import tensorflow as tf

    visible = checks.visible_gpus(facts.gpu({}))
    return visible[0]["index"] if visible and tf.config.get_visible_devices("GPU") else None


@functools.cache
def _gpus() -> GpuProbe:
    """Open as long as this process runs: NVML may take a second to start."""
    return GpuProbe()
