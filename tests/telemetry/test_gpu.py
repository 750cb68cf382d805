"""The GPU probe against the real nvidia-ml-py binding and a made-up NVML library."""

import dataclasses

import pynvml
import pytest

from hvd_nmt.telemetry.gpu import LOST_SAMPLES, GpuProbe, energy_j_of, gpu_names, spinning


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
    assert first == {
        "index": 0, "uuid": uuid, "utilisation_percent": 97, "memory_activity_percent": 40,
        "memory_used_bytes": 10 * 2**30, "power_w": 250.5, "power_limit_w": 300.0,
        "energy_j": 250.5, "throttle_reasons": ["power cap"], "error": None,
    }  # fmt: skip
    # Energy is a sum since the probe was made.
    assert [second["energy_j"], third["energy_j"]] == [501.0, 751.5]
    assert energy_j_of("0" * 32) > 7000
    assert energy_j_of("1" * 32) is None


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


def test_a_gpu_in_mig_mode_does_not_tell_its_use(nvml_library):
    nvml_library.gpus, nvml_library.mig = 2, 0
    split, whole = GpuProbe().sample()
    assert (split.utilisation_percent, split.error) == (None, None)
    assert (split.memory_used_bytes, split.power_w) == (10 * 2**30, 250.5)
    assert whole.utilisation_percent == 98


YOUNG = {
    "TotalEnergyConsumption": "energy_j",
    "EnforcedPowerLimit": "power_limit_w",
    "PowerUsage": "power_w",
    "CurrentClocksEventReasons": None,  # it has an older name, and that is asked
}


@pytest.mark.parametrize("exported", [True, False])
def test_functions_that_an_old_driver_lacks_cost_their_own_values(nvml_library, exported):
    nvml_library.gpus = 1
    for name in YOUNG:
        if exported:
            nvml_library.codes[name] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        else:
            del nvml_library.answers[name]
    (sample,) = GpuProbe().sample()
    assert [getattr(sample, field) for field in YOUNG.values() if field] == [None] * 3
    assert (sample.utilisation_percent, sample.error) == (97, None)
    assert sample.throttle_reasons == ["thermal"]


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
