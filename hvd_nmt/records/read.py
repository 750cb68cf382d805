"""A run directory of this package as a `Run`: finished, going on, resumed or killed."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path
from typing import Any

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.manifest import newest_step
from hvd_nmt.checkpoints.run_files import (
    CONFIG,
    ENVIRONMENT,
    IMPORTED,
    LOCK,
    NOT_FINITE,
    TELEMETRY_DIR,
    data_of_run,
)
from hvd_nmt.common.errors import ConfigError, DataError, RunError
from hvd_nmt.common.files import is_locked
from hvd_nmt.config import Config
from hvd_nmt.records import launches, metrics, openseq2seq_log
from hvd_nmt.records.record import HostSamples, Run
from hvd_nmt.telemetry import events, jsonl

Problems = list[str]


def read_any_run(path: Path) -> Run:
    """Reads a run directory of this package or an OpenSeq2Seq log; RunError: it is neither."""
    if path.is_dir():
        return read_run(path)
    if path.is_file():
        return openseq2seq_log.read_log(path)
    raise RunError(f"{path} does not exist: give a run directory, or the log of OpenSeq2Seq.")


def read_run(run_dir: Path) -> Run:
    """Reads a run directory; RunError: it is missing or is none.

    Any file of it may be missing: what it would tell is then unknown, and `problems` says so. Steps
    that were done again after a resume count once, as they were done last.
    """
    if not any((run_dir / name).exists() for name in (CONFIG, events.METRICS_FILE)):
        state = f"has neither {CONFIG} nor {events.METRICS_FILE}"
        raise RunError(
            f"{run_dir} {state if run_dir.is_dir() else 'does not exist'}: give the run directory "
            "of a training run (--run-dir of hvd_nmt.train)."
        )
    problems: Problems = []
    config, settings = _config(run_dir, problems)
    environment = _environment(run_dir, problems)
    lines = metrics.read_lines(run_dir, problems)
    is_imported = not lines and (run_dir / IMPORTED).exists()
    if is_imported:
        config, settings = None, {name: settings[name] for name in ("model",) if name in settings}
        problems.append(
            f"{run_dir} holds an imported model and nothing has been trained in it: of the "
            f"training before that it knows what {IMPORTED} says, and no steps or settings."
        )
    start = metrics.last_start(lines)
    hosts = tuple(start.get("hosts") or environment.get("hosts") or ())
    parameters, gradient_bytes = metrics.gradient(start, len(hosts))
    if start and parameters is None:
        problems.append("The run does not record how many parameters its model has.")
    intervals, evaluations = metrics.history(lines)
    telemetry = _telemetry(run_dir, problems)
    _note_missing_hosts(run_dir, settings, set(hosts), problems)
    times_s = metrics.times_s(lines)
    times_s = times_s or metrics.times_s(line for host in telemetry for line in host.samples)
    max_steps = settings.get("training", {}).get("max_steps")
    saved = None if is_imported else newest_step(run_dir)
    finished = metrics.finished(lines)
    if not lines and saved is not None:
        finished = max_steps is not None and saved >= max_steps
        problems.append(
            f"That it came to step {saved:,} is known from its newest checkpoint alone; what was "
            "done after that, and how long the steps took, is not."
        )
    return Run(
        name=run_dir.resolve().name, path=run_dir, source="hvd_nmt", hosts=hosts,
        start_hosts=metrics.start_hosts(lines), parameters=parameters,
        gradient_bytes=gradient_bytes, max_steps=max_steps, saved_step=saved, finished=finished,
        locked=_is_locked(run_dir / LOCK), started_s=min(times_s, default=None),
        startup_s=metrics.startup_s(lines), ended_s=max(times_s, default=None),
        config=settings, environment=environment, manifest=_manifest(run_dir, config, problems),
        intervals=tuple(intervals), evaluations=tuple(evaluations),
        saves=metrics.saves(lines),
        not_finite=_not_finite(run_dir), early_end=metrics.early_end(lines),
        exchanges=metrics.exchanges(lines), telemetry=tuple(telemetry),
        launches=launches.read(run_dir, lines, problems), problems=tuple(problems),
    )  # fmt: skip


def _not_finite(run_dir: Path) -> tuple[int, ...]:
    path = run_dir / NOT_FINITE
    lines = jsonl.read(path) if path.exists() else ()
    return tuple(sorted({line["step"] for line in lines if "step" in line}))


def _is_locked(lock: Path) -> bool | None:
    """Whether the process that wrote the lock still holds it; it can be told on its host only."""
    try:
        with lock.open("rb") as file:
            if f" on {socket.gethostname()}," not in file.read().decode(errors="replace"):
                return None
            return is_locked(file)
    except OSError:
        return None


def _config(run_dir: Path, problems: Problems) -> tuple[Config | None, dict[str, Any]]:
    path = run_dir / CONFIG
    if not path.exists():
        problems.append(f"{path} is missing, so the settings of the run are unknown.")
        return None, {}
    try:
        config = configuration.load(path)
        return config, configuration.as_plain(config)
    except ConfigError as error:
        problems.append(f"The settings of the run are unknown. {error}")
        return None, {}


def _environment(run_dir: Path, problems: Problems) -> dict[str, Any]:
    path = run_dir / ENVIRONMENT
    if not path.exists():
        problems.append(f"{path} is missing, so versions, GPUs and precision are unknown.")
        return {}
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path} cannot be read ({error}), so versions and GPUs are unknown.")
        return {}
    if not isinstance(values, dict):
        return {}
    return values


def _telemetry(run_dir: Path, problems: Problems) -> list[HostSamples]:
    found = []
    for path in _telemetry_files(run_dir):
        try:
            lines = list(jsonl.read(path, problems))
        except OSError as error:
            problems.append(f"{path} cannot be read ({error.strerror or error}).")
            continue
        found.append(_host_samples(path.stem, lines))
    return found


def _host_samples(name: str, lines: list[dict[str, Any]]) -> HostSamples:
    header: dict[str, Any] = {}
    samples, start = [], -1
    for line in lines:
        if line.get("kind") == "host":
            header, start = line, start + 1
        elif line.get("kind") == "sample":
            samples.append(line | {"start": max(0, start)})
    return HostSamples(str(header.get("host", name)), header, samples)


def _telemetry_files(run_dir: Path) -> list[Path]:
    return sorted((run_dir / TELEMETRY_DIR).glob("*.jsonl"))


def _note_missing_hosts(
    run_dir: Path, settings: dict[str, Any], hosts: set[str], problems: Problems
) -> None:
    files = _telemetry_files(run_dir)
    if not files and settings.get("telemetry", {}).get("interval_s") == 0:
        problems.append("telemetry.interval_s is 0, so GPUs and network were not sampled.")
        return
    for host in sorted(hosts - {path.stem for path in files}):
        problems.append(
            f"{run_dir / TELEMETRY_DIR / host}.jsonl is missing, so GPUs and network of {host} are "
            f"unknown: each host writes its own, so copy it from the run directory on {host}."
        )


def _manifest(run_dir: Path, config: Config | None, problems: Problems) -> dict[str, Any]:
    """The manifest of the training data, as a plain dictionary with its hash and place."""
    if config is None:
        return {}
    try:
        directory, manifest = data_of_run(run_dir, config)
    except DataError as error:
        problems.append(str(error))
        return {}
    return dataclasses.asdict(manifest) | {"hash": manifest.hash, "directory": str(directory)}
