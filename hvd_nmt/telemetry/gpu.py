"""What every GPU of this host does, through NVML: use, power, energy, clock, links.

The whole host is sampled, whatever CUDA_VISIBLE_DEVICES says, and a GPU is known by its UUID. A
local rank names a GPU only inside one process: its order follows CUDA_DEVICE_ORDER, and a scheduler
may hand out any subset, so an index from there would put one GPU's power on another's plot.

NVML's utilisation is the share of time in which *some* kernel ran. A GPU that spins inside an NCCL
all-reduce shows 100 %, so a full GPU proves nothing; `spinning` tells it from one that computes.

A sample is about ten short questions per GPU. The dear one, PCIe traffic (for which NVML counts
20 ms in each direction before it answers), is put to a GPU only once in `TURN_SAMPLES` samples, and
never to two GPUs of up to that many in the same sample.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import pynvml

from hvd_nmt.telemetry import nvml
from hvd_nmt.telemetry.rates import counted, megabytes_per_s

TURN_SAMPLES = 10
"""a GPU is asked for its PCIe traffic in one of so many samples"""
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

_READERS = (
    nvml.utilisation,
    nvml.memory,
    nvml.power,
    nvml.power_limit,
    nvml.clock,
    nvml.throttle,
    nvml.temperature,
)


def gpu_names() -> list[str]:
    """The names of all GPUs of this host in NVML's order; [] without NVML."""
    with contextlib.closing(GpuProbe()) as probe:
        return [gpu.name for gpu in probe.gpus]


def energy_j_of(uuid: str) -> float | None:
    """Energy that a GPU has drawn since its driver was loaded; None where NVML does not tell.

    Args:
        uuid: as CUDA gives it, 32 hexadecimal digits.
    """
    found_mj = _asked(uuid, nvml.energy_mj)
    return found_mj / 1000 if found_mj else None


def _asked(uuid: str, question: Callable[[Any], Any]) -> Any:
    """What NVML answers about a GPU or a MIG slice; None where it does not."""
    dashed = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        for kind in ("GPU", "MIG"):
            handle = nvml.optional(pynvml.nvmlDeviceGetHandleByUUID, f"{kind}-{dashed}")
            found = handle and nvml.optional(question, handle)
            if found:
                return found
        return None
    finally:
        pynvml.nvmlShutdown()


def spinning(sample: Mapping[str, Any]) -> bool | None:
    """Tells a GPU that only waits inside a collective from one that computes.

    Args:
        sample: fields of a `GpuSample`.

    Returns:
        True: it looks busy, but power and memory activity say that it computes next to nothing.
        False: it is not busy, or it computes. None: the GPU does not tell enough.
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
    """NVML's number of the GPU at this start"""
    uuid: str
    """name of the card for life, beginning with GPU-"""
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
    """energy drawn since this probe was made; never falls. From Volta on"""
    sm_clock_mhz: int | None = None
    """clock of the processors"""
    throttle_reasons: list[str] | None = None
    """why the clocks are below their best, such as "power cap"; empty when nothing holds them"""
    temperature_c: int | None = None
    """temperature of the chip"""
    nvlink_sent_MB_per_s: float | None = None
    """mean over the interval of all NVLinks out of the GPU, MB/s (1e6 bytes), without headers"""
    nvlink_received_MB_per_s: float | None = None
    """mean over the interval of all NVLinks into the GPU, MB/s (1e6 bytes), without headers"""
    pcie_sent_MB_per_s: float | None = None
    """rate out of the GPU over PCIe, during 20 ms, MB/s; only in the GPU's turn"""
    pcie_received_MB_per_s: float | None = None
    """rate into the GPU over PCIe, during 20 ms, MB/s; only in the GPU's turn"""
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
        self._samples = 0
        self._started = False
        try:
            pynvml.nvmlInit()
            self._started = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self.unavailable = f"no NVML: {error}"
            return
        self.driver_version = nvml.optional(pynvml.nvmlSystemGetDriverVersion)
        for index in range(count):
            try:
                self._devices.append(_Device(index))
            except pynvml.NVMLError as error:
                self.problems.append(f"GPU {index} does not answer: {error}")
        self.gpus = tuple(device.gpu for device in self._devices)

    def sample(self) -> list[GpuSample]:
        """Asks every GPU, in the order of `gpus`; one that fails has its `error` set."""
        number, self._samples = self._samples, self._samples + 1
        return [
            device.sample(is_turn=(number - position) % TURN_SAMPLES == 0)
            for position, device in enumerate(self._devices)
        ]

    def close(self) -> None:
        """Ends NVML for this probe; there are no GPUs afterwards."""
        if self._started:
            self._started = False
            self.gpus, self._devices = (), []
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()


@final
class _Device:
    """A GPU, its handle, and what is remembered of it; the first readings are made here."""

    def __init__(self, index: int) -> None:
        self._handle = handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
        self.gpu = Gpu(
            index=index,
            uuid=pynvml.nvmlDeviceGetUUID(handle),
            name=pynvml.nvmlDeviceGetName(handle),
            memory_total_bytes=memory and memory.total,
        )
        self._readers: list[Callable[[Any], dict[str, Any]]] = [*_READERS, self._energy]
        self._energy_mj: int | None = nvml.optional(nvml.energy_mj, handle)
        self._spent_mj = 0
        self._links: nvml.LinkReading | None = nvml.optional(nvml.nvlink, handle)
        if self._links is not None:
            self._readers.append(self._nvlink)
        self._lost: str | None = None
        self._lost_samples = 0

    def sample(self, is_turn: bool) -> GpuSample:
        """Asks the GPU, the dear question too if it is its turn."""
        if self._lost_samples > 0:
            self._lost_samples -= 1
            return GpuSample(index=self.gpu.index, uuid=self.gpu.uuid, error=self._lost)
        values: dict[str, Any] = {}
        error = None
        for read in [*self._readers, *([nvml.pcie] if is_turn else [])]:
            try:
                values.update(read(self._handle))
            except pynvml.NVMLError as problem:
                if problem.value in nvml.UNSUPPORTED:
                    continue
                error = str(problem)
                if problem.value in nvml.LOST:
                    # Each further call could hang in the driver for seconds.
                    self._lost, self._lost_samples = error, LOST_SAMPLES
                    break
        return GpuSample(index=self.gpu.index, uuid=self.gpu.uuid, error=error, **values)

    def _energy(self, handle: Any) -> dict[str, float]:
        now_mj = nvml.energy_mj(handle)
        if self._energy_mj is not None:
            self._spent_mj += counted(self._energy_mj, now_mj)
        self._energy_mj = now_mj
        return {"energy_j": self._spent_mj / 1000}

    def _nvlink(self, handle: Any) -> dict[str, float | None]:
        before, now = self._links, nvml.nvlink(handle)
        self._links = now
        if before is None:
            return {}
        elapsed_s = now.time_s - before.time_s
        sent = megabytes_per_s(before.sent_bytes, now.sent_bytes, elapsed_s)
        received = megabytes_per_s(before.received_bytes, now.received_bytes, elapsed_s)
        return {"nvlink_sent_MB_per_s": sent, "nvlink_received_MB_per_s": received}
