"""Made-up GPUs behind the functions of nvidia-ml-py; a GPU's handle is its number."""

import collections
import functools
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

NAME = "Tesla V100-SXM2-16GB"
_UUID = "GPU-00000000-0000-0000-0000-{:012d}"


class FakeNvml:
    """The NVML of a host with some V100 GPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus = 0
        self.init: int | None = None
        """what starting NVML fails with"""
        self.dead: int | None = None
        """GPU that is lost from the start"""
        self.lost_after: dict[int, int] = {}
        """GPU -> questions for its utilisation, two a sample, after which it falls off the bus"""
        self.asked_of_lost: list[str] = []
        """functions that were asked of a lost GPU"""
        self.codes: dict[str, int] = {}
        """name of a function -> what it fails with"""
        self.questions: collections.Counter[tuple[str, int]] = collections.Counter()
        """how often a function was asked of a GPU"""
        answers: dict[str, Callable[[int], Any]] = {
            "UUID": _UUID.format,
            "Name": lambda gpu: NAME,
            "UtilizationRates": lambda gpu: SimpleNamespace(gpu=97 + gpu, memory=40 + gpu),
            "MemoryInfo": lambda gpu: SimpleNamespace(used=10 << 30),
            "PowerUsage": lambda gpu: 250_500 + gpu,
            "EnforcedPowerLimit": lambda gpu: 300_000,
            "TotalEnergyConsumption": lambda gpu: 7_250_500,
            "CurrentClocksEventReasons": lambda gpu: 0x4,
            # The older name of the same: tells of heat, so that a test sees which one was asked.
            "CurrentClocksThrottleReasons": lambda gpu: 0x20,
        }
        for name, answer in answers.items():
            ask = functools.partial(self._ask, name, answer)
            monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", ask)
        monkeypatch.setattr(pynvml, "nvmlInit", self._start)
        monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: self.gpus)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", self._handle)

    def _start(self) -> None:
        if self.init is not None:
            raise pynvml.NVMLError(self.init)

    def _handle(self, index: int) -> int:
        if index == self.dead:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    def _ask(self, name: str, answer: Callable[[int], Any], gpu: int) -> Any:
        self.questions[name, gpu] += 1
        if self.questions["UtilizationRates", gpu] > self.lost_after.get(gpu, sys.maxsize):
            self.asked_of_lost.append(name)
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if name in self.codes:
            raise pynvml.NVMLError(self.codes[name])
        return answer(gpu)
