"""A run directory of this package as a `Run`: finished, going on, resumed or killed."""

import dataclasses
import json
import socket
from pathlib import Path
from typing import Any

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints import run_files
from hvd_nmt.checkpoints.manifest import newest_step
from hvd_nmt.common.errors import ConfigError, DataError, RunError
from hvd_nmt.common.files import is_locked
from hvd_nmt.common.units import duration
from hvd_nmt.config import Config
from hvd_nmt.records import metrics, openseq2seq_log
from hvd_nmt.records.record import EarlyEnd, HostSamples, Launch, Run, Save
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
    """Reads a run directory; RunError: it is none.

    Any file of it may be missing: what it would tell is then unknown, and `problems` says so.
    """
    if not any((run_dir / name).exists() for name in (run_files.CONFIG, events.METRICS_FILE)):
        raise RunError(
            f"{run_dir} has no {run_files.CONFIG} and no {events.METRICS_FILE}: give the directory "
            "of a training run (--run-dir of hvd_nmt.train)."
        )
    problems: Problems = []
    config = _config(run_dir, problems)
    settings = {} if config is None else configuration.as_plain(config)
    environment = _environment(run_dir, problems)
    lines = events.read_metrics(run_dir, problems)
    start, end = next(iter(metrics.of_kind(lines, "start")[-1:]), {}), metrics.end(lines)
    saved = newest_step(run_dir)
    early_end = None
    if end and end.get("because"):
        early_end = EarlyEnd(end["steps"], end["because"], end["reason"])
    if not lines and (run_dir / run_files.IMPORTED).exists():
        config, saved = None, None
        settings = {"model": settings["model"]} if settings else {}
        problems.append(
            f"{run_dir} has an imported model and no training yet. Of the training before the "
            f"import only what is in {run_files.IMPORTED} is known, no steps or settings."
        )
    elif not lines:
        problems.append(f"{run_dir / events.METRICS_FILE} has no steps, or is missing.")
    hosts = tuple(start.get("hosts") or environment.get("hosts") or ())
    telemetry = _telemetry(run_dir, settings, hosts, problems)
    known = lines or [sample for host in telemetry[:1] for sample in host.samples]
    started_s, ended_s = metrics.times_s(known)
    if ahead_s := max((line.get("clock_ahead_s", 0.0) for line in lines), default=0.0):
        problems.append(
            "The clock was set back before a start: its times here are "
            f"{duration(ahead_s)} later, and its pause is unknown."
        )
    not_finite = {line["step"] for line in jsonl.read(run_dir / run_files.NOT_FINITE, problems)}
    return Run(
        name=run_dir.resolve().name, path=run_dir, source="hvd_nmt", hosts=hosts,
        starts=metrics.starts(lines), parameters=start.get("parameters"),
        gradient_bytes=start.get("gradient_bytes"),
        max_steps=settings.get("training", {}).get("max_steps"), saved_step=saved,
        finished=end is not None, early_end=early_end, locked=_is_locked(run_dir / run_files.LOCK),
        stopped=bool(metrics.of_kind(lines[-1:], "stop")), started_s=started_s,
        startup_s=metrics.startup_s(lines), pauses=metrics.pauses(lines),
        ended_s=ended_s, config=settings, environment=environment,
        manifest=_manifest(run_dir, config, problems), intervals=metrics.intervals(lines),
        evaluations=metrics.evaluations(lines), tokenizers=metrics.tokenizers({}, lines),
        saves=tuple(Save(**metrics.fields_of(Save, of)) for of in metrics.of_kind(lines, "save")),
        not_finite=tuple(sorted(not_finite)), telemetry=telemetry,
        launches=_launches(run_dir, lines, problems), problems=tuple(problems),
    )  # fmt: skip


def _config(run_dir: Path, problems: Problems) -> Config | None:
    try:
        return configuration.load(run_dir / run_files.CONFIG)
    except ConfigError as error:
        problems.append(f"The settings of the run are unknown. {error}")
        return None


def _environment(run_dir: Path, problems: Problems) -> dict[str, Any]:
    path = run_dir / run_files.ENVIRONMENT
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        problems.append(f"{path} is missing or damaged, so GPUs and precision are unknown.")
        return {}


def _is_locked(lock: Path) -> bool | None:
    """Whether the process that wrote the lock still holds it; None on another host."""
    try:
        with lock.open("rb") as file:
            if f" on {socket.gethostname()}," not in file.read().decode(errors="replace"):
                return None
            return is_locked(file)
    except OSError:
        return None


def _telemetry(
    run_dir: Path, settings: dict[str, Any], hosts: tuple[str, ...], problems: Problems
) -> tuple[HostSamples, ...]:
    """What the samplers wrote; of the `hosts` of the run one may be missing."""
    folder = run_dir / run_files.TELEMETRY_DIR
    paths = sorted(folder.glob("*.jsonl"))
    samples = tuple(_host_samples(path, problems) for path in paths)
    if not paths and settings.get("telemetry", {}).get("interval_s") == 0:
        problems.append("telemetry.interval_s is 0, so GPUs and network were not sampled.")
        return ()
    for host in sorted(set(hosts) - {path.stem for path in paths}):
        problems.append(
            f"{folder / host}.jsonl is missing, so GPUs and network of {host} are "
            f"unknown: each host writes its own, so copy it from the run directory on {host}."
        )
    return samples


def _host_samples(path: Path, problems: Problems) -> HostSamples:
    header: dict[str, Any] = {}
    samples, start = [], -1
    for line in jsonl.read(path, problems):
        if line["kind"] == "host":
            header, start = line, start + 1
        else:
            samples.append(line | {"start": start})
    samples.sort(key=lambda sample: sample["time_s"])  # of starts with other clocks
    return HostSamples(header.get("host", path.stem), header, samples)


def _manifest(run_dir: Path, config: Config | None, problems: Problems) -> dict[str, Any]:
    """The manifest of the training data, as a plain dictionary with its hash and place."""
    if config is None:
        return {}
    try:
        directory, manifest = run_files.data_of_run(run_dir, config)
    except DataError as error:
        problems.append(str(error))
        return {}
    return dataclasses.asdict(manifest) | {"hash": manifest.hash, "directory": str(directory)}


def _launches(run_dir: Path, lines: list[metrics.Line], problems: Problems) -> tuple[Launch, ...]:
    """The starts by `hvd_nmt.launch`; of one without an end the run's own records tell."""
    launches: list[Launch] = []
    for event in jsonl.read(run_dir / run_files.LAUNCHES, problems):
        if event["kind"] == "start":
            came = jsonl.reached(lines, event["start_id"])
            launches.append(Launch(event["hosts"], came.get("resumed_step"), came.get("step")))
        elif event["kind"] == "end" and launches and launches[-1].exit_code is None:
            launches[-1] = Launch(
                launches[-1].ranks_by_host, event.get("resumed_step"), event.get("step"),
                event["exit_code"], event["sentence"], event["time_s"],
            )  # fmt: skip
    return tuple(launches)
