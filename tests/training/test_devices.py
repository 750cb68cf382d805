"""Which GPU or how many threads a rank gets."""

import os
import re

import pytest
import tensorflow as tf

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.training import devices
from hvd_nmt.training.horovod import Rank


@pytest.fixture
def hardware(monkeypatch):
    """Pretends to be on GPUs; gives what TensorFlow and glibc are told."""
    told = []
    for owner, name in (
        (tf.config, "set_visible_devices"),
        (tf.config.experimental, "set_memory_growth"),
        (tf.config.experimental, "enable_op_determinism"),
        (tf.config.threading, "set_intra_op_parallelism_threads"),
        (devices, "keep_freed_memory"),
    ):
        monkeypatch.setattr(owner, name, lambda *words, name=name: told.append((name, *words)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def pretend(gpus=0):
        names = [f"GPU:{i}" for i in range(gpus)]
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: names)
        return told

    return pretend


def rank(local_rank, local_size, host="v100a"):
    return Rank(local_rank, local_size, local_rank, local_size, host)


@pytest.mark.parametrize("number", [0, 1])
def test_each_rank_gets_its_own_gpu(hardware, number):
    told = hardware(gpus=2)
    devices.set_up(rank(number, 2))
    gpu = f"GPU:{number}"
    assert told == [("set_visible_devices", gpu, "GPU"), ("set_memory_growth", gpu, True)]


def test_cpu_hides_the_gpus_and_deterministic_kernels_are_asked_for(hardware):
    told = hardware(gpus=2)
    devices.set_up(rank(0, 3), "cpu", deterministic=True)
    assert told[:2] == [("enable_op_determinism",), ("set_visible_devices", [], "GPU")]
    assert told[3:] == [("keep_freed_memory",)]


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 4, 1)]
)
def test_ranks_on_cpus_share_the_cores(hardware, monkeypatch, cores, ranks, threads):
    told = hardware()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    devices.set_up(rank(0, ranks))
    assert told == [("set_intra_op_parallelism_threads", threads), ("keep_freed_memory",)]


@pytest.mark.parametrize("built", [False, True])
def test_gpus_that_tensorflow_cannot_use_are_one_sentence(
    hardware, nvml_library, monkeypatch, built
):
    nvml_library.gpus = 2
    hardware()
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"is_cuda_build": built})
    with pytest.raises(ClusterError) as raised:
        devices.set_up(rank(0, 2), "auto")
    why = "" if built else r" \(this one was built without CUDA\)"
    words = rf"v100a has 2 GPUs \(Tesla V100.*\) that TensorFlow cannot use{why}\. .*dso_loader"
    assert re.match(words, str(raised.value))
    assert "--training.device cpu" in str(raised.value)


@pytest.mark.parametrize(
    ("device", "hidden"), [("cpu", None), ("auto", ""), ("auto", "-1"), ("auto", "NoDevFiles")]
)
def test_gpus_that_nobody_wants_do_not_matter(hardware, nvml_library, monkeypatch, device, hidden):
    nvml_library.gpus = 2
    told = hardware()
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    devices.set_up(rank(0, 1), device)
    assert told[-1] == ("keep_freed_memory",)


@pytest.mark.parametrize("gpus", [1, 2])
def test_more_ranks_than_gpus_is_one_sentence(hardware, gpus):
    hardware(gpus=gpus)
    with pytest.raises(ClusterError, match=rf"v100a runs 3 ranks, .* {gpus} GPU.*{gpus} slot"):
        devices.set_up(rank(0, 3))


def test_one_visible_gpu_for_each_rank(hardware, monkeypatch):
    """As Slurm shows them to its tasks: each is number 0 there, and they are different ones."""
    told = hardware(gpus=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    devices.set_up(rank(1, 2))
    assert told[0] == ("set_visible_devices", "GPU:0", "GPU")
