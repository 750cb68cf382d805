"""What one host says about itself, in its agent; without TensorFlow.

Every fact is found in a thread of its own with a time limit: a lost file server, say, stops no
other fact.
"""

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
from pathlib import Path
from typing import Any

from hvd_nmt.common.version import code_hash, horovod_built_with

PACKAGES = (
    "tensorflow", "tensorflow-text", "tf-keras", "horovod", "numpy", "protobuf", "sentencepiece",
    "sacrebleu", "psutil", "nvidia-ml-py", "nvidia-nccl-cu12", "nvidia-cudnn-cu12",
)  # fmt: skip
"""whose versions are compared between hosts"""
VERIFY_BYTES = 1_000_000_000
"""data of at most this size are read in full and compared with their sha256"""


def facts(request: dict[str, Any]) -> dict[str, Any]:
    """Everything this host knows about itself.

    Args:
        request: any of `hosts` (names of all hosts), `run_dir`, `data` (directory),
            `deadline_s`.

    Returns:
        The values of `_QUESTIONS` by name, None if not found out; `problems`: name -> why; and
        `time_s`, by this host's clock at the end.
    """
    limit_s = request.get("deadline_s", 10.0)
    pool = ThreadPoolExecutor(len(_QUESTIONS))
    answers = {name: pool.submit(question, request) for name, question in _QUESTIONS.items()}
    wait(answers.values(), limit_s)
    found: dict[str, Any] = dict.fromkeys(_QUESTIONS)
    problems = {}
    for name, answer in answers.items():
        if not answer.done():
            problems[name] = f"no answer within {limit_s:g} s"
        elif error := answer.exception():  # whatever it is, the other facts are still wanted
            problems[name] = f"{type(error).__name__}: {error}"
        else:
            found[name] = answer.result()
    return found | {"problems": problems, "time_s": time.time()}


def _packages(request: dict[str, Any]) -> dict[str, str | None]:
    found: dict[str, str | None] = {"Python": platform.python_version(), **dict.fromkeys(PACKAGES)}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def gpu(request: dict[str, Any]) -> dict[str, Any]:
    """The GPUs of this host, and CUDA_VISIBLE_DEVICES."""
    import pynvml

    from hvd_nmt.telemetry.gpu import GpuProbe

    with contextlib.closing(GpuProbe()) as probe:
        samples = probe.sample()
        gpus = []
        for gpu, sample in zip(probe.gpus, samples, strict=True):
            capability = None
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
                capability = list(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
            gpus.append({
                "index": gpu.index, "name": gpu.name, "uuid": gpu.uuid, "capability": capability,
                "error": sample.error,
            })  # fmt: skip
        return {
            "gpus": gpus,
            "driver": probe.driver_version,
            "unavailable": probe.unavailable,
            "problems": probe.problems,
            "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }


def _cpu(request: dict[str, Any]) -> dict[str, Any]:
    from hvd_nmt.config.precision import cpu_has_bfloat16
    from hvd_nmt.telemetry.host import cpu_flags

    cores = len(os.sched_getaffinity(0))
    return {"cores": cores, "bfloat16": cpu_has_bfloat16(cpu_flags())}


def _nics(request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    from hvd_nmt.telemetry.host import nics

    return {name: dataclasses.asdict(nic) for name, nic in nics().items()}


def _names(request: dict[str, Any]) -> dict[str, list[str]]:
    """The addresses of each host's name and of this host's own name; [] where there is none."""
    return {name: _addresses(name) for name in [*request.get("hosts", []), socket.gethostname()]}


def _addresses(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def routes(request: dict[str, Any]) -> dict[str, str | None]:
    """For each host the network card that packets to it leave by; None: there is no way.

    Connecting a UDP socket sends nothing; it only makes the kernel choose a route.
    """
    import psutil

    owner = {
        address.address.partition("%")[0]: nic
        for nic, addresses in psutil.net_if_addrs().items()
        for address in addresses
    }
    found: dict[str, str | None] = dict.fromkeys(request.get("hosts", []))
    for name in found:
        for address in _addresses(name)[:1]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))
                found[name] = owner.get(str(probe.getsockname()[0]))
    return found


def _disk(request: dict[str, Any]) -> dict[str, Any]:
    folder = _nearest_folder(Path(request.get("run_dir", ".")))
    return {"free_bytes": shutil.disk_usage(folder).free, "path": str(folder)}


def _run_dir(request: dict[str, Any]) -> dict[str, Any]:
    """Whether the run directory, or the folder it is to be made in, can be written to."""
    from hvd_nmt.checkpoints import manifest, names, run_files
    from hvd_nmt.common.files import is_locked

    path = Path(request.get("run_dir", "."))
    result: dict[str, Any] = {"path": str(path), "error": None, "held_by": None, "held_bytes": 0}
    result["saved_step"] = manifest.newest_step(path)
    folder = _nearest_folder(path)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        result["error"] = f"{folder}: {error.strerror}"
    with contextlib.suppress(OSError), (path / run_files.LOCK).open("r", encoding="utf-8") as lock:
        if is_locked(lock):
            result["held_by"] = lock.read().strip() or "unknown"
    files = [*path.glob(f"{names.NEWEST}*"), *path.glob(f"{names.BEST_DIR}/*")]
    with contextlib.suppress(OSError):
        result["held_bytes"] = sum(file.stat().st_size for file in files)
    return result


def _nearest_folder(path: Path) -> Path:
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _data(request: dict[str, Any]) -> dict[str, Any] | None:
    """What the prepared data directory holds; `error` where it cannot be used."""
    from hvd_nmt.common.errors import DataError
    from hvd_nmt.data import corpus

    if "data" not in request:
        return None
    path = Path(request["data"])
    try:
        manifest = corpus.read_manifest(path)
        small = sum(file.n_bytes for file in manifest.files.values()) <= VERIFY_BYTES
        corpus.load(path, verify=small)
    except DataError as error:
        return {"error": str(error), "exists": (path / corpus.MANIFEST).exists()}
    train = manifest.parts["train"]
    return {
        "error": None, "exists": True, "verified": small, "hash": manifest.hash,
        "vocabulary_size": manifest.vocabulary_size,
        "source_vocabulary_size": manifest.source_vocabulary_size,
        "pairs": train.pairs, "source_tokens": train.source.tokens,
        "target_tokens": train.target.tokens,
    }  # fmt: skip


_QUESTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "host": lambda request: socket.gethostname(),
    "code": lambda request: code_hash(),
    "horovod": lambda request: horovod_built_with(),
    "packages": _packages, "gpu": gpu, "cpu": _cpu, "nics": _nics, "names": _names,
    "routes": routes, "disk": _disk, "run_dir": _run_dir, "data": _data,
}  # fmt: skip
