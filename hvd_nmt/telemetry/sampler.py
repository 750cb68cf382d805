"""A thread per host that writes one sample of GPUs, network, CPU and memory per interval.

Its file `telemetry/<host>.jsonl` has two kinds of lines: "host", once per start, says what the host
is; "sample" says what it did since the sample before. Nothing goes over the network.
"""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, final

from hvd_nmt.common import jsonl
from hvd_nmt.common.progress import say
from hvd_nmt.telemetry.events import EventWriter
from hvd_nmt.telemetry.gpu import GpuProbe, spinning
from hvd_nmt.telemetry.host import NetworkProbe, OwnProcesses, host_sample, round_trip_ms

_log = logging.getLogger(__name__)
_STOP_TIMEOUT_S = 5.0
_BYTES_PER_GB = 1e9


@final
class Sampler:
    """Samples this host, all its GPUs and interfaces; what goes wrong never stops the training."""

    def __init__(
        self, path: Path, event_dir: Path, interval_s: float = 1.0, pids: Sequence[int] = (),
        zero_s: float = 0.0, peers: Collection[str] = (),
    ) -> None:  # fmt: skip
        """Sets the sampler up; nothing is opened before `start`. `pids`: of the run's ranks here.

        `path` is the host's file, `<host>.jsonl`, continued if it is there; `event_dir` is for
        TensorBoard's scalars, at most one set per second, whose step is seconds since it began.
        `zero_s` is the run's unix time when this machine was started; `peers` are addresses of
        the run's other hosts.
        """
        self._path, self._event_dir = path, event_dir
        self._interval_s, self._zero_s = interval_s, zero_s
        self._stopping, self._pids, self._peers = threading.Event(), pids, peers
        # A daemon, so that a GPU driver that hangs cannot keep a finished training from ending.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._lost_gpus: set[int] = set()

    def start(self) -> None:
        """Starts the thread and returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and closes its files; does nothing when it is not running."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)
        if self._thread.is_alive():
            self._warn("a probe hangs (a GPU driver?); telemetry ends unfinished.")

    def _run(self) -> None:
        try:
            with (
                contextlib.closing(jsonl.JsonlFile(self._path)) as file,
                contextlib.closing(EventWriter(self._event_dir, self._now_s())) as events,
                contextlib.closing(GpuProbe()) as gpus,
            ):
                self._sample_until_stopped(file, events, gpus)
        except Exception as error:  # a full disk, or what the system does not tell
            self._warn(f"telemetry stops ({error}), the training continues.")

    def _sample_until_stopped(
        self, file: jsonl.JsonlFile, events: EventWriter, gpus: GpuProbe
    ) -> None:
        # The first readings are taken now, so the first sample covers a whole interval.
        host_sample()
        network, ranks = NetworkProbe(), OwnProcesses(self._pids)
        file.append(self._header(gpus))
        begun_s = next(jsonl.read(self._path))["time_s"]
        written_step = -1
        while not self._stopping.wait(self._interval_s):
            sample = self._sample(gpus, network) | {"own_cpu_percent": ranks.percent()}
            sample["round_trip_ms"] = round_trip_ms(self._peers)
            file.append(sample)
            step = int(sample["time_s"] - begun_s)
            # TensorBoard takes a step that does not grow for a restart and drops the old one.
            if step > written_step:
                events.write(step, scalar_tags(sample), sample["time_s"])
                written_step = step

    def _header(self, gpus: GpuProbe) -> dict[str, Any]:
        names = ", ".join(gpu.name for gpu in gpus.gpus) or f"no GPU ({gpus.unavailable})"
        say(f"telemetry   {self._path.stem}: {names}; network, CPU, memory")
        return {
            "kind": "host",
            "time_s": self._now_s(),
            "host": self._path.stem,
            "interval_s": self._interval_s,
            "gpus": [dataclasses.asdict(gpu) for gpu in gpus.gpus],
            "gpu_unavailable": gpus.unavailable,
        }

    def _sample(self, gpus: GpuProbe, network: NetworkProbe) -> dict[str, Any]:
        time_s = self._now_s()
        of_gpus = gpus.sample()
        for gpu in of_gpus:
            if gpu["error"] and gpu["index"] not in self._lost_gpus:
                self._lost_gpus.add(gpu["index"])
                self._warn(f"GPU {gpu['index']} does not answer: {gpu['error']}")
        return {
            "kind": "sample",
            "time_s": time_s,
            "gpus": of_gpus,
            "nics": network.sample(),
            **host_sample(),
        }

    def _now_s(self) -> float:
        return self._zero_s + jsonl.uptime_s()

    def _warn(self, what: str) -> None:
        _log.warning("%s: %s", self._path.stem, what)


def scalar_tags(sample: dict[str, Any]) -> dict[str, float]:
    """Flattens a line of kind "sample" for TensorBoard: values by tag.

    Tags are such as `gpu/0/power_w`, `network/eth0/sent_MB_per_s`, `host/memory_used_GB`.
    `gpu/0/spinning` is 1 or 0. What is unknown has no tag, nor has an interface never used.
    """
    tags = _numbers("host", sample | {"time_s": None})
    for gpu in sample["gpus"]:
        tags |= _numbers(f"gpu/{gpu['index']}", gpu | {"index": None, "spinning": spinning(gpu)})
    for name, nic in sample["nics"].items():
        if nic["sent_bytes_total"] or nic["received_bytes_total"]:
            rates = ("sent_MB_per_s", "received_MB_per_s")
            tags |= _numbers(f"network/{name}", {rate: nic[rate] for rate in rates})
    return tags


def _numbers(prefix: str, values: dict[str, Any]) -> dict[str, float]:
    """The numbers among some values by tag; sizes in GB."""
    tags = {}
    for name, value in values.items():
        if isinstance(value, int | float):
            in_GB = name.endswith("_bytes")
            tag = name.replace("_bytes", "_GB") if in_GB else name
            tags[f"{prefix}/{tag}"] = value / _BYTES_PER_GB if in_GB else float(value)
    return tags
