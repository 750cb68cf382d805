"""The questions that are put to one GPU through NVML, each with its answer in our units.

Each takes NVML's handle of a GPU and gives fields of `gpu.GpuSample`. It raises pynvml.NVMLError
with a code in `UNSUPPORTED` where the GPU or its driver cannot tell, and with one in `LOST` when
the GPU fell off the bus.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import pynvml

# What a GPU of a kind cannot tell at all (MIG mode, consumer cards, old drivers), as against a
# GPU that no longer answers.
UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_DEPRECATED,
}
LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
}
# NVML's bits in words. 0x1, "idle", is left out: an idle GPU lowers its clocks and nothing waits.
_IDLE = 0x1
_THROTTLE_REASONS = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal",
    0x40: "thermal, by hardware",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
_NVLINK_FIELDS = (
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
    pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
)
_ALL_LINKS = 0xFFFFFFFF  # as scope of these fields: the sum over all links (nvml.h); 0 is link 0


@final
@dataclass(frozen=True)
class LinkReading:
    """The counters of a GPU's NVLinks at a moment."""

    sent_bytes: int
    """out of the GPU over all links, without headers, since the driver was loaded"""
    received_bytes: int
    """into the GPU over all links, without headers, since the driver was loaded"""
    time_s: float
    """moment of the reading, on the monotonic clock"""


def utilisation(handle: Any) -> dict[str, int]:
    """Shares of time in which a kernel ran and in which the memory was used; not in MIG mode."""
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilisation_percent": rates.gpu, "memory_activity_percent": rates.memory}


def memory(handle: Any) -> dict[str, int]:
    """Bytes taken."""
    return {"memory_used_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).used}


def power(handle: Any) -> dict[str, float]:
    """Watts drawn, of which NVML gives thousandths."""
    return {"power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def energy_mj(handle: Any) -> int:
    """Millijoules drawn since the driver was loaded; from Volta on."""
    return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)


def power_limit(handle: Any) -> dict[str, float]:
    """Watts that it may draw, the lowest of all limits that are set."""
    return {"power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000}


def clock(handle: Any) -> dict[str, int]:
    """MHz of the processors."""
    return {"sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)}


def throttle(handle: Any) -> dict[str, list[str]]:
    """What keeps the clocks down, in words; a bit that is new here is given as a number."""
    try:
        bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError_FunctionNotFound:  # its name before driver 535
        bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    reasons = [name for bit, name in _THROTTLE_REASONS.items() if bits & bit]
    unknown = bits & ~(sum(_THROTTLE_REASONS) | _IDLE)
    return {"throttle_reasons": reasons + ([f"reason {unknown:#x}"] if unknown else [])}


def temperature(handle: Any) -> dict[str, int]:
    """Degrees Celsius of the chip."""
    sensor = pynvml.NVML_TEMPERATURE_GPU
    return {"temperature_c": pynvml.nvmlDeviceGetTemperature(handle, sensor)}


def pcie(handle: Any) -> dict[str, float]:
    """MB/s (1e6 bytes) over PCIe during 20 ms out and then 20 ms in, for which the caller waits.

    The byte counters behind NVML's fields 197 and 198 answer at once, but NVML lets them wrap, and
    programs that read them take them for 32 bits: 4 GiB may pass several times between two samples.
    """
    # NVML gives KB/s.
    sent = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    received = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)
    return {"pcie_sent_MB_per_s": sent / 1000, "pcie_received_MB_per_s": received / 1000}


def nvlink(handle: Any) -> LinkReading:
    """The counters of all its NVLinks together."""
    fields = [(field, _ALL_LINKS) for field in _NVLINK_FIELDS]
    values = pynvml.nvmlDeviceGetFieldValues(handle, fields)
    time_s = time.monotonic()
    for value in values:
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(value.nvmlReturn)
    sent, received = (value.value.ullVal * 1024 for value in values)  # NVML gives KiB
    return LinkReading(sent, received, time_s)


def optional(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives; None where NVML answers with an error, whatever it is."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None
