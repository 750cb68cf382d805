"""The folder that explains a run, held by one run at a time: one that hosts share, or one each.

The first rank of each writes there what rank 0 writes: checkpoints, records and configuration.
"""

import contextlib
import dataclasses
import os
import platform
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TextIO

import tensorflow as tf

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.find import held_some, newest_intact
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.run_files import Line, RunDirectory, write_record
from hvd_nmt.common.errors import RunError, unwritten
from hvd_nmt.common.files import replacing_file, try_lock, write_atomically
from hvd_nmt.common.version import __version__, code_hash
from hvd_nmt.config.schema import AUTO
from hvd_nmt.data import bleu
from hvd_nmt.records import metrics
from hvd_nmt.training import horovod
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.resume import Log
from hvd_nmt.training.setup import RunSetup


@contextlib.contextmanager
def writing(run_dir: Path, host: str) -> Iterator[None]:
    """Turn what the file system refuses at the start into an error that names the folder."""
    try:
        yield
    except OSError as error:
        raise unwritten(
            f"Cannot write the run directory {run_dir} on {host} ({error.strerror}): make room, "
            "fix its permissions, or give another --run-dir.", error,
        ) from error  # fmt: skip


def _hold(run_dir: Path, rank: Rank) -> TextIO:
    """Lock the run directory while this process keeps the file; RunError if a run is in it."""
    # For its owner alone: to hold the lock of a file, it is enough to open it.
    number = os.open(
        RunDirectory(run_dir).lock, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    lock = os.fdopen(number, "a+", encoding="utf-8")
    with contextlib.suppress(OSError):
        os.fchmod(number, 0o600)  # it was made before 0.2
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


@dataclasses.dataclass(frozen=True)
class HostDirectories:
    """Who writes the files of a run, and who reads them at the start."""

    writers: tuple[int, ...]
    """ranks that write them, into a directory each; rank 0 is the first"""
    source: int
    """the one with the newest checkpoint, from which the run resumes"""
    run_id: str
    """see `RunDirectory`"""
    lock: TextIO | None
    """of this rank's directory, if it writes; to be kept while it may write"""
    newest: Checkpoint | None
    """the newest that is intact of those in this rank's directory, if it writes"""
    before: list[Line]
    """what earlier starts recorded in this rank's directory, if it writes"""


def claim_directories(run_dir: Path, rank: Rank, log: Log) -> HostDirectories:
    """Make and hold the run directories of all hosts; damaged checkpoints are put aside.

    A collective, before anything else looks at the directory. Raises RunError if a directory cannot
    be read or written, another run is in it, or two hold different runs.
    """
    with horovod.raise_on_all_ranks(), writing(run_dir, rank.host):
        RunDirectory(run_dir).telemetry.mkdir(parents=True, exist_ok=True)
    hosts = horovod.gather(rank.host)
    writers = _owners(run_dir, rank, hosts)
    lock, newest_here, mine = None, None, None
    with horovod.raise_on_all_ranks():
        if rank.index in writers:
            with writing(run_dir, rank.host):
                lock = _hold(run_dir, rank)
            path, newest_here = RunDirectory(run_dir).run_id, newest_intact(run_dir, print)
            run_id = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            step = -1 if newest_here is None else newest_here.step
            mine = run_id.strip(), step, held_some(run_dir)
    by_rank = horovod.gather(mine)
    run_ids, steps, held = zip(*(by_rank[index] for index in writers), strict=True)
    runs = [
        (hosts[index], run_id)
        for index, run_id, step, some in zip(writers, run_ids, steps, held, strict=True)
        if step >= 0 or some
    ]
    for host, run_id in runs:
        if run_id != runs[0][1]:
            raise RunError(
                f"{run_dir} has another run on {host} than on {runs[0][0]}: move one of them "
                "away, or give another --run-dir."
            ).of_all_ranks()
    newest = max(steps)
    if newest < 0 and any(held):
        host = hosts[writers[held.index(True)]]
        raise RunError(
            f"{run_dir} on {host} had checkpoints, but none is complete and undamaged now: "
            "restore one from a copy, or start again in another --run-dir."
        ).of_all_ranks()
    place = steps.index(newest)
    run_id = horovod.gather(run_ids[place] or secrets.token_hex(8))[0]
    if len(writers) > 1:
        log(f"directories each of {', '.join(hosts[index] for index in writers)} has its own")
        if place:
            log(f"newest      the checkpoint of step {newest:,} on {hosts[writers[place]]}")
        behind = [index for index, step in zip(writers, steps, strict=True) if step < newest]
        _share_metrics(run_dir, rank, writers[place], behind)
    with horovod.raise_on_all_ranks(), writing(run_dir, rank.host):
        before = RunDirectory(run_dir).read_metrics() if rank.index in writers else []
    return HostDirectories(tuple(writers), writers[place], run_id, lock, newest_here, before)


def _owners(run_dir: Path, rank: Rank, hosts: list[str]) -> list[int]:
    """The first rank of each directory there is: each writes a file, and who sees it shares it."""
    speakers = [hosts.index(host) for host in dict.fromkeys(hosts)]
    if len(speakers) == 1:
        return [0]
    # A save that was killed leaves files of such names, too: the next start removes them.
    mark = f"{names.PRIVATE}{secrets.token_hex(8)}"
    speaks = rank.index in speakers
    try:
        with horovod.raise_on_all_ranks():
            if speaks:
                (run_dir / mark).touch()
        marks = horovod.gather(mark)
        seen = [index for index in speakers if speaks and (run_dir / marks[index]).exists()]
        owner_of = horovod.gather(min(seen, default=rank.index))
        return sorted({owner_of[index] for index in speakers})
    finally:
        if speaks:
            (run_dir / mark).unlink(missing_ok=True)


def _share_metrics(run_dir: Path, rank: Rank, source: int, behind: list[int]) -> None:
    """Give directories that are behind, or are new, what the run has recorded; a collective."""
    if not behind:
        return
    path, text = RunDirectory(run_dir).metrics, None
    with horovod.raise_on_all_ranks():
        if rank.index == source and path.exists():
            text = path.read_text(encoding="utf-8", errors="replace")
    text = horovod.gather(text)[source]
    with horovod.raise_on_all_ranks():
        if rank.index in behind and text is not None:
            write_atomically(path, text)


def require_same_data(setup: RunSetup, checkpoint: Checkpoint, log: Log) -> None:
    """Compare the data with those of the checkpoint from which the run resumes.

    Raises RunError if they are others; with `data.allow_change` only `log` gets a line.
    """
    config, data = setup.config, setup.data
    if checkpoint.manifest.data_hash in ("", data.manifest.hash):  # "": what was imported has none
        return
    if not config.data.allow_change:
        raise RunError(
            f"{checkpoint.prefix} was trained on other data than {data.path}: give the data of "
            f"that run, start another --run-dir with --init-from {config.run_dir}, or add "
            "--data.allow-change to continue with these."
        )
    log(
        f"data        other than {checkpoint.prefix.name} was trained on: the best models of the "
        "other data stay where they are, and new ones are kept"
    )


def with_tokenizers(setup: RunSetup, directories: HostDirectories) -> RunSetup:
    """The setup with the tokenizers of BLEU that the run began with, or that a new one begins with.

    A collective. What `auto` means depends on what is installed, so it is decided once. Raises
    RunError if others are wanted now, ConfigError if one is missing.
    """
    run_dir, wanted = setup.config.run_dir, setup.config.evaluation.tokenize
    writes, chosen = setup.rank.index in directories.writers, None
    with horovod.raise_on_all_ranks():
        if writes:
            now = bleu.tokenizers(wanted, setup.data.manifest)
            chosen = metrics.tokenizers(now, metrics.records(directories.before))
            if wanted != AUTO and any(chosen[name] != of for name, of in now.items()):
                raise RunError(
                    f"BLEU in {run_dir} was computed with evaluation.tokenize {chosen['']}, not "
                    f"{wanted}: use the old value, or give another --run-dir."
                )
    chosen = horovod.gather(chosen)[directories.source]
    with horovod.raise_on_all_ranks():
        for tokenizer in {*chosen.values()} if writes else ():
            bleu.metric(tokenizer)
    return dataclasses.replace(setup, tokenizers=chosen)


def describe(setup: RunSetup, run_id: str) -> None:
    """Write what a reader and `translate` need to know; `run_id`: see `RunDirectory`."""
    config, run, data = setup.config, RunDirectory(setup.config.run_dir), setup.data
    if data.manifest.source_has_own:
        write_atomically(run.source_vocabulary, data.source_spm_path.read_bytes())
    write_atomically(run.vocabulary, data.spm_path.read_bytes())
    with replacing_file(run.config) as draft:
        configuration.save(config, draft)
    with run.commands.open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%F %T')}  {shlex.join([sys.executable, *sys.argv])}\n")
    write_atomically(run.run_id, run_id + "\n")
    environment = {
        "hvd_nmt": __version__,
        "commit": _commit(),
        "hosts": setup.hosts,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "horovod": metadata.version("horovod"),
        "precision": setup.precision,
        "platform": platform.platform(),
        "devices": setup.devices,
        "code": code_hash(),
    }
    write_record(run.environment, environment)


def _commit() -> str | None:
    """Commit of the checkout that this code runs from, if it is one."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", os.fspath(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
