"""The questions to one GPU: the real nvidia-ml-py binding against a made-up NVML library."""

from types import SimpleNamespace

import pynvml
import pytest

from hvd_nmt.telemetry import nvml
from hvd_nmt.telemetry.gpu import GpuProbe


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, []),
        (0x1, []),  # idle: nothing waits
        (0x4 | 0x1, ["power cap"]),
        (0x8 | 0x40, ["hardware slowdown", "thermal, by hardware"]),
        (0x8 | 0x80, ["hardware slowdown", "power brake"]),
        (0x4 | 0x2000 | 0x8000, ["power cap", "reason 0xa000"]),
    ],
)
def test_throttle_reasons_in_words(monkeypatch, bits, words):
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCurrentClocksEventReasons", lambda handle: bits)
    assert nvml.throttle(None) == {"throttle_reasons": words}


def test_nvlink_traffic_is_a_rate_over_all_links(nvml_library, monkeypatch):
    seconds = iter(range(0, 100, 2))
    monkeypatch.setattr(nvml, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    nvml_library.gpus = 1
    probe = GpuProbe()
    for sample in (*probe.sample(), *probe.sample()):
        assert sample.nvlink_sent_MB_per_s == 512.0  # a million KiB in 2 s
        assert sample.nvlink_received_MB_per_s == 1024.0


def test_a_gpu_in_mig_mode_does_not_tell_its_use(nvml_library):
    nvml_library.gpus, nvml_library.mig = 2, 0
    split, whole = GpuProbe().sample()
    assert (split.utilisation_percent, split.error) == (None, None)
    assert (split.memory_used_bytes, split.power_w) == (10 * 2**30, 250.5)
    assert whole.utilisation_percent == 98


YOUNG = {
    "TotalEnergyConsumption": "energy_j",
    "EnforcedPowerLimit": "power_limit_w",
    "FieldValues": "nvlink_sent_MB_per_s",
    "PcieThroughput": "pcie_sent_MB_per_s",
    "PowerUsage": "power_w",
    "CurrentClocksEventReasons": None,  # it has an older name, and that is asked
}


@pytest.mark.parametrize("exported", [True, False])
def test_functions_that_an_old_driver_lacks_cost_their_own_values(nvml_library, exported):
    nvml_library.gpus = 2
    for name in YOUNG:
        if exported:
            nvml_library.codes[name] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        else:
            del nvml_library.answers[name]
    first, second = GpuProbe().sample()
    for sample, celsius in (first, 61), (second, None):
        assert [getattr(sample, field) for field in YOUNG.values() if field] == [None] * 5
        assert (sample.temperature_c, sample.error) == (celsius, None)
        assert sample.utilisation_percent == 97 + sample.index
        assert sample.throttle_reasons == ["thermal"]
