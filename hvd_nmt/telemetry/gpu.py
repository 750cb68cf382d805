"""What every GPU of this host does, through NVML: use, memory, power, energy, throttling.

The whole host is sampled, with any CUDA_VISIBLE_DEVICES: that is of one process.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import pynvml

_UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_DEPRECATED,
}
"""errors of MIG mode, consumer cards and old drivers, not of a GPU that no longer answers"""
# NVML's bits in words, without 0x1, "idle": an idle GPU lowers its clocks and nothing waits.
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


def gpu_names() -> list[str]:
    """The names of all GPUs of this host in NVML's order; [] without NVML."""
    with contextlib.closing(GpuProbe()) as probe:
        return [gpu.name for gpu in probe.gpus]


def spinning(sample: Mapping[str, Any]) -> bool | None:
    """Whether a GPU, by its sample, only waits inside a collective and computes nothing.

    NVML's utilisation is the share of time in which some kernel ran, so one that spins inside an
    NCCL all-reduce shows 100 %, but draws little power and hardly uses its memory. None: unknown.
    """
    used = sample.get("utilisation_percent")
    active = sample.get("memory_activity_percent")
    power_w, limit_w = sample.get("power_w"), sample.get("power_limit_w")
    share = power_w / limit_w if power_w is not None and limit_w else None
    # Thresholds that are chosen, not fitted: a kernel that waits for the network polls from a few
    # thread blocks, while matrix products fill the chip and read weights and gradients.
    signs = (
        None if used is None else used >= 90,
        None if share is None else share < 0.55,
        None if active is None else active < 10,
    )
    if False in signs:
        return False
    return None if None in signs else True


@final
@dataclass(frozen=True)
class Gpu:
    """What a GPU is."""

    index: int
    """NVML's number of the GPU at this start; in the order of the PCI bus, not of any rank"""
    uuid: str
    """name of the card for life, beginning with GPU-; "" where it does not answer"""
    name: str
    """model of the card; "GPU" where it does not answer"""


@final
class GpuProbe:
    """The GPUs of this host. Never raises: what does not work is said in `unavailable`."""

    def __init__(self) -> None:
        """Starts NVML and finds the GPUs; takes a second or more where persistence mode is off."""
        self.unavailable: str | None = None
        """reason without GPUs, such as `no NVIDIA driver: Not Found`; None where NVML works"""
        self.gpus: list[Gpu] = []
        """those that are sampled"""
        try:
            pynvml.nvmlInit()
            self.gpus = [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            self.unavailable = f"no NVIDIA driver: {error}"

    def sample(self) -> list[dict[str, Any]]:
        """Each GPU's index, fields of `_READ` (None: unknown), and the `error` if it is silent."""
        return [_sample(gpu.index) for gpu in self.gpus]

    def close(self) -> None:
        """Ends NVML for this probe, which can be asked nothing more."""
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(index: int) -> Gpu:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return Gpu(index, pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle))
    except pynvml.NVMLError:  # its samples say why
        return Gpu(index, "", "GPU")


def _sample(index: int) -> dict[str, Any]:
    values = {"index": index, **dict.fromkeys(_READ), "error": None}
    for field, read in _READ.items():
        try:
            values[field] = read(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError as error:
            if error.value not in _UNSUPPORTED:
                # Each further question to a lost GPU could hang in the driver for seconds.
                return values | {"error": str(error)}
    return values


def _throttle_reasons(handle: Any) -> list[str]:
    try:
        bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError_FunctionNotFound:  # its name before driver 535
        bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return [word for bit, word in _THROTTLE_REASONS.items() if bits & bit]


# Field of a sample -> how it is read. Utilisation and memory activity are shares of the last
# sampling period (1/6 to 1 s), the power limit is the lowest of all that are set.
_READ: dict[str, Callable[[Any], Any]] = {
    "utilisation_percent": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "memory_activity_percent": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).memory,
    "memory_used_bytes": lambda handle: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
    "power_w": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "power_limit_w": lambda handle: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    # since the driver was loaded; from Volta on
    "energy_j": lambda handle: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
    # why the clocks are below their best; empty when nothing holds them
    "throttle_reasons": _throttle_reasons,
}
