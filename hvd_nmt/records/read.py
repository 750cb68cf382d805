"""A run directory of this package as a `Run`: finished, going on, resumed or killed."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.manifest import newest_step
from hvd_nmt.checkpoints.run_files import Line, RunDirectory, reached
from hvd_nmt.common import jsonl
from hvd_nmt.common.errors import ConfigError, DataError, RunError
from hvd_nmt.common.units import duration
from hvd_nmt.config import Config
from hvd_nmt.records import metrics, openseq2seq_log
from hvd_nmt.records.record import HostSamples, Launch, Run, Start

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
    run = RunDirectory(run_dir)
    if not run.config.exists() and not run.metrics.exists():
        raise RunError(
            f"{run_dir} has no {run.config.name} and no {run.metrics.name}: give the directory of "
            "a training run (--run-dir of hvd_nmt.train)."
        )
    problems: Problems = []
    config = _config(run, problems)
    settings = {} if config is None else configuration.as_plain(config)
    environment = _environment(run, problems)
    lines = run.read_metrics(problems)
    records = metrics.records(lines)
    starts, end = metrics.of_kind(Start, records), metrics.end(records)
    newest, saved = starts[-1] if starts else Start(), newest_step(run_dir)
    if not lines and run.imported.exists():
        config, saved = None, None
        settings = {"model": settings["model"]} if settings else {}
        problems.append(
            f"{run_dir} has an imported model and no training yet. Of the training before the "
            f"import only what is in {run.imported.name} is known, no steps or settings."
        )
    elif not lines:
        problems.append(f"{run.metrics} has no steps, or is missing.")
    hosts = tuple(newest.hosts or environment.get("hosts") or ())
    telemetry = _telemetry(run.telemetry, settings, hosts, problems)
    sampled_s = (sample["time_s"] for host in telemetry[:1] for sample in host.samples)
    started_s, ended_s = metrics.span_s(metrics.times_s(records) or [*sampled_s])
    if ahead_s := max((start.clock_ahead_s for start in starts), default=0.0):
        problems.append(
            "The clock was set back before a start: its times here are "
            f"{duration(ahead_s)} later, and its pause is unknown."
        )
    not_finite = {line["step"] for line in jsonl.read(run.not_finite, problems)}
    return metrics.run_of(
        run_dir, records, hosts=hosts, parameters=newest.parameters,
        gradient_bytes=newest.gradient_bytes,
        max_steps=settings.get("training", {}).get("max_steps"), saved_step=saved,
        early_end=end if end and end.because else None, locked=run.is_held(),
        started_s=started_s, ended_s=ended_s, config=settings, environment=environment,
        manifest={} if config is None else _manifest(run, problems),
        tokenizers=metrics.tokenizers({}, records),
        not_finite=tuple(sorted(not_finite)), telemetry=telemetry,
        launches=_launches(run, lines, problems), problems=tuple(problems),
    )  # fmt: skip


def _config(run: RunDirectory, problems: Problems) -> Config | None:
    try:
        return configuration.load(run.config)
    except ConfigError as error:
        problems.append(f"The settings of the run are unknown. {error}")
        return None


def _environment(run: RunDirectory, problems: Problems) -> dict[str, Any]:
    path = run.environment
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        problems.append(f"{path} is missing or damaged, so GPUs and precision are unknown.")
        return {}


def _telemetry(
    folder: Path, settings: dict[str, Any], hosts: tuple[str, ...], problems: Problems
) -> tuple[HostSamples, ...]:
    """What the samplers wrote; of the `hosts` of the run one may be missing."""
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


def _manifest(run: RunDirectory, problems: Problems) -> dict[str, Any]:
    """The manifest of the training data, as a plain dictionary with its hash and place."""
    try:
        directory, manifest = run.data()
    except DataError as error:
        problems.append(str(error))
        return {}
    return dataclasses.asdict(manifest) | {"hash": manifest.hash, "directory": str(directory)}


def _launches(run: RunDirectory, lines: list[Line], problems: Problems) -> tuple[Launch, ...]:
    """The starts by `hvd_nmt.launch`; of one without an end the run's own records tell."""
    launches: list[Launch] = []
    for event in jsonl.read(run.launches, problems):
        if event["kind"] == "start":
            came = reached(lines, event["start_id"])
            launches.append(Launch(event["hosts"], came.get("resumed_step"), came.get("step")))
        elif event["kind"] == "end" and launches and launches[-1].exit_code is None:
            launches[-1] = Launch(
                launches[-1].ranks_by_host, event.get("resumed_step"), event.get("step"),
                event["exit_code"], event["sentence"], event["time_s"],
            )  # fmt: skip
    return tuple(launches)
