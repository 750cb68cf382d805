"""What every GPU of this host does, through NVML: use, memory, power, energy, throttling.

The whole host is sampled, whatever CUDA_VISIBLE_DEVICES says, and a GPU is known by its UUID: a
local rank names a GPU only inside one process.

NVML's utilisation is the share of time in which *some* kernel ran. A GPU that spins inside an NCCL
all-reduce shows 100 %, so a full GPU proves nothing; `spinning` tells it from one that computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import pynvml

LOST_SAMPLES = 60
"""a GPU that fell off the bus is left alone for so many samples, then asked once more"""
# Thresholds of `spinning`: chosen, not fitted. A kernel that waits for the network polls from a few
# thread blocks, while matrix products fill the chip and read weights and gradients.
SPINNING_UTILISATION_PERCENT = 90
"""it looks busy: at least this share of the time a kernel runs"""
SPINNING_POWER_SHARE = 0.55
"""but draws less than this share of its power limit"""
SPINNING_MEMORY_ACTIVITY_PERCENT = 10
"""and reads or writes its memory for less than this share of the time"""

# What a GPU of a kind cannot tell at all (MIG mode, consumer cards, old drivers), as against a
# GPU that no longer answers.
_UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_DEPRECATED,
}
_LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
}
# NVML's bits in words. 0x1, "idle", is left out: an idle GPU lowers its clocks and nothing waits.
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


def energy_j_of(uuid: str) -> float | None:
    """Energy of a GPU since driver load, by CUDA's 32-digit UUID; None: NVML does not tell."""
    dashed = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{dashed}")
            return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
        finally:
            pynvml.nvmlShutdown()
    return None


def spinning(sample: Mapping[str, Any]) -> bool | None:
    """Tells a GPU that only waits inside a collective from one that computes, by a `GpuSample`.

    True: it looks busy, but power and memory activity say that it computes next to nothing. False:
    it is not busy, or it computes. None: the GPU does not tell enough.
    """
    used = sample.get("utilisation_percent")
    active = sample.get("memory_activity_percent")
    power_w, limit_w = sample.get("power_w"), sample.get("power_limit_w")
    share = power_w / limit_w if power_w is not None and limit_w else None
    signs = (
        None if used is None else used >= SPINNING_UTILISATION_PERCENT,
        None if share is None else share < SPINNING_POWER_SHARE,
        None if active is None else active < SPINNING_MEMORY_ACTIVITY_PERCENT,
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
    """name of the card for life, beginning with GPU-"""
    name: str
    """model of the card"""
    memory_total_bytes: int | None
    """memory on the card"""


@final
@dataclass(frozen=True)
class GpuSample:
    """What a GPU did in the last moment; None where it does not tell."""

    index: int
    """as in `Gpu`"""
    uuid: str
    """as in `Gpu`"""
    utilisation_percent: int | None = None
    """share of the last sampling period (1/6 to 1 s) in which a kernel ran"""
    memory_activity_percent: int | None = None
    """share of that period in which the card's memory was read or written"""
    memory_used_bytes: int | None = None
    """memory taken, by all processes together"""
    power_w: float | None = None
    """power drawn"""
    power_limit_w: float | None = None
    """power at which the driver lowers the clocks"""
    energy_j: float | None = None
    """energy drawn since this probe was made. From Volta on"""
    throttle_reasons: list[str] | None = None
    """why the clocks are below their best, such as "power cap"; empty when nothing holds them"""
    error: str | None = None
    """why the GPU no longer answers, such as "GPU is lost"; None while it does"""


@final
class GpuProbe:
    """The GPUs of this host. Never raises: what does not work is said in `unavailable`."""

    def __init__(self) -> None:
        """Starts NVML and finds the GPUs; takes a second or more where persistence mode is off."""
        self.unavailable: str | None = None
        """why there are no GPUs, such as "no NVML: Driver Not Loaded"; None where NVML works"""
        self.driver_version: str | None = None
        """version of the kernel driver"""
        self.problems: list[str] = []
        """GPUs that NVML counts but that did not answer from the start, in words"""
        self.gpus: tuple[Gpu, ...] = ()
        """the GPUs that are sampled"""
        self._devices: list[_Device] = []
        self._started = False
        try:
            pynvml.nvmlInit()
            self._started = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.unavailable = f"no NVML: {error}"
            return
        self.driver_version = _optional(pynvml.nvmlSystemGetDriverVersion)
        for index in range(count):
            try:
                self._devices.append(_Device(index))
            except pynvml.NVMLError as error:
                self.problems.append(f"GPU {index} does not answer: {error}")
        self.gpus = tuple(device.gpu for device in self._devices)

    def sample(self) -> list[GpuSample]:
        """Asks every GPU, in the order of `gpus`; one that fails has its `error` set."""
        return [device.sample() for device in self._devices]

    def close(self) -> None:
        """Ends NVML for this probe; there are no GPUs afterwards."""
        if self._started:
            self._started = False
            self.gpus, self._devices = (), []
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


@final
class _Device:
    """A GPU, its handle, and what is remembered of it."""

    def __init__(self, index: int) -> None:
        self._handle = handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
        self.gpu = Gpu(
            index=index,
            uuid=pynvml.nvmlDeviceGetUUID(handle),
            name=pynvml.nvmlDeviceGetName(handle),
            memory_total_bytes=memory and memory.total,
        )
        self._first_mj: int = _optional(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle) or 0
        self._lost: str | None = None
        self._lost_samples = 0

    def sample(self) -> GpuSample:
        """Asks the GPU all questions; each that it cannot answer costs its own value."""
        if self._lost_samples > 0:
            self._lost_samples -= 1
            return GpuSample(index=self.gpu.index, uuid=self.gpu.uuid, error=self._lost)
        values: dict[str, Any] = {}
        error = None
        for read in (_utilisation, _memory, _power, _power_limit, _throttle, self._energy):
            try:
                values.update(read(self._handle))
            except pynvml.NVMLError as problem:
                if problem.value in _UNSUPPORTED:
                    continue
                error = str(problem)
                if problem.value in _LOST:
                    # Each further call could hang in the driver for seconds.
                    self._lost, self._lost_samples = error, LOST_SAMPLES
                    break
        return GpuSample(index=self.gpu.index, uuid=self.gpu.uuid, error=error, **values)

    def _energy(self, handle: Any) -> dict[str, float]:
        drawn_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - self._first_mj
        return {"energy_j": drawn_mj / 1000}


def _utilisation(handle: Any) -> dict[str, int]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilisation_percent": rates.gpu, "memory_activity_percent": rates.memory}


def _memory(handle: Any) -> dict[str, int]:
    return {"memory_used_bytes": pynvml.nvmlDeviceGetMemoryInfo(handle).used}


def _power(handle: Any) -> dict[str, float]:
    return {"power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}


def _power_limit(handle: Any) -> dict[str, float]:
    """The lowest of all limits that are set."""
    return {"power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000}


def _throttle(handle: Any) -> dict[str, list[str]]:
    try:
        bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError_FunctionNotFound:  # its name before driver 535
        bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle_reasons": [word for bit, word in _THROTTLE_REASONS.items() if bits & bit]}


def _optional(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives; None where NVML answers with an error, whatever it is."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None
