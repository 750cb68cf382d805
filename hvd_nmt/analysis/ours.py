"""A run directory of this package as a `Run`: finished, going on, resumed or killed."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from hvd_nmt import config as configuration
from hvd_nmt.analysis import openseq2seq
from hvd_nmt.analysis.record import Evaluation, HostSamples, Interval, Run
from hvd_nmt.config import Config
from hvd_nmt.data import corpus
from hvd_nmt.errors import ConfigError, DataError, RunError
from hvd_nmt.telemetry import events

_CONFIG, _ENVIRONMENT, _TELEMETRY = "config.yaml", "environment.json", "telemetry"
_BYTES_PER_GRADIENT = 4
"""of runs that do not record their gradient's bytes: these always sent float32"""

Problems = list[str]
Line = dict[str, Any]


def read_any(path: Path) -> Run:
    """Reads a run, whichever program wrote it.

    Args:
        path: a run directory of this package, or the log file of an OpenSeq2Seq run.

    Returns:
        The run.

    Raises:
        RunError: there is nothing at the path, or it is neither of the two.
    """
    if path.is_dir():
        return read(path)
    if path.is_file():
        return openseq2seq.read(path)
    raise RunError(f"{path} does not exist: give a run directory, or the log of OpenSeq2Seq.")


def read(run_dir: Path) -> Run:
    """Reads a run directory.

    Any file of it may be missing: what it would tell is then unknown, and `problems` says so. A
    torn last line, which a killed run leaves, does not exist. Steps that were done again after a
    resume count once, as they were done last.

    Args:
        run_dir: `run_dir` of the run's configuration.

    Returns:
        The run.

    Raises:
        RunError: the directory is missing or is no run directory.
    """
    if not any((run_dir / name).exists() for name in (_CONFIG, events.METRICS_FILE)):
        state = f"has neither {_CONFIG} nor {events.METRICS_FILE}"
        raise RunError(
            f"{run_dir} {state if run_dir.is_dir() else 'does not exist'}: give the run directory "
            "of a training run (--run-dir of hvd_nmt.train)."
        )
    problems: Problems = []
    config, settings = _config(run_dir, problems)
    environment = _environment(run_dir, problems)
    lines = _metrics(run_dir, problems)
    start = _last_start(lines)
    hosts = tuple(start.get("hosts") or environment.get("hosts") or ())
    parameters, gradient_bytes = _gradient(start, len(hosts))
    if start and parameters is None:
        problems.append("The run does not record how many parameters its model has.")
    intervals, evaluations = _history(lines)
    telemetry = _telemetry(run_dir, problems)
    _note_missing_hosts(run_dir, settings, set(hosts), problems)
    times_s = _times_s(lines) or _times_s(line for host in telemetry for line in host.samples)
    return Run(
        name=run_dir.resolve().name,
        path=run_dir,
        source="hvd_nmt",
        hosts=hosts,
        parameters=parameters,
        gradient_bytes=gradient_bytes,
        max_steps=settings.get("training", {}).get("max_steps"),
        finished=_finished(lines),
        held=_held(run_dir / ".lock"),
        started_s=min(times_s, default=None),
        ended_s=max(times_s, default=None),
        config=settings,
        environment=environment,
        manifest=_manifest(run_dir, config, problems),
        intervals=tuple(intervals),
        evaluations=tuple(evaluations),
        telemetry=tuple(telemetry),
        problems=tuple(problems),
    )


def _held(lock: Path) -> bool | None:
    """Whether the process that wrote the lock still holds it; it can be told on its host only."""
    try:
        with lock.open("rb") as file:
            if f" on {socket.gethostname()}," not in file.read().decode(errors="replace"):
                return None
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go when the file is closed
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _config(run_dir: Path, problems: Problems) -> tuple[Config | None, dict[str, Any]]:
    path = run_dir / _CONFIG
    if not path.exists():
        problems.append(f"{path} is missing, so the settings of the run are unknown.")
        return None, {}
    try:
        config = configuration.load(path)
        return config, configuration.as_plain(config)
    except ConfigError as error:
        problems.append(str(error))
    # A version with other settings wrote it; what it says is still true.
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None, {}
    if not isinstance(values, dict):
        return None, {}
    groups = {name for name, value in configuration.as_plain(Config()).items()
              if isinstance(value, dict)}  # fmt: skip
    return None, {
        name: value for name, value in values.items()
        if name not in groups or isinstance(value, dict)
    }


def _environment(run_dir: Path, problems: Problems) -> dict[str, Any]:
    path = run_dir / _ENVIRONMENT
    if not path.exists():
        problems.append(f"{path} is missing, so versions, GPUs and precision are unknown.")
        return {}
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path} cannot be read ({error}), so versions and GPUs are unknown.")
        return {}
    return values if isinstance(values, dict) else {}


def _metrics(run_dir: Path, problems: Problems) -> list[Line]:
    path = run_dir / events.METRICS_FILE
    if not path.exists():
        problems.append(f"{path} is missing, so nothing is known of the run's steps.")
        return []
    try:
        return events.read_metrics(run_dir)
    except RunError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{path} cannot be read ({error.strerror or error}).")
    return []


def _last_start(lines: Iterable[Line]) -> Line:
    return next((line for line in reversed(list(lines)) if line.get("kind") == "start"), {})


def _finished(lines: list[Line]) -> bool:
    kinds = [line["kind"] for line in lines if line.get("kind") in ("start", "end")]
    return bool(kinds) and kinds[-1] == "end"


def _gradient(start: Line, ranks: int) -> tuple[int | None, float | None]:
    """Parameters, and bytes of the gradient: recorded, or from the ring's 2(N-1)/N."""
    parameters, gradient_bytes = start.get("parameters"), start.get("gradient_bytes")
    sent_bytes = start.get("sent_bytes_per_step")
    if gradient_bytes is None and sent_bytes and ranks > 1:
        gradient_bytes = sent_bytes * ranks / (2 * (ranks - 1))
        parameters = parameters or round(gradient_bytes / _BYTES_PER_GRADIENT)
    if gradient_bytes is None and parameters is not None:
        gradient_bytes = float(parameters * _BYTES_PER_GRADIENT)
    return parameters, gradient_bytes


def _history(lines: Iterable[Line]) -> tuple[list[Interval], list[Evaluation]]:
    """What was done, without what a resumed run did again."""
    intervals: list[Interval] = []
    evaluations: list[Evaluation] = []
    done = 0
    for line in lines:
        kind, step = line.get("kind"), line.get("step")
        if kind == "start":
            done = int(line.get("first_step", 1)) - 1
            intervals = [interval for interval in intervals if interval.step <= done]
            evaluations = [evaluation for evaluation in evaluations if evaluation.step <= done]
        elif kind == "train" and isinstance(step, int):
            if step <= done:
                intervals = [interval for interval in intervals if interval.step < step]
                done = intervals[-1].step if intervals else 0
            intervals.append(_interval(line, int(line.get("steps", step - done))))
            done = step
        elif kind == "eval" and isinstance(step, int):
            evaluations = [evaluation for evaluation in evaluations if evaluation.step < step]
            evaluations.append(_evaluation(line))
    return intervals, evaluations


def _interval(line: Line, steps: int) -> Interval:
    return Interval(
        step=line["step"],
        steps=steps,
        time_s=line.get("time_s"),
        step_s=line.get("step_time/total_s"),
        input_wait_s=line.get("step_time/input_wait_s"),
        compute_s=line.get("step_time/compute_s"),
        straggler_wait_s=line.get("step_time/straggler_wait_s"),
        communication_s=line.get("step_time/communication_s"),
        rank_ready_s=tuple(line.get("rank_ready_s", ())),
        rank_input_wait_s=tuple(line.get("rank_input_wait_s", ())),
        loss=line.get("train_loss"),
        learning_rate=line.get("learning_rate"),
        gradient_norm=line.get("Loss_Optimization/global_gradient_norm"),
        tokens_per_s=line.get("tokens_per_s"),
        epoch=line.get("epoch"),
    )


def _evaluation(line: Line) -> Evaluation:
    return Evaluation(
        step=line["step"],
        time_s=line.get("time_s"),
        loss=line.get("eval_loss"),
        bleu=line.get("sacrebleu"),
        bleu_margin=line.get("sacrebleu_margin"),
        chrf=line.get("chrf"),
        pseudo_bleu=line.get("Eval_BLEU_Score"),
        seconds=line.get("eval_seconds"),
    )


def _telemetry(run_dir: Path, problems: Problems) -> list[HostSamples]:
    found = []
    for path in _telemetry_files(run_dir):
        try:
            lines = events.read_samples(path)
        except RunError as error:
            problems.append(str(error))
            continue
        except OSError as error:
            problems.append(f"{path} cannot be read ({error.strerror or error}).")
            continue
        headers = [line for line in lines if line.get("kind") == "host"]
        samples = [line for line in lines if line.get("kind") == "sample"]
        header = headers[-1] if headers else {}
        found.append(HostSamples(str(header.get("host", path.stem)), header, samples))
    return found


def _telemetry_files(run_dir: Path) -> list[Path]:
    return sorted((run_dir / _TELEMETRY).glob("*.jsonl"))


def _note_missing_hosts(
    run_dir: Path, settings: dict[str, Any], hosts: set[str], problems: Problems
) -> None:
    files = _telemetry_files(run_dir)
    if not files and settings.get("telemetry", {}).get("interval_s") == 0:
        problems.append("telemetry.interval_s is 0, so GPUs and network were not sampled.")
        return
    for host in sorted(hosts - {path.stem for path in files}):
        problems.append(
            f"{run_dir / _TELEMETRY / host}.jsonl is missing, so GPUs and network of {host} are "
            f"unknown: each host writes its own, so copy it from the run directory on {host}."
        )


def _times_s(lines: Iterable[Line]) -> list[float]:
    return [line["time_s"] for line in lines if "time_s" in line]


def _manifest(run_dir: Path, config: Config | None, problems: Problems) -> dict[str, Any]:
    """The manifest of the training data, as a plain dictionary with its hash and place."""
    if config is None:
        return {}
    directory = _data_directory(run_dir, config)
    try:
        manifest = corpus.read_manifest(directory)
    except DataError:
        problems.append(
            f"The training data are not in {directory} on this machine, so their size is unknown."
        )
        return {}
    vocabulary = run_dir / corpus.SPM_MODEL
    if vocabulary.exists() and corpus.fingerprint(vocabulary).sha256 != manifest.vocabulary_hash:
        problems.append(
            f"The data in {directory} have another vocabulary than this run, so they are not the "
            "data it was trained on."
        )
        return {}
    return dataclasses.asdict(manifest) | {"hash": manifest.hash, "directory": str(directory)}


def _data_directory(run_dir: Path, config: Config) -> Path:
    """Where the run's data are: relative to where the run was started, or to here."""
    here, name = run_dir.resolve().parts, config.run_dir.parts
    if here[-len(name):] == name and not config.run_dir.is_absolute():
        there = Path(*here[: -len(name)], config.data.directory)
        if (there / corpus.MANIFEST).exists():
            return there
    return config.data.directory
