"""What one host reports about itself, in its agent; without TensorFlow."""

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hvd_nmt.checkpoints import manifest, names
from hvd_nmt.common.errors import DataError
from hvd_nmt.common.version import code_hash, horovod_built_with
from hvd_nmt.hosts.host_list import Host, addresses
from hvd_nmt.telemetry.gpu import GpuProbe

PACKAGES = ("tensorflow", "tensorflow-text", "tf-keras", "horovod", "sentencepiece")
"""packages with different versions of which a run refuses to start"""


@dataclass(frozen=True)
class HostFacts:
    """What asking one host gave."""

    host: Host
    facts: dict[str, Any] = field(default_factory=dict)
    """result of `gather` there; {} without an answer"""
    error: str | None = None
    """reason for no answer, in words"""
    clock_differs_s: float = 0.0
    """seconds from the clock here, with those that the answer took"""


def gather(request: dict[str, Any]) -> dict[str, Any]:
    """Everything this host knows about itself.

    Args:
        request: any of `hosts` (all names), `run_dir`, `data`, `device`, `deadline_s`.

    Returns:
        The values of `_FACTS` by name, and `time_s`, by this host's clock at the end; or `error`:
        which fact is missing, and why. A lost file server, say, answers no question.
    """
    limit_s = request.get("deadline_s", 10.0)
    pool = ThreadPoolExecutor(len(_FACTS))
    answers = {name: pool.submit(fact, request) for name, fact in _FACTS.items()}
    wait(answers.values(), limit_s)
    for name, answer in answers.items():
        if not answer.done():
            return {"error": f"{name}: no answer within {limit_s:g} s"}
        if error := answer.exception():
            return {"error": f"{name}: {type(error).__name__}: {error}"}
    return {name: answer.result() for name, answer in answers.items()} | {"time_s": time.time()}


def _packages(request: dict[str, Any]) -> dict[str, str | None]:
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"Python": platform.python_version(), **versions}


def gpu(request: dict[str, Any]) -> dict[str, Any]:
    """The GPUs of this host, and CUDA_VISIBLE_DEVICES; for a run on processors none."""
    if request.get("device") == "cpu":
        return {"gpus": [], "unavailable": "training.device is cpu", "visible_devices": None}
    with contextlib.closing(GpuProbe()) as probe:
        gpus = [
            dataclasses.asdict(gpu) | {"error": sample["error"]}
            for gpu, sample in zip(probe.gpus, probe.sample(), strict=True)
        ]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return {"gpus": gpus, "unavailable": probe.unavailable, "visible_devices": visible}


def nics(request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Network card -> whether it is up, and the speed of its link; None: not known."""
    return {
        name: {"is_up": state.isup, "link_mbit_per_s": state.speed or None}
        for name, state in psutil.net_if_stats().items()
    }


def _names(request: dict[str, Any]) -> dict[str, list[str]]:
    """Name of each host, and what this one calls itself -> its addresses; []: it has none."""
    return {name: addresses(name) for name in [*request.get("hosts", []), socket.gethostname()]}


def routes(request: dict[str, Any]) -> dict[str, str | None]:
    """Host -> the card that leads there; None: no way. Connecting a UDP socket sends nothing."""
    nic_of = {
        address.address.partition("%")[0]: nic
        for nic, of_nic in psutil.net_if_addrs().items()
        for address in of_nic
    }
    nic_to: dict[str, str | None] = dict.fromkeys(request.get("hosts", []))
    for name in nic_to:
        for address in addresses(name)[:1]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                nic_to[name] = nic_of.get(str(probe.getsockname()[0]))
    return nic_to


def _run_dir(request: dict[str, Any]) -> dict[str, Any]:
    """The run directory, or the folder for it: its room, and whether it can be written."""
    from hvd_nmt.checkpoints.run_files import RunDirectory  # brings NumPy, half of an agent's start

    path = Path(request.get("run_dir", "."))
    absolute = path.absolute()
    folder = next(folder for folder in (absolute, *absolute.parents) if folder.exists())
    files = [*path.glob(f"{names.NEWEST}*"), *path.glob(f"{names.BEST_DIR}/*")]
    result: dict[str, Any] = {
        "path": str(path), "free_bytes": shutil.disk_usage(folder).free, "error": None,
        "held_by": RunDirectory(path).holder() or None, "held_bytes": 0,
        "saved_step": manifest.newest_step(path),
    }  # fmt: skip
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        result["error"] = f"{folder}: {error.strerror}"
    with contextlib.suppress(OSError):
        result["held_bytes"] = sum(file.stat().st_size for file in files)
    return result


def _data(request: dict[str, Any]) -> dict[str, Any]:
    """What the prepared data directory holds; `error` where it cannot be used."""
    from hvd_nmt.data import corpus  # brings NumPy

    path = Path(request.get("data", "."))
    try:
        prepared = corpus.load(path).manifest
    except DataError as error:
        return {"error": str(error), "exists": (path / corpus.MANIFEST).exists()}
    return {
        "error": None, "exists": True, "hash": prepared.hash,
        "vocabulary_size": prepared.vocabulary_size,
        "source_vocabulary_size": prepared.source_vocabulary_size,
        "pairs": prepared.parts["train"].pairs,
    }  # fmt: skip


_FACTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "host": lambda request: socket.gethostname(),
    "code": lambda request: code_hash(),
    "cores": lambda request: len(os.sched_getaffinity(0)),
    "horovod": lambda request: horovod_built_with(),
    "packages": _packages, "gpu": gpu, "nics": nics, "names": _names, "routes": routes,
    "run_dir": _run_dir, "data": _data,
}  # fmt: skip
