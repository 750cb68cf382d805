"""The GPU probe against the real nvidia-ml-py binding and a made-up NVML library."""

from pathlib import Path

import pytest

SAMPLE_ONCE = """
import dataclasses, json
from hvd_nmt.telemetry.gpu import GpuProbe
probe = GpuProbe()
print(json.dumps({
    "unavailable": probe.unavailable,
    "driver": probe.driver_version,
    "problems": probe.problems,
    "gpus": [dataclasses.asdict(gpu) for gpu in probe.gpus],
    "samples": [[dataclasses.asdict(sample) for sample in probe.sample()] for _ in range(3)],
}))
probe.close()
"""


@pytest.mark.parametrize("count", [0, 1, 2])
def test_finds_every_gpu_of_the_host(run_python, fake_nvml, count):
    # Neither the rank's share of GPUs nor its number may matter.
    seen = run_python(
        SAMPLE_ONCE, CUDA_VISIBLE_DEVICES="1", HOROVOD_LOCAL_RANK="1", **fake_nvml(GPUS=count)
    )
    assert seen["unavailable"] is None
    assert seen["driver"] == "535.161.08"
    assert seen["problems"] == []
    assert [gpu["uuid"][-1] for gpu in seen["gpus"]] == [str(index) for index in range(count)]
    assert all(len(samples) == count for samples in seen["samples"])


def test_values_carry_their_units(run_python, fake_nvml):
    seen = run_python(SAMPLE_ONCE, **fake_nvml(GPUS=1))
    assert seen["gpus"][0] == {
        "index": 0,
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "name": "Tesla V100-SXM2-16GB",
        "pci_bus_id": "00000000:30:00.0",
        "memory_total_bytes": 16 * 2**30,
    }
    assert seen["samples"][0][0] == {
        "index": 0,
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "utilisation_percent": 97,
        "memory_activity_percent": 40,
        "memory_used_bytes": 10 * 2**30,
        "memory_total_bytes": 16 * 2**30,
        "power_w": 250.5,
        "sm_clock_mhz": 1530,
        "temperature_c": 61,
        "error": None,
    }


def test_what_a_gpu_cannot_tell_is_none(run_python, fake_nvml):
    first, second = run_python(SAMPLE_ONCE, **fake_nvml("-DNO_POWER", GPUS=2))["samples"][0]
    assert (first["power_w"], first["temperature_c"], first["error"]) == (None, 61, None)
    assert (second["power_w"], second["temperature_c"], second["error"]) == (None, None, None)
    assert second["utilisation_percent"] == 98


def test_a_gpu_that_falls_off_the_bus_is_reported_and_the_other_goes_on(run_python, fake_nvml):
    before, after, later = run_python(SAMPLE_ONCE, **fake_nvml(GPUS=2, LOST=0, LOST_AFTER=1))[
        "samples"
    ]
    assert before[0]["error"] is None
    for lost, other in (after, later):
        assert lost["error"] == "GPU is lost"
        assert lost["uuid"].endswith("0")
        assert (lost["utilisation_percent"], lost["power_w"], lost["memory_used_bytes"]) == (
            (None,) * 3
        )
        assert (other["error"], other["utilisation_percent"]) == (None, 98)


def test_a_gpu_that_is_dead_from_the_start_does_not_hide_the_others(run_python, fake_nvml):
    seen = run_python(SAMPLE_ONCE, **fake_nvml(GPUS=2, DEAD=0))
    assert seen["problems"] == ["GPU 0 does not answer: GPU is lost"]
    assert [gpu["index"] for gpu in seen["gpus"]] == [1]
    assert [sample["uuid"][-1] for sample in seen["samples"][0]] == ["1"]


def test_without_a_driver_the_reason_is_told(run_python, fake_nvml):
    seen = run_python(SAMPLE_ONCE, **fake_nvml(GPUS=2, INIT=9))
    assert seen["unavailable"] == "no NVML: Driver Not Loaded"
    assert seen["gpus"] == []
    assert seen["samples"] == [[], [], []]


def test_without_a_library_the_reason_is_told(run_python, tmp_path: Path):
    # On a machine with a driver the real library must not be found, so a broken one goes first.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    seen = run_python(SAMPLE_ONCE, LD_LIBRARY_PATH=str(tmp_path))
    assert seen["unavailable"] == "no NVML: NVML Shared Library Not Found"
    assert seen["samples"] == [[], [], []]


def test_names_and_count_for_the_preflight(run_python, fake_nvml):
    script = """
import json
from hvd_nmt.telemetry.gpu import gpu_names, visible_gpu_count
print(json.dumps([gpu_names(), visible_gpu_count()]))
"""
    seen = run_python(script, **fake_nvml(GPUS=2))
    assert seen == [["Tesla V100-SXM2-16GB"] * 2, 2]
