"""A thread per host that writes one sample of GPUs, network, CPU and memory per interval.

Its file `telemetry/<host>.jsonl` has two kinds of lines: "host", once per start, says what the host
is; "sample" says what it did since the sample before. No collectives, nothing over the network, and
nothing that goes wrong here stops the training.
"""

import contextlib
import dataclasses
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, final

from hvd_nmt.telemetry import jsonl
from hvd_nmt.telemetry.events import EventWriter
from hvd_nmt.telemetry.gpu import GpuProbe, spinning
from hvd_nmt.telemetry.host import host_facts, host_sample
from hvd_nmt.telemetry.network import NetworkProbe, nics

_log = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 5.0
_BYTES_PER_GB = 1e9
_NO_SCALARS = {"index", "time_s", "monotonic_s"}
"""numbers of a sample that say which one it is, not what was measured"""
Answer = TypeVar("Answer")


@final
class Sampler:
    """Samples this host, all its GPUs and interfaces, until it is stopped; a context manager."""

    def __init__(
        self,
        path: Path,
        interval_s: float = 1.0,
        *,
        host: str | None = None,
        event_dir: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        stopping: threading.Event | None = None,
    ) -> None:
        """Sets the sampler up; nothing is opened before `start`.

        Args:
            path: the host's file, continued if it is there.
            interval_s: seconds from sample to sample, above 0.
            host: name in the lines; the machine's own if None.
            event_dir: also write scalars for TensorBoard here (`tensorboard/<host>` of the run
                directory), at most one set per second; their step is seconds since the file began.
            clock: gives seconds; tests give their own.
            stopping: is waited on between samples, and ends them when it is set.
        """
        self.path = path
        self.interval_s = interval_s
        self.host = host or socket.gethostname()
        self.event_dir = event_dir
        self._clock = clock
        self._stopping = stopping or threading.Event()
        # A daemon, so that a GPU driver that hangs cannot keep a finished training from ending.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._warned: set[str] = set()

    def start(self) -> None:
        """Starts the thread and returns at once; RuntimeError: it was started before."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and closes its files; does nothing when it is not running."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            _log.warning("%s: a probe hangs (a GPU driver?); telemetry ends unfinished.", self.host)

    def __enter__(self) -> "Sampler":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with contextlib.ExitStack() as stack:
                begun_s = _begun_s(self.path)
                file = stack.enter_context(contextlib.closing(jsonl.JsonlFile(self.path)))
                events = None
                if self.event_dir:
                    events = stack.enter_context(contextlib.closing(EventWriter(self.event_dir)))
                gpus = stack.enter_context(contextlib.closing(GpuProbe()))
                self._sample_until_stopped(file, events, gpus, begun_s)
        except OSError as error:
            where, why = error.filename or self.path, error.strerror or error
            stops = f"Telemetry of {self.host} stops, the training goes on"
            _log.warning("%s: %s cannot be written (%s).", stops, where, why)

    def _sample_until_stopped(
        self,
        file: jsonl.JsonlFile,
        events: EventWriter | None,
        gpus: GpuProbe,
        begun_s: float | None,
    ) -> None:
        # The probes take their first reading now, so the first sample covers a whole interval.
        self._ask("host", host_sample)
        network = self._ask("network", NetworkProbe)
        header = self._header(gpus)
        file.append(header)
        started_s = self._clock()
        first_step = 0 if begun_s is None else max(0, int(header["time_s"] - begun_s) + 1)
        written_step = -1
        deadline_s = started_s + self.interval_s
        while not self._stopping.wait(max(0.0, deadline_s - self._clock())):
            sample = self._sample(gpus, network)
            file.append(sample)
            step = first_step + int(sample["monotonic_s"] - started_s)
            # TensorBoard takes a step that does not grow for a restart and drops the old one.
            if events and step > written_step:
                events.scalars(step, scalar_tags(sample), sample["time_s"])
                written_step = step
            deadline_s = _next_deadline_s(deadline_s, self._clock(), self.interval_s)

    def _header(self, gpus: GpuProbe) -> dict[str, Any]:
        if gpus.unavailable:
            _log.info("%s samples no GPU: %s", self.host, gpus.unavailable)
        for problem in gpus.problems:
            _log.warning("%s: %s", self.host, problem)
        states = self._ask("network", nics) or {}
        return {
            "kind": "host",
            "time_s": time.time(),
            "monotonic_s": self._clock(),
            "interval_s": self.interval_s,
            **(self._ask("host", host_facts) or {}),
            "host": self.host,
            "nics": {name: dataclasses.asdict(nic) for name, nic in states.items()},
            "gpus": [dataclasses.asdict(gpu) for gpu in gpus.gpus],
            "gpu_problems": gpus.problems,
            "gpu_unavailable": gpus.unavailable,
            "gpu_driver_version": gpus.driver_version,
        }

    def _sample(self, gpus: GpuProbe, network: NetworkProbe | None) -> dict[str, Any]:
        time_s, monotonic_s = time.time(), self._clock()
        gpu_samples = self._ask("GPU", gpus.sample) or []
        for gpu in gpu_samples:
            if gpu.error:
                self._say_once(f"GPU {gpu.index} ({gpu.uuid}) does not answer: {gpu.error}")
        nic_samples = (network and self._ask("network", network.sample)) or {}
        return {
            "kind": "sample",
            "time_s": time_s,
            "monotonic_s": monotonic_s,
            "host": self.host,
            "gpus": [dataclasses.asdict(gpu) for gpu in gpu_samples],
            "nics": {name: dataclasses.asdict(nic) for name, nic in nic_samples.items()},
            **(self._ask("host", host_sample) or {}),
        }

    def _ask(self, probe: str, question: Callable[[], Answer]) -> Answer | None:
        """Asks a probe; one that fails costs its own values and nothing else."""
        try:
            return question()
        except Exception as error:
            self._say_once(f"the {probe} probe failed: {type(error).__name__}: {error}")
            return None

    def _say_once(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s: %s", self.host, what)


def scalar_tags(sample: dict[str, Any]) -> dict[str, float]:
    """Flattens a line of kind "sample" for TensorBoard: values by tag.

    Tags are such as `gpu/0/power_w`, `nic/eth0/sent_MB_per_s`, `host/memory_used_GB`.
    `gpu/0/spinning` is 1 or 0. What is unknown has no tag, nor has an interface that never
    carried a byte.
    """
    tags = _numbers("host/", sample)
    for gpu in sample["gpus"]:
        prefix = f"gpu/{gpu['index']}/"
        tags |= _numbers(prefix, gpu)
        spins = spinning(gpu)
        if spins is not None:
            tags[prefix + "spinning"] = float(spins)
    for name, nic in sample["nics"].items():
        if nic["sent_bytes_total"] or nic["received_bytes_total"]:
            both = ("sent_MB_per_s", "received_MB_per_s")
            tags |= _numbers(f"nic/{name}/", {rate: nic.get(rate) for rate in both})
    return tags


def _numbers(prefix: str, values: dict[str, Any]) -> dict[str, float]:
    """The numbers among some values by tag; sizes in GB."""
    tags = {}
    for name, value in values.items():
        if isinstance(value, int | float) and name not in _NO_SCALARS:
            if name.endswith("_bytes"):
                name, value = f"{name.removesuffix('_bytes')}_GB", value / _BYTES_PER_GB
            tags[prefix + name] = value
    return tags


def _next_deadline_s(deadline_s: float, now_s: float, interval_s: float) -> float:
    """The next moment on the grid of the first deadline: what was missed is skipped."""
    missed = max(0, int((now_s - deadline_s) // interval_s))
    return deadline_s + (missed + 1) * interval_s


def _begun_s(path: Path) -> float | None:
    """Unix time of a file's first line; None for a new file."""
    if not path.is_file():  # a device, such as /dev/full in the tests, may have no first line's end
        return None
    try:
        return next(jsonl.read(path), {}).get("time_s")
    except OSError:
        return None
