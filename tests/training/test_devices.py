"""Precision picked from the hardware, and which GPU or how many threads a rank gets."""

import os

import pytest
import tensorflow as tf

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.training import devices
from hvd_nmt.training.horovod import Rank

SKYLAKE = {"avx2", "avx512f", "avx512_vnni"}


@pytest.fixture
def hardware(monkeypatch):
    """Pretends to run on a CPU with flags, and on GPUs of a compute capability."""

    def pretend(flags=frozenset(), capability=None, gpus=1):
        names = [f"GPU:{i}" for i in range(gpus)] if capability is not None else []
        monkeypatch.setattr(devices, "cpu_flags", lambda: set(flags))
        monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: names)
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: names)
        monkeypatch.setattr(
            tf.config.experimental,
            "get_device_details",
            lambda gpu: {"compute_capability": capability} if capability else {},
        )

    return pretend


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        (SKYLAKE, "float32"),
        (set(), "float32"),
        (SKYLAKE | {"avx512_bf16"}, "bfloat16"),
        (SKYLAKE | {"amx_bf16", "amx_tile"}, "bfloat16"),
    ],
)
def test_a_cpu_computes_bfloat16_only_if_it_can(hardware, flags, precision):
    hardware(flags)
    assert devices.pick_precision("auto") == precision


@pytest.mark.parametrize(
    ("capability", "precision"),
    [
        ((6, 1), "float32"),  # Pascal
        ((7, 0), "float16"),  # V100
        ((7, 5), "float16"),  # T4
        ((8, 0), "bfloat16"),  # A100
        ((8, 9), "bfloat16"),  # L4
        ((9, 0), "bfloat16"),  # H100
        ((10, 0), "bfloat16"),  # B200
        ((), "float32"),  # unknown
    ],
)
def test_a_gpu_computes_what_its_tensor_cores_do(hardware, capability, precision):
    hardware({"avx512_bf16"}, capability)  # the CPU's abilities do not count
    assert devices.pick_precision("auto") == precision


@pytest.mark.parametrize("wanted", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("capability", [None, (7, 0), (9, 0)])
def test_an_explicit_wish_wins(hardware, wanted, capability):
    hardware({"avx512_bf16"}, capability)
    assert devices.pick_precision(wanted) == wanted


def test_flags_are_read_from_the_kernel(monkeypatch, tmp_path):
    assert all(isinstance(flag, str) for flag in devices.cpu_flags())
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: x\nflags\t\t: fpu avx512_bf16 sse\n\n")
    monkeypatch.setattr(devices, "Path", lambda name: cpuinfo)
    assert {"fpu", "avx512_bf16", "sse"} <= devices.cpu_flags()
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd\n")  # ARM
    assert devices.cpu_flags() == set()
    cpuinfo.unlink()
    assert devices.cpu_flags() == set()


def rank(local_rank, local_size, host="v100a"):
    return Rank(local_rank, local_size, local_rank, local_size, host)


def test_each_rank_gets_its_own_gpu(hardware, monkeypatch):
    hardware(capability=(7, 0), gpus=2)
    calls = []
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *a: calls.append(a))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda *a: calls.append(a))
    for local_rank in (0, 1):
        devices.set_up(rank(local_rank, 2))
    assert calls == [("GPU:0", "GPU"), ("GPU:0", True), ("GPU:1", "GPU"), ("GPU:1", True)]


def test_more_ranks_than_gpus_is_one_sentence(hardware):
    hardware(capability=(7, 0), gpus=2)
    with pytest.raises(ClusterError, match=r"v100a runs 3 ranks .* 2 GPU.*2 slot"):
        devices.set_up(rank(0, 3))


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(8, 1, 8), (8, 2, 4), (8, 3, 2), (2, 4, 1)]
)
def test_ranks_on_cpus_share_the_cores(hardware, monkeypatch, cores, ranks, threads):
    hardware()
    calls = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", calls.append)
    monkeypatch.setattr(devices, "keep_freed_memory", lambda: calls.append("memory"))
    devices.set_up(rank(0, ranks))
    assert calls == [threads, "memory"]


def test_without_glibc_memory_is_left_alone(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(devices.ctypes, "CDLL", missing)
    devices.keep_freed_memory()
