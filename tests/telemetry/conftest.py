"""What the telemetry tests share: made-up GPUs, and Python in a process of its own."""

import collections
import ctypes
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

RunPython = Callable[..., Any]


@pytest.fixture
def run_python() -> RunPython:
    """Runs a script in a new Python, warnings as errors, and gives the JSON that it prints last."""

    def run(script: str, *prefix: str, **environment: str) -> Any:
        command = [*prefix, sys.executable, "-W", "error", "-c", script]
        environment = {**os.environ, **environment}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


class FakeNvml:
    """A libnvidia-ml.so.1 for the real nvidia-ml-py; GPU 1 has no temperature sensor, no NVLink."""

    def __init__(self) -> None:
        self.gpus = 0
        self.init = pynvml.NVML_SUCCESS
        """what nvmlInit returns"""
        self.dead: int | None = None
        """GPU that is lost from the start"""
        self.mig: int | None = None
        """GPU in MIG mode"""
        self.lost_after: dict[int, int] = {}
        """GPU -> questions for its utilisation after which it falls off the bus"""
        self.asked_of_lost: list[str] = []
        """functions that were asked of a lost GPU"""
        self.codes: dict[str, int] = {}
        """name of a function -> what it returns in place of an answer"""
        self.questions: collections.Counter[tuple[str, int]] = collections.Counter()
        """how often a function was asked of a GPU"""
        self.answers: dict[str, Callable[..., int | bytes | None]] = {
            "UUID": lambda gpu, text, size: b"GPU-00000000-0000-0000-0000-%012d" % gpu,
            "Name": lambda gpu, text, size: b"Tesla V100-SXM2-16GB",
            "UtilizationRates": self._utilisation,
            "MemoryInfo": self._memory,
            "PowerUsage": lambda gpu, mw: 250_500 + gpu,
            "EnforcedPowerLimit": lambda gpu, mw: 300_000,
            "TotalEnergyConsumption": self._energy_mj,
            "ClockInfo": lambda gpu, kind, mhz: {pynvml.NVML_CLOCK_SM: 1380}.get(kind.value),
            "CurrentClocksEventReasons": lambda gpu, bits: 0x4,
            # The older name of the same: tells of heat, so that a test sees which one was asked.
            "CurrentClocksThrottleReasons": lambda gpu, bits: 0x20,
            "Temperature": lambda gpu, sensor, celsius: None if gpu == 1 else 61,
            "PcieThroughput": self._pcie_KB_per_s,
            "FieldValues": self._nvlink,
        }
        """nvmlDeviceGet... -> text, or number behind its last pointer; None: unsupported"""

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
            arguments[-1]._obj.value = found or 0
        return pynvml.NVML_ERROR_NOT_SUPPORTED if found is None else pynvml.NVML_SUCCESS

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

    def _utilisation(self, gpu: int, rates: Any) -> int | None:
        rates._obj.gpu, rates._obj.memory = 97 + gpu, 40 + gpu
        return None if gpu == self.mig else 0

    def _memory(self, gpu: int, memory: Any) -> int:
        memory._obj.total, memory._obj.used, memory._obj.free = 16 << 30, 10 << 30, 6 << 30
        return 0

    def _energy_mj(self, gpu: int, millijoules: Any) -> int:
        return 7_000_000 + 250_500 * self.questions["TotalEnergyConsumption", gpu]

    def _pcie_KB_per_s(self, gpu: int, counter: Any, rate: Any) -> int:
        time.sleep(0.02)  # a real one counts for as long
        return 1_500_000 if counter.value == pynvml.NVML_PCIE_UTIL_TX_BYTES else 3_000_000

    def _nvlink(self, gpu: int, count: Any, values: Any) -> int:
        """A million KiB more out and two million more in, over six links, at each question."""
        for value in values._obj:
            value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if gpu == 1 else 0
            links = 1 if value.scopeId == 0xFFFFFFFF else 6
            is_in = value.fieldId == pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
            moved_KiB = 1_000_000 * self.questions["FieldValues", gpu]
            value.value.ullVal = (2 if is_in else 1) * moved_KiB // links
        return 0


@pytest.fixture
def nvml_library(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The NVML of this host: no GPU, until a test says otherwise."""
    library = FakeNvml()
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    return library
