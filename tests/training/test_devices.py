"""Precision picked from the hardware, and which GPU or how many threads a rank gets."""

import contextlib
import os
import re

import pytest
import tensorflow as tf

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.training import devices
from hvd_nmt.training.horovod import Rank


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
    ("flags", "capability", "picked"),
    [
        (set(), None, "float32"),
        ({"fpu", "avx512_bf16"}, None, "bfloat16"),
        ({"fpu", "avx512_bf16"}, (7, 0), "float16"),  # the CPU's abilities do not count
        ({"fpu", "avx512_bf16"}, (), "float32"),  # the GPU does not tell its own
    ],
)
def test_precision_is_picked_from_the_device_of_the_rank(hardware, flags, capability, picked):
    hardware(flags, capability)
    assert devices.pick_precision("auto") == picked
    assert devices.pick_precision("bfloat16") == "bfloat16"


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


def test_cpu_hides_the_gpus_and_deterministic_kernels_are_asked_for(hardware, monkeypatch):
    hardware(capability=(7, 0), gpus=2)
    said = []
    experimental = tf.config.experimental
    monkeypatch.setattr(experimental, "enable_op_determinism", lambda: said.append("determinism"))
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *a: said.append(a))
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", lambda n: None)
    monkeypatch.setattr(devices, "keep_freed_memory", lambda: None)
    devices.set_up(rank(0, 3), "cpu")
    assert said == [([], "GPU")]
    devices.set_up(rank(0, 3), "cpu", deterministic=True)
    assert said[1:] == ["determinism", ([], "GPU")]


def test_ranks_on_the_processor_do_not_share_a_gpu(hardware, monkeypatch):
    """One GPU that all of them could have, and none has."""
    hardware(capability=(7, 0), gpus=1)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [])
    monkeypatch.setattr(devices, "_gpu_uuid", lambda number: "b")
    said = []
    monkeypatch.setattr(devices.horovod, "gather", lambda value: said.append(value) or [value] * 2)
    monkeypatch.setattr(devices.horovod, "raise_on_all_ranks", contextlib.nullcontext)
    devices.require_gpu_of_its_own(rank(0, 2))
    assert said == [["v100a", None]]


@pytest.fixture
def two_cards(nvml_library, monkeypatch):
    """Two GPUs that NVML knows and TensorFlow here does not find."""
    nvml_library.gpus = 2
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", lambda n: None)
    monkeypatch.setattr(devices, "keep_freed_memory", lambda: None)


@pytest.mark.parametrize("built", [False, True])
def test_gpus_that_tensorflow_cannot_use_are_one_sentence(two_cards, monkeypatch, built):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"is_cuda_build": built})
    with pytest.raises(ClusterError) as raised:
        devices.set_up(rank(0, 2), "auto")
    why = "" if built else r" \(this one was built without CUDA\)"
    words = rf"v100a has 2 GPUs \(Tesla V100.*\) that TensorFlow cannot use{why}: .*dso_loader"
    assert re.match(words, str(raised.value))
    assert "--training.device cpu" in str(raised.value)


@pytest.mark.parametrize(
    ("device", "hidden"),
    [("cpu", None), (None, None), ("auto", ""), ("auto", "-1"), ("auto", "NoDevFiles")],
)
def test_gpus_that_nobody_wants_do_not_matter(two_cards, monkeypatch, device, hidden):
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *a: None)
    devices.set_up(rank(0, 1), device)


def test_more_ranks_than_gpus_is_one_sentence(hardware):
    hardware(capability=(7, 0), gpus=2)
    with pytest.raises(ClusterError, match=r"v100a runs 3 ranks .* 2 GPU.*2 slot"):
        devices.set_up(rank(0, 3))


@pytest.mark.parametrize("shared", [False, True])
def test_one_visible_gpu_for_each_rank(hardware, monkeypatch, shared):
    """As Slurm shows them to its tasks: each is number 0 there, and they are different ones."""
    hardware(capability=(7, 0), gpus=1)
    taken = []
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *a: taken.append(a))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda *a: None)
    devices.set_up(rank(1, 2))
    assert taken == [("GPU:0", "GPU")]

    monkeypatch.setattr(devices, "_gpu_uuid", lambda number: "b")
    other = "b" if shared else "a"
    answers = iter([[["v100a", other], ["v100a", "b"], ["v100b", other]]])
    monkeypatch.setattr(devices.horovod, "gather", lambda value: next(answers))
    monkeypatch.setattr(devices.horovod, "raise_on_all_ranks", contextlib.nullcontext)
    refusal = pytest.raises(ClusterError, match=r"^v100a runs 2 ranks on one GPU")
    with refusal if shared else contextlib.nullcontext():
        devices.require_gpu_of_its_own(rank(1, 2))


def test_a_gpu_for_which_tensorflow_has_no_code_is_one_sentence(hardware, monkeypatch):
    """One that it runs on, and one of which it does not say so, is taken."""
    hardware(capability=(5, 2))
    taken, built = [], {}
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: built)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *a: taken.append(a))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda *a: None)
    devices.set_up(rank(0, 1))
    built["cuda_compute_capabilities"] = ["sm_50"]
    devices.set_up(rank(0, 1))
    built["cuda_compute_capabilities"] = ["sm_60", "compute_90"]
    words = r"no code for the GPU of v100a \(compute capability 5\.2\): .*CUDA_VISIBLE_DEVICES"
    with pytest.raises(ClusterError, match=words):
        devices.set_up(rank(0, 1))
    assert taken == [("GPU:0", "GPU")] * 2


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
