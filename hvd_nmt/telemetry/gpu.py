"""Use, memory, power, clock and temperature of every GPU of this host, through NVML.

The whole host is sampled, whatever CUDA_VISIBLE_DEVICES says, and a GPU is known by its UUID. A
local rank names a GPU only inside one process: its order follows CUDA_DEVICE_ORDER, and a scheduler
may hand out any subset, so an index from there would put one GPU's power on another's plot.

NVML's utilisation is the share of time in which *some* kernel ran. A GPU that spins inside an NCCL
all-reduce shows 100 %, so a full GPU proves nothing; power and memory activity tell them apart.
"""

import contextlib
from dataclasses import dataclass
from typing import Any, final

import pynvml

# What a GPU of a kind cannot tell at all (MIG slices, consumer cards, old drivers), as against a
# GPU that no longer answers.
_UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
}


def gpu_names() -> list[str]:
    """The names of all GPUs of this host in NVML's order, such as "Tesla V100-SXM2-16GB".

    Returns:
        One name per GPU; an empty list without NVML.
    """
    with contextlib.closing(GpuProbe()) as probe:
        return [gpu.name for gpu in probe.gpus]


def visible_gpu_count() -> int:
    """How many GPUs of this host NVML shows to this process.

    Returns:
        The number; 0 without NVML. CUDA_VISIBLE_DEVICES does not matter, a container's limits do.
    """
    return len(gpu_names())


@final
@dataclass(frozen=True)
class Gpu:
    """What a GPU is."""

    index: int
    """NVML's number for it at this start; in the order of the PCI bus, not of any rank"""
    uuid: str
    """its name for life, beginning with GPU-"""
    name: str
    """its model"""
    pci_bus_id: str | None
    """its place, such as 00000000:3B:00.0"""
    memory_total_bytes: int | None
    """memory on the card"""


@final
@dataclass(frozen=True)
class GpuSample:
    """What a GPU did in the last moment; None where it does not tell."""

    index: int
    """see `Gpu`"""
    uuid: str
    """see `Gpu`"""
    utilisation_percent: int | None = None
    """share of the last sampling period (1/6 to 1 s) in which a kernel ran"""
    memory_activity_percent: int | None = None
    """share of that period in which the card's memory was read or written"""
    memory_used_bytes: int | None = None
    """memory taken, by all processes together"""
    memory_total_bytes: int | None = None
    """memory on the card"""
    power_w: float | None = None
    """power drawn"""
    sm_clock_mhz: int | None = None
    """clock of the processors"""
    temperature_c: int | None = None
    """temperature of the chip"""
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
        """of the kernel driver"""
        self.problems: list[str] = []
        """GPUs that NVML counts but that did not answer from the start, in words"""
        self.gpus: tuple[Gpu, ...] = ()
        """the GPUs that are sampled"""
        self._handles: list[Any] = []
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
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpu = _describe(index, handle)
            except pynvml.NVMLError as error:
                self.problems.append(f"GPU {index} does not answer: {error}")
                continue
            self._handles.append(handle)
            self.gpus += (gpu,)

    def sample(self) -> list[GpuSample]:
        """Asks every GPU.

        Returns:
            One sample per GPU, in the order of `gpus`; one that fails has its `error` set.
        """
        return [_measure(gpu, handle) for gpu, handle in zip(self.gpus, self._handles, strict=True)]

    def close(self) -> None:
        """Ends NVML for this probe; there are no GPUs afterwards."""
        if self._started:
            self._started = False
            self.gpus, self._handles = (), []
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


def _describe(index: int, handle: Any) -> Gpu:
    pci = _optional(pynvml.nvmlDeviceGetPciInfo, handle)
    memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        index=index,
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        name=pynvml.nvmlDeviceGetName(handle),
        pci_bus_id=None if pci is None else _text(pci.busId),
        memory_total_bytes=None if memory is None else memory.total,
    )


def _measure(gpu: Gpu, handle: Any) -> GpuSample:
    values: dict[str, Any] = {}
    error = None
    for read in (_utilisation, _memory, _power, _clock, _temperature):
        try:
            values.update(read(handle))
        except pynvml.NVMLError as problem:
            if problem.value not in _UNSUPPORTED:
                error = str(problem)
    return GpuSample(index=gpu.index, uuid=gpu.uuid, error=error, **values)


def _utilisation(handle: Any) -> dict[str, int]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilisation_percent": rates.gpu, "memory_activity_percent": rates.memory}


def _memory(handle: Any) -> dict[str, int]:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": memory.used, "memory_total_bytes": memory.total}


def _power(handle: Any) -> dict[str, float]:
    return {"power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1000}  # NVML gives milliwatts


def _clock(handle: Any) -> dict[str, int]:
    return {"sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)}


def _temperature(handle: Any) -> dict[str, int]:
    sensor = pynvml.NVML_TEMPERATURE_GPU
    return {"temperature_c": pynvml.nvmlDeviceGetTemperature(handle, sensor)}


def _optional(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
