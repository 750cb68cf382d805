"""The folder that explains a run, held by one run at a time."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.run_files import (
    COMMANDS,
    CONFIG,
    ENVIRONMENT,
    LOCK,
    ORIGIN,
    RUN_ID,
    SOURCE_VOCABULARY,
    TELEMETRY_DIR,
    VOCABULARY,
    vocabulary_hashes,
)
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import replacing_file, try_lock, write_atomically
from hvd_nmt.config import Config
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.data.mixed_epochs import MixedEpochs
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.setup import RunSetup

_MAY_CHANGE = (
    "training.exchange",
    "training.sync_every",
    "training.micro_batches",
    "training.jit_compile",
    "run_dir",
    "ranks",
    "evaluation.",
    "checkpoints.",
    "telemetry.",
    "data.directory",
    "data.allow_change",
    "training.max_steps",
    "training.max_hours",
    "training.log_every",
    "training.stuck_after_s",
    "training.init_from",
)
_DECIDES_RESUME = (
    "model.",
    "training.tokens_per_step",
    "training.seed",
    "training.freeze",
    "training.ema_decay",
)


def claim(run_dir: Path, rank: Rank) -> TextIO | None:
    """Make the run directory and hold it for this run. On rank 0's host it holds the checkpoints.

    The lock belongs to the process: it ends with it, however it ends, and cannot go stale. Returns
    the open lock file, to be kept, on rank 0; None elsewhere.

    Raises RunError if it cannot be written to, or another run is in it.
    """
    try:
        for folder in (run_dir, run_dir / TELEMETRY_DIR):
            folder.mkdir(parents=True, exist_ok=True)
        probe = run_dir / f".writable-{rank.host}-{rank.index}"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise _unwritable(run_dir, rank, error) from error
    return hold(run_dir, rank) if rank.is_first else None


def hold(run_dir: Path, rank: Rank) -> TextIO:
    """Lock the run directory, as `claim` does on rank 0, with the same errors."""
    try:
        lock = (run_dir / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise _unwritable(run_dir, rank, error) from error
    if not try_lock(lock):
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise RunError(
            f"Another run is in {run_dir} ({holder}): wait for it, end it, or give another "
            "--run-dir."
        )
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {rank.host}, since {time.strftime('%F %T')}\n")
    lock.flush()
    return lock


def require_same_run(
    run_dir: Path, config: Config, data: DataDirectory, log: Callable[[str], None]
) -> None:
    """Compare with what an earlier start in this directory wrote.

    `log` gets a line for each changed value that is worth one. Raises RunError if that start had
    another model, vocabulary or order of data.
    """
    known, wanted = vocabulary_hashes(run_dir), data.manifest
    ours = wanted.vocabulary_hash, wanted.source_vocabulary_hash
    if known[0] and known != ours:
        raise RunError(
            f"The checkpoints in {run_dir} were trained with another vocabulary than that of "
            f"{data.path}: give the data of that run, or another --run-dir."
        )
    earlier = run_dir / CONFIG
    if earlier.exists():
        for name, old, new in configuration.differences(configuration.load(earlier), config):
            if name.startswith(_DECIDES_RESUME):
                raise RunError(
                    f"The run in {run_dir} was started with {name} {old}, not {new}: use that "
                    "value to go on, or give another --run-dir."
                )
            if not name.startswith(_MAY_CHANGE):
                log(f"Changed since this run was started: {name} {old} -> {new}")


def require_same_data(
    checkpoint: Checkpoint, config: Config, data: DataDirectory, log: Callable[[str], None]
) -> None:
    """Compare the data with those of the checkpoint from which the run resumes.

    Raises RunError if they are others, and `data.allow_change` is not set; with it `log` gets a
    line.
    """
    trained_on = checkpoint.manifest.data_hash
    if trained_on in ("", data.manifest.hash):  # what was imported does not know its data
        return
    if not config.data.allow_change:
        raise RunError(
            f"{checkpoint.prefix} was trained on other data than those in {data.path}: give the "
            f"data of that run, begin another --run-dir with --init-from {config.run_dir}, or add "
            "--data.allow-change to go on with these."
        )
    log(
        f"data        other than {checkpoint.prefix.name} was trained on; the best models start "
        "anew, those of the other data stay where they are"
    )


def require_same_epochs(config: Config, run_setup: RunSetup, checkpoint: Checkpoint) -> None:
    """See that stages of several corpora have changed only after the checkpoint of the resumption.

    Raises RunError if the steps before would have had other sentences.
    """
    file = config.run_dir / CONFIG
    same_data = checkpoint.manifest.data_hash in ("", run_setup.data.manifest.hash)
    if not (file.exists() and same_data):
        return
    earlier = configuration.load(file).data.stages
    if earlier == config.data.stages:
        return
    batching = config.training.tokens_per_step, config.training.seed
    before, now = (
        MixedEpochs.of(run_setup.data, stages, *batching)
        for stages in (earlier, config.data.stages)
    )
    if not before.agrees(now, checkpoint.step):
        begun = before.place(before.position(checkpoint.step - 1)[0])
        raise RunError(
            f"The run in {config.run_dir} has come to step {checkpoint.step:,}, and the epoch that "
            f"it is in ends with step {begun.first_step + begun.steps:,}: up to there data.stages "
            "must stay what it was, stages that end there included; change later ones, or give "
            "another --run-dir."
        )


def write_config(run_dir: Path, config: Config) -> None:
    """Write the configuration of a run into its directory."""
    with replacing_file(run_dir / CONFIG) as draft:
        configuration.save(config, draft)


def describe(
    run_dir: Path, config: Config, data: DataDirectory, environment: dict[str, Any], run_id: str
) -> None:
    """Write what a reader and `translate` need to know; `run_id`: see `run_files`."""
    if data.manifest.source_has_own:
        write_atomically(run_dir / SOURCE_VOCABULARY, data.source_spm_path.read_bytes())
    write_atomically(run_dir / VOCABULARY, data.spm_path.read_bytes())
    write_config(run_dir, config)
    with (run_dir / COMMANDS).open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%F %T')}  {shlex.join([sys.executable, *sys.argv])}\n")
    write_atomically(run_dir / RUN_ID, run_id + "\n")
    text = json.dumps(environment, indent=1, ensure_ascii=False)
    (run_dir / ENVIRONMENT).write_text(text + "\n", encoding="utf-8")


def note_origin(run_dir: Path, origin: Checkpoint) -> None:
    """Write down which checkpoint a run began with; `config.yaml` holds only what was asked for."""
    text = json.dumps(origin.record(), indent=1, ensure_ascii=False)
    (run_dir / ORIGIN).write_text(text + "\n", encoding="utf-8")


def _unwritable(run_dir: Path, rank: Rank, error: OSError) -> RunError:
    return RunError(
        f"The run directory {run_dir} cannot be written to on {rank.host} "
        f"({error.strerror}): give another --run-dir or mend its permissions."
    )
