"""The GPU probe against made-up GPUs, and the real nvidia-ml-py where there is no driver."""

import dataclasses
import os

import pynvml
import pytest

from hvd_nmt.telemetry.gpu import GpuProbe, gpu_names, spinning
from toy import python

V100 = {"index": 0, "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "name": "Tesla V100-SXM2-16GB"}  # fmt: skip


@pytest.mark.parametrize("count", [0, 2])
def test_every_gpu_of_the_host_tells_values_in_their_units(nvml_library, monkeypatch, count):
    # Neither the rank's share of GPUs nor its number may matter.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("HOROVOD_LOCAL_RANK", "1")
    nvml_library.gpus = count
    probe = GpuProbe()
    assert probe.unavailable is None
    assert [dataclasses.asdict(gpu) for gpu in probe.gpus[:1]] == [V100][:count]
    assert [gpu.uuid[-1] for gpu in probe.gpus] == [str(index) for index in range(count)]
    samples = probe.sample()
    assert [sample["index"] for sample in samples] == list(range(count))
    assert samples[:1] == [{
        "index": 0, "utilisation_percent": 97, "memory_activity_percent": 40,
        "memory_used_bytes": 10 * 2**30, "power_w": 250.5, "power_limit_w": 300.0,
        "energy_j": 7250.5, "throttle_reasons": ["power cap"], "error": None,
    }][:count]  # fmt: skip
    assert gpu_names() == ["Tesla V100-SXM2-16GB"] * count
    probe.close()


BUSY = {"utilisation_percent": 100, "power_limit_w": 300.0}


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ({**BUSY, "power_w": 164.9, "memory_activity_percent": 9}, True),
        ({**BUSY, "power_w": 165.0, "memory_activity_percent": 9}, False),
        ({**BUSY, "power_w": 90.0, "memory_activity_percent": 10}, False),
        ({**BUSY, "power_w": 90.0, "memory_activity_percent": 3, "utilisation_percent": 89}, False),
        ({**BUSY, "power_w": 90.0, "memory_activity_percent": None}, None),
        ({**BUSY, "memory_activity_percent": 3}, None),
        ({"utilisation_percent": 100, "power_w": 90.0, "memory_activity_percent": 3}, None),
        ({"utilisation_percent": 5}, False),  # whatever the rest says
        ({"utilisation_percent": None, "power_w": 90.0, "power_limit_w": 300.0}, None),
    ],
)
def test_a_gpu_that_spins_in_a_collective_looks_busy_but_draws_little(values, answer):
    assert spinning(values) is answer


def test_a_lost_gpu_is_asked_one_question_at_a_time_until_it_is_back(nvml_library):
    nvml_library.gpus, nvml_library.lost_after = 2, {0: 2}
    probe = GpuProbe()
    samples = [probe.sample() for _ in range(3)]
    nvml_library.lost_after = {}
    samples.append(probe.sample())
    assert [first["error"] for first, _ in samples] == [None, *["GPU is lost"] * 2, None]
    assert {first["power_w"] for first, _ in samples[1:3]} == {None}
    assert nvml_library.asked_of_lost == ["UtilizationRates"] * 2
    assert {(other["error"], other["utilisation_percent"]) for _, other in samples} == {(None, 98)}


MIG = {"UtilizationRates": ("utilisation_percent", "memory_activity_percent")}
YOUNG = {
    "TotalEnergyConsumption": ("energy_j",),
    "EnforcedPowerLimit": ("power_limit_w",),
    "PowerUsage": ("power_w",),
    "CurrentClocksEventReasons": (),  # it has an older name, and that is asked
}


@pytest.mark.parametrize(
    ("silent", "code", "reasons"),
    [
        (MIG, pynvml.NVML_ERROR_NOT_SUPPORTED, ["power cap"]),
        (YOUNG, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, ["thermal"]),
    ],
)
def test_what_a_gpu_or_an_old_driver_does_not_tell_costs_its_own_values(
    nvml_library, silent, code, reasons
):
    nvml_library.gpus, nvml_library.codes = 1, dict.fromkeys(silent, code)
    (sample,) = GpuProbe().sample()
    assert (sample["throttle_reasons"], sample["memory_used_bytes"]) == (reasons, 10 * 2**30)
    untold = {"error"}.union(*silent.values())
    assert {name for name, value in sample.items() if value is None} == untold


def test_without_a_driver_or_its_library_the_reason_is_told(nvml_library, tmp_path):
    nvml_library.gpus, nvml_library.init = 2, pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    probe = GpuProbe()
    assert probe.unavailable == "no NVIDIA driver: Driver Not Loaded"
    assert (probe.gpus, probe.sample()) == ([], [])
    # On a machine with a driver the real library must not be found, so a broken one goes first.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    code = "from hvd_nmt.telemetry.gpu import GpuProbe; print(GpuProbe().unavailable)"
    environment = os.environ | {"LD_LIBRARY_PATH": os.fspath(tmp_path)}
    done = python("-W", "error", "-c", code, env=environment)
    assert done.stdout == "no NVIDIA driver: NVML Shared Library Not Found\n"
