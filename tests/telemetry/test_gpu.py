"""The GPU probe against the real nvidia-ml-py binding and a made-up NVML library."""

from pathlib import Path

import pynvml
import pytest

from hvd_nmt.telemetry import nvml
from hvd_nmt.telemetry.gpu import LOST_SAMPLES, TURN_SAMPLES, spinning

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
        SAMPLE_ONCE, CUDA_VISIBLE_DEVICES="1", HOROVOD_LOCAL_RANK="1", **fake_nvml(f"gpus {count}")
    )
    assert seen["unavailable"] is None
    assert seen["driver"] == "535.161.08"
    assert seen["problems"] == []
    assert [gpu["uuid"][-1] for gpu in seen["gpus"]] == [str(index) for index in range(count)]
    assert all(len(samples) == count for samples in seen["samples"])


def test_values_carry_their_units(run_python, fake_nvml):
    seen = run_python(SAMPLE_ONCE, **fake_nvml("gpus 1"))
    assert seen["gpus"][0] == {
        "index": 0,
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "name": "Tesla V100-SXM2-16GB",
        "memory_total_bytes": 16 * 2**30,
    }
    first, second, third = (samples[0] for samples in seen["samples"])
    assert first.pop("nvlink_sent_MB_per_s") > 0
    assert first.pop("nvlink_received_MB_per_s") > 0
    assert first == {
        "index": 0,
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "utilisation_percent": 97,
        "memory_activity_percent": 40,
        "memory_used_bytes": 10 * 2**30,
        "power_w": 250.5,
        "power_limit_w": 300.0,
        "energy_j": 250.5,
        "sm_clock_mhz": 1380,
        "throttle_reasons": ["power cap"],
        "temperature_c": 61,
        "pcie_sent_MB_per_s": 1500.0,
        "pcie_received_MB_per_s": 3000.0,
        "error": None,
    }
    # Energy is a sum since the probe was made; the dear question waits for the GPU's next turn.
    assert [second["energy_j"], third["energy_j"]] == [501.0, 751.5]
    assert second["pcie_sent_MB_per_s"] is second["pcie_received_MB_per_s"] is None


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, []),
        (0x1, []),  # idle: nothing waits
        (0x2, ["application clocks"]),
        (0x4 | 0x1, ["power cap"]),
        (0x8 | 0x40, ["hardware slowdown", "thermal, by hardware"]),
        (0x20, ["thermal"]),
        (0x8 | 0x80, ["hardware slowdown", "power brake"]),
        (0x4 | 0x2000 | 0x8000, ["power cap", "reason 0xa000"]),
    ],
)
def test_throttle_reasons_in_words(monkeypatch, bits, words):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", lambda handle: bits)
    assert nvml.throttle(None) == {"throttle_reasons": words}


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


def test_what_a_gpu_cannot_tell_is_none(run_python, fake_nvml):
    first, second = run_python(
        SAMPLE_ONCE, **fake_nvml("gpus 2", missing=["nvmlDeviceGetPowerUsage"])
    )["samples"][0]
    assert (first["power_w"], first["temperature_c"], first["error"]) == (None, 61, None)
    assert (second["power_w"], second["temperature_c"], second["error"]) == (None, None, None)
    assert second["utilisation_percent"] == 98


def test_a_gpu_that_falls_off_the_bus_is_reported_and_the_other_goes_on(run_python, fake_nvml):
    before, after, later = run_python(SAMPLE_ONCE, **fake_nvml("gpus 2", "lost 0 1"))["samples"]
    assert before[0]["error"] is None
    for lost, other in (after, later):
        assert lost["error"] == "GPU is lost"
        assert lost["uuid"].endswith("0")
        assert (lost["utilisation_percent"], lost["power_w"], lost["memory_used_bytes"]) == (
            (None,) * 3
        )
        assert (other["error"], other["utilisation_percent"]) == (None, 98)


LOSE_AND_RETURN = """
import json, os
from pathlib import Path
from hvd_nmt.telemetry.gpu import LOST_SAMPLES, GpuProbe
state = Path(os.environ["FAKE_NVML_STATE"])
probe = GpuProbe()
errors = [probe.sample()[0].error for _ in range(2 + LOST_SAMPLES)]
state.with_suffix(".new").write_text("gpus 2\\n")
state.with_suffix(".new").replace(state)  # the GPU is back
errors.append(probe.sample()[0].error)
back = probe.sample()[0]
print(json.dumps([errors, back.error, back.power_w]))
"""


def test_a_lost_gpu_is_left_alone_and_asked_again_now_and_then(run_python, fake_nvml, tmp_path):
    calls = tmp_path / "calls"
    environment = fake_nvml("gpus 2", "lost 0 1", f"calls {calls}")
    errors, error, power_w = run_python(LOSE_AND_RETURN, **environment)
    # One good sample, the loss, then silence; one question shows that it is back.
    assert errors == [None, *["GPU is lost"] * (1 + LOST_SAMPLES), None]
    assert calls.read_text().split() == ["nvmlDeviceGetUtilizationRates"]
    assert (error, power_w) == (None, 250.5)


TAKE_TURNS = """
import json
from hvd_nmt.telemetry.gpu import TURN_SAMPLES, GpuProbe
probe = GpuProbe()
print(json.dumps([[gpu.pcie_sent_MB_per_s is not None for gpu in probe.sample()]
                  for _ in range(2 * TURN_SAMPLES)]))
"""


def test_the_dear_question_goes_to_one_gpu_at_a_time(run_python, fake_nvml):
    asked = run_python(TAKE_TURNS, **fake_nvml("gpus 3"))
    assert [sum(gpus) for gpus in asked] == ([1, 1, 1] + [0] * (TURN_SAMPLES - 3)) * 2
    assert [sum(gpu) for gpu in zip(*asked, strict=True)] == [2, 2, 2]


def test_a_gpu_that_is_dead_from_the_start_does_not_hide_the_others(run_python, fake_nvml):
    seen = run_python(SAMPLE_ONCE, **fake_nvml("gpus 2", "dead 0"))
    assert seen["problems"] == ["GPU 0 does not answer: GPU is lost"]
    assert [gpu["index"] for gpu in seen["gpus"]] == [1]
    assert [sample["uuid"][-1] for sample in seen["samples"][0]] == ["1"]


def test_without_a_driver_the_reason_is_told(run_python, fake_nvml):
    seen = run_python(SAMPLE_ONCE, **fake_nvml("gpus 2", "init 9"))
    assert seen["unavailable"] == "no NVML: Driver Not Loaded"
    assert seen["gpus"] == []
    assert seen["samples"] == [[], [], []]


def test_without_a_library_the_reason_is_told(run_python, tmp_path: Path):
    # On a machine with a driver the real library must not be found, so a broken one goes first.
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    seen = run_python(SAMPLE_ONCE, LD_LIBRARY_PATH=str(tmp_path))
    assert seen["unavailable"] == "no NVML: NVML Shared Library Not Found"
    assert seen["samples"] == [[], [], []]


def test_names_of_all_gpus(run_python, fake_nvml):
    script = """
import json
from hvd_nmt.telemetry.gpu import gpu_names
print(json.dumps(gpu_names()))
"""
    seen = run_python(script, **fake_nvml("gpus 2"))
    assert seen == ["Tesla V100-SXM2-16GB"] * 2
