"""The sampler's own files on hosts of every kind: real nvidia-ml-py, a made-up NVML library."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from hvd_nmt.telemetry.events import read_samples
from hvd_nmt.telemetry.gpu import TURN_SAMPLES
from hvd_nmt.telemetry.sampler import scalar_tags

SAMPLE = """
import json, logging, time
import itertools
from pathlib import Path
from hvd_nmt.telemetry.sampler import Sampler

said = []
logging.getLogger().addHandler(type("Keep", (logging.Handler,), {{
    "emit": lambda self, record: said.append(record.getMessage())}})())
path = Path({path!r})
written = lambda: path.read_bytes().count(b"\\n") - 1 if path.exists() else 0

with Sampler(path, {interval_s}, host="v100a", event_dir=path.parent / "tensorboard"):
    while written() < 1:
        time.sleep(0.02)
    before, before_s = written(), time.process_time()
    while written() < {samples}:
        time.sleep(0.1)
    used_s, count = time.process_time() - before_s, written() - before
print(json.dumps({{"said": said, "cpu_s_per_sample": used_s / max(1, count)}}))
"""


@pytest.fixture
def sampled(run_python, fake_nvml, tmp_path: Path):
    """Runs a sampler on a made-up host; gives its header, its samples and what it said."""

    def run(*lines: str, samples: int = 4, interval_s: float = 0.02, **options: Any) -> Any:
        path = tmp_path / "telemetry" / "v100a.jsonl"
        script = SAMPLE.format(path=str(path), samples=samples, interval_s=interval_s)
        result = run_python(script, **fake_nvml(*lines, **options))
        header, *written = read_samples(path)
        assert header["kind"] == "host"
        assert len(written) >= samples
        assert all(sample["kind"] == "sample" and sample["nics"]["lo"] for sample in written)
        return header, written, result

    return run


@pytest.mark.parametrize("count", [0, 1, 2])
def test_every_gpu_is_in_the_header_and_in_every_sample(sampled, count):
    header, samples, result = sampled(f"gpus {count}")
    assert header["gpu_unavailable"] is None
    uuids = [f"GPU-00000000-0000-0000-0000-00000000000{index}" for index in range(count)]
    assert [gpu["uuid"] for gpu in header["gpus"]] == uuids
    assert all([gpu["uuid"] for gpu in sample["gpus"]] == uuids for sample in samples)
    assert result["said"] == []
    for number, sample in enumerate(samples, start=1):
        for gpu in sample["gpus"]:
            assert gpu["energy_j"] == pytest.approx(250.5 * number)
            assert gpu["power_w"] == pytest.approx(250.5, rel=1e-4)
            assert gpu["throttle_reasons"] == ["power cap"]
    turns = [
        [
            number
            for number, sample in enumerate(samples)
            if sample["gpus"][index]["pcie_sent_MB_per_s"]
        ]
        for index in range(count)
    ]
    assert [turn[0] for turn in turns] == list(range(count))


def test_nvlink_traffic_is_a_rate_over_all_links(sampled):
    _, samples, _ = sampled("gpus 2", interval_s=0.1)
    for before, now in itertools.pairwise(samples):
        first, second = now["gpus"]
        # The fake counts a million KiB at each question, over all six links.
        moved_MB = first["nvlink_sent_MB_per_s"] * (now["monotonic_s"] - before["monotonic_s"])
        assert moved_MB == pytest.approx(1024, rel=0.5)  # a busy machine reads it late
        assert first["nvlink_received_MB_per_s"] == pytest.approx(2 * first["nvlink_sent_MB_per_s"])
        assert second["nvlink_sent_MB_per_s"] is None  # GPU 1 has none


def test_a_gpu_in_mig_mode_does_not_tell_its_use(sampled):
    _, samples, result = sampled("gpus 2", "mig 0")
    for sample in samples:
        split, whole = sample["gpus"]
        assert (split["utilisation_percent"], split["error"]) == (None, None)
        assert (split["memory_used_bytes"], split["power_w"]) == (10 * 2**30, 250.5)
        assert whole["utilisation_percent"] == 98
        tags = scalar_tags(sample)
        assert "gpu/0/utilisation_percent" not in tags
        assert tags["gpu/1/utilisation_percent"] == 98
    assert result["said"] == []


YOUNG = {
    "nvmlDeviceGetTotalEnergyConsumption": "energy_j",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlDeviceGetFieldValues": "nvlink_sent_MB_per_s",
    "nvmlDeviceGetPcieThroughput": "pcie_sent_MB_per_s",
    "nvmlDeviceGetPowerUsage": "power_w",
}


@pytest.mark.parametrize("how", ["not exported", "FUNCTION_NOT_FOUND"])
def test_functions_that_an_old_driver_lacks_cost_their_own_values(sampled, how):
    missing = [*YOUNG, "nvmlDeviceGetCurrentClocksEventReasons"]
    if how == "not exported":
        _, samples, result = sampled("gpus 1", missing=missing)
    else:
        _, samples, result = sampled("gpus 1", *(f"fail {name} 13" for name in missing))
    gpu = samples[0]["gpus"][0]
    for function, field in YOUNG.items():
        assert gpu[field] is None, function
    assert (gpu["utilisation_percent"], gpu["temperature_c"], gpu["error"]) == (97, 61, None)
    assert gpu["throttle_reasons"] == ["thermal"]  # it has an older name, and that is asked
    assert result["said"] == []


def test_a_driver_that_lacks_the_older_name_too_costs_no_more(sampled):
    names = ["CurrentClocksEventReasons", "CurrentClocksThrottleReasons"]
    _, samples, result = sampled("gpus 1", missing=[f"nvmlDeviceGet{name}" for name in names])
    gpu = samples[0]["gpus"][0]
    assert (gpu["throttle_reasons"], gpu["error"]) == (None, None)
    assert gpu["pcie_received_MB_per_s"] == 3000.0
    assert result["said"] == []


def test_a_gpu_that_falls_off_the_bus_is_told_once_and_the_other_goes_on(sampled, tmp_path):
    calls = tmp_path / "calls"
    header, samples, result = sampled("gpus 2", "lost 1 3", f"calls {calls}", samples=25)
    for number, sample in enumerate(samples, start=1):
        good, bad = sample["gpus"]
        assert (good["utilisation_percent"], good["error"]) == (97, None)
        assert good["energy_j"] == pytest.approx(250.5 * number)
        assert bad["uuid"] == header["gpus"][1]["uuid"]
        if number <= 3:
            assert (bad["utilisation_percent"], bad["error"]) == (98, None)
        else:
            silent = {"index", "uuid", "error"}
            assert bad["error"] == "GPU is lost"
            assert {value for name, value in bad.items() if name not in silent} == {None}
    uuid = header["gpus"][1]["uuid"]
    assert result["said"] == [f"v100a: GPU 1 ({uuid}) does not answer: GPU is lost"]
    assert calls.read_text().split() == ["nvmlDeviceGetUtilizationRates"]


def test_two_gpus_cost_less_than_a_hundredth_of_a_core(sampled):
    """CPU time per sample, which at the default of one per second is the share of a core."""
    _, samples, result = sampled("gpus 2", samples=51, interval_s=0.03)
    assert sum(sample["gpus"][0]["pcie_sent_MB_per_s"] is not None for sample in samples) >= 5
    assert len(samples) > 5 * TURN_SAMPLES
    print(result["cpu_s_per_sample"])
    assert result["cpu_s_per_sample"] < 0.01
