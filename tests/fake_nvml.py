"""An NVML library of made-up GPUs, behind the real nvidia-ml-py."""

import collections
import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

import pynvml

V100 = ("Tesla V100-SXM2-16GB", (7, 0))
_UUID = b"GPU-00000000-0000-0000-0000-%012d"


class FakeNvml:
    """A libnvidia-ml.so.1 for the real nvidia-ml-py."""

    def __init__(self) -> None:
        self.gpus = 0
        self.init = pynvml.NVML_SUCCESS
        """what nvmlInit returns"""
        self.dead: int | None = None
        """GPU that is lost from the start"""
        self.lost_after: dict[int, int] = {}
        """GPU -> questions for its utilisation, two a sample, after which it falls off the bus"""
        self.asked_of_lost: list[str] = []
        """functions that were asked of a lost GPU"""
        self.models = collections.defaultdict(lambda: V100)
        """GPU -> name and compute capability"""
        self.codes: dict[str, int] = {}
        """name of a function -> what it returns in place of an answer"""
        self.questions: collections.Counter[tuple[str, int]] = collections.Counter()
        """how often a function was asked of a GPU"""
        self.answers: dict[str, Callable[..., int | bytes]] = {
            "UUID": lambda gpu, text, size: _UUID % gpu,
            "Name": lambda gpu, text, size: self.models[gpu][0].encode(),
            "CudaComputeCapability": self._capability,
            "UtilizationRates": self._utilisation,
            "MemoryInfo": self._memory,
            "PowerUsage": lambda gpu, mw: 250_500 + gpu,
            "EnforcedPowerLimit": lambda gpu, mw: 300_000,
            "TotalEnergyConsumption": self._energy_mj,
            "CurrentClocksEventReasons": lambda gpu, bits: 0x4,
            # The older name of the same: tells of heat, so that a test sees which one was asked.
            "CurrentClocksThrottleReasons": lambda gpu, bits: 0x20,
        }
        """nvmlDeviceGet... -> text, or number behind its last pointer"""

    def __getattr__(self, name: str) -> Callable[..., int]:
        short = name.removeprefix("nvmlDeviceGet")
        if short not in self.__dict__.get("answers", {}):
            raise AttributeError(name)
        return functools.partial(self._answer, short)

    def _answer(self, name: str, handle: Any, *arguments: Any) -> int:
        gpu = ctypes.c_void_p.from_buffer(handle).value - 1
        self.questions[name, gpu] += 1
        if self.questions["UtilizationRates", gpu] > self.lost_after.get(gpu, sys.maxsize):
            self.asked_of_lost.append(name)
            return pynvml.NVML_ERROR_GPU_IS_LOST
        if name in self.codes:
            return self.codes[name]
        found = self.answers[name](gpu, *arguments)
        if isinstance(found, bytes):
            arguments[0].value = found
        elif hasattr(arguments[-1]._obj, "value"):
            arguments[-1]._obj.value = found
        return pynvml.NVML_SUCCESS

    def nvmlInitWithFlags(self, flags: int) -> int:
        return self.init

    def nvmlShutdown(self) -> int:
        return pynvml.NVML_SUCCESS

    def nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> int:
        text.value = b"535.161.08"
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self.gpus
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, device: Any) -> int:
        if index.value == self.dead:
            return pynvml.NVML_ERROR_GPU_IS_LOST
        ctypes.c_void_p.from_buffer(device._obj).value = index.value + 1
        return pynvml.NVML_SUCCESS

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, device: Any) -> int:
        gpu = int(uuid.value.rpartition(b"-")[2])
        if uuid.value != _UUID % gpu or gpu >= self.gpus:
            return pynvml.NVML_ERROR_NOT_FOUND
        ctypes.c_void_p.from_buffer(device._obj).value = gpu + 1
        return pynvml.NVML_SUCCESS

    def _capability(self, gpu: int, major: Any, minor: Any) -> int:
        major._obj.value, found = self.models[gpu][1]
        return found

    def _utilisation(self, gpu: int, rates: Any) -> int:
        rates._obj.gpu, rates._obj.memory = 97 + gpu, 40 + gpu
        return 0

    def _memory(self, gpu: int, memory: Any) -> int:
        memory._obj.total, memory._obj.used, memory._obj.free = 16 << 30, 10 << 30, 6 << 30
        return 0

    def _energy_mj(self, gpu: int, millijoules: Any) -> int:
        return 7_000_000 + 250_500 * self.questions["TotalEnergyConsumption", gpu]
