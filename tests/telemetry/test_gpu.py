"""The GPU probe against the real nvidia-ml-py binding and a made-up NVML library."""

import dataclasses

import pynvml
import pytest

from hvd_nmt.telemetry.gpu import LOST_SAMPLES, TURN_SAMPLES, GpuProbe, gpu_names, spinning


@pytest.mark.parametrize("count", [0, 2])
def test_finds_every_gpu_of_the_host(nvml_library, monkeypatch, count):
    # Neither the rank's share of GPUs nor its number may matter.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("HOROVOD_LOCAL_RANK", "1")
    nvml_library.gpus = count
    probe = GpuProbe()
    assert (probe.unavailable, probe.driver_version, probe.problems) == (None, "535.161.08", [])
    assert [gpu.uuid[-1] for gpu in probe.gpus] == [str(index) for index in range(count)]
    assert [sample.uuid for sample in probe.sample()] == [gpu.uuid for gpu in probe.gpus]
    assert gpu_names() == ["Tesla V100-SXM2-16GB"] * count
    probe.close()
    assert probe.sample() == []


def test_values_carry_their_units(nvml_library):
    nvml_library.gpus = 1
    probe = GpuProbe()
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    assert dataclasses.asdict(probe.gpus[0]) == {
        "index": 0, "uuid": uuid, "name": "Tesla V100-SXM2-16GB", "memory_total_bytes": 16 * 2**30,
    }  # fmt: skip
    first, second, third = (dataclasses.asdict(probe.sample()[0]) for _ in range(3))
    assert first.pop("nvlink_sent_MB_per_s") > 0
    assert first.pop("nvlink_received_MB_per_s") > 0
    assert first == {
        "index": 0, "uuid": uuid, "utilisation_percent": 97, "memory_activity_percent": 40,
        "memory_used_bytes": 10 * 2**30, "power_w": 250.5, "power_limit_w": 300.0,
        "energy_j": 250.5, "sm_clock_mhz": 1380, "throttle_reasons": ["power cap"],
        "temperature_c": 61, "pcie_sent_MB_per_s": 1500.0, "pcie_received_MB_per_s": 3000.0,
        "error": None,
    }  # fmt: skip
    # Energy is a sum since the probe was made; the dear question waits for the GPU's next turn.
    assert [second["energy_j"], third["energy_j"]] == [501.0, 751.5]
    assert second["pcie_sent_MB_per_s"] is second["pcie_received_MB_per_s"] is None


BUSY = {"utilisation_percent": 100, "power_limit_w": 300.0}


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ({**BUSY, "power_w": 90.0, "memory_activity_percent": 3}, True),
        ({**BUSY, "power_w": 164.9, "memory_activity_percent": 9}, True),
        ({**BUSY, "power_w": 165.0, "memory_activity_percent": 9}, False),
        ({**BUSY, "power_w": 90.0, "memory_activity_percent": 10}, False),
        ({**BUSY, "power_w": 280.0, "memory_activity_percent": 60}, False),
        ({**BUSY, "power_w": 90.0, "memory_activity_percent": 3, "utilisation_percent": 89}, False),
        ({**BUSY, "power_w": 90.0, "memory_activity_percent": None}, None),
        ({**BUSY, "memory_activity_percent": 3}, None),
        ({"utilisation_percent": 100, "power_w": 90.0, "memory_activity_percent": 3}, None),
        ({"utilisation_percent": 5}, False),  # whatever the rest says
        ({"utilisation_percent": None, "power_w": 90.0, "power_limit_w": 300.0}, None),
        ({}, None),
    ],
)
def test_a_gpu_that_spins_in_a_collective_looks_busy_but_draws_little(values, answer):
    assert spinning(values) is answer


def test_a_lost_gpu_is_left_alone_and_asked_again_now_and_then(nvml_library):
    nvml_library.gpus, nvml_library.lost_after = 2, {0: 1}
    probe = GpuProbe()
    samples = [probe.sample() for _ in range(2 + LOST_SAMPLES)]
    nvml_library.lost_after = {}
    samples += [probe.sample() for _ in range(2)]
    # One good sample, the loss, then silence; one question shows that it is back.
    lost = [None, *["GPU is lost"] * (1 + LOST_SAMPLES), None, None]
    assert [first.error for first, _ in samples] == lost
    assert {(first.uuid[-1], second.uuid[-1]) for first, second in samples} == {("0", "1")}
    for first, _ in samples[1:-2]:
        assert first.utilisation_percent is first.power_w is first.memory_used_bytes is None
    assert samples[-1][0].power_w == 250.5
    assert nvml_library.asked_of_lost == ["UtilizationRates"]
    assert {(other.error, other.utilisation_percent) for _, other in samples} == {(None, 98)}


def test_the_dear_question_goes_to_one_gpu_at_a_time(nvml_library):
    nvml_library.gpus = 3
    probe = GpuProbe()
    asked = [
        [gpu.pcie_sent_MB_per_s is not None for gpu in probe.sample()]
        for _ in range(2 * TURN_SAMPLES)
    ]
    assert [sum(gpus) for gpus in asked] == ([1, 1, 1] + [0] * (TURN_SAMPLES - 3)) * 2
    assert [sum(gpu) for gpu in zip(*asked, strict=True)] == [2, 2, 2]


def test_without_a_driver_or_its_library_the_reason_is_told(nvml_library, run_python, tmp_path):
    nvml_library.gpus, nvml_library.init = 2, pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    probe = GpuProbe()
    assert probe.unavailable == "no NVML: Driver Not Loaded"
    assert (probe.gpus, probe.sample()) == ((), [])
    # On a machine with a driver the real library must not be found, so a broken one goes first.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    script = """
import json
from hvd_nmt.telemetry.gpu import GpuProbe
probe = GpuProbe()
print(json.dumps([probe.unavailable, probe.sample()]))
"""
    reason = "no NVML: NVML Shared Library Not Found"
    assert run_python(script, LD_LIBRARY_PATH=str(tmp_path)) == [reason, []]
