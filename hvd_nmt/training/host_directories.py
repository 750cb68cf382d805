"""On which hosts a run has a directory of its own, and what each of them holds.

Hosts may share the run directory, by a network file system, or have one each. The first rank of
each directory writes there what rank 0 writes: checkpoints, records and configuration. A start goes
on from the newest checkpoint of all of them.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.find import newest_intact, traces
from hvd_nmt.checkpoints.manifest import newest_step
from hvd_nmt.checkpoints.run_files import RUN_ID
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import write_atomically
from hvd_nmt.telemetry.events import METRICS_FILE
from hvd_nmt.training import horovod, run_directory
from hvd_nmt.training.horovod import Rank

Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class HostDirectories:
    """Who writes the files of a run, and who reads them at the start."""

    writers: tuple[int, ...]
    """ranks that write them, each into a directory of its own; rank 0 is the first"""
    source: int
    """the one with the newest checkpoint, by which the run goes on"""
    run_id: str
    """see `run_files`"""
    lock: TextIO | None = None
    """of this rank's directory, if it writes and is not rank 0; to be kept while it may write"""


def agree(run_dir: Path, rank: Rank, log: Log) -> HostDirectories:
    """Look at the run directories of all hosts; damaged checkpoints are put aside.

    A collective, before anything else looks at the directory. Raises RunError if a directory cannot
    be read or written, or two hold different runs.
    """
    hosts = horovod.gather(rank.host)
    writers = _owners(run_dir, rank, hosts)
    writes = rank.index in writers
    lock, mine = None, None
    with horovod.raise_on_all_ranks():
        if writes:
            lock = None if rank.is_first else run_directory.hold(run_dir, rank)
            mine = _held(run_dir, len(writers) > 1)
    by_rank = horovod.gather(mine)
    found = [by_rank[index] for index in writers]
    run_ids, held, intact, traced = zip(*found, strict=True)
    _require_one_run(run_dir, [hosts[index] for index in writers], run_ids, held)
    newest = max(intact)
    if newest < 0 and any(traced):
        host = hosts[writers[traced.index(True)]]
        raise RunError(
            f"{run_dir} on {host} held checkpoints and none that is complete and undamaged is "
            "left: restore one from a copy, or choose another --run-dir to start afresh."
        ).of_all_ranks()
    place = intact.index(newest)
    run_id = horovod.gather(run_ids[place] or secrets.token_hex(8))[0]
    if len(writers) > 1:
        log(f"directories each of {', '.join(hosts[index] for index in writers)} has its own")
        if place:
            log(f"found       the checkpoint of step {newest:,} on {hosts[writers[place]]}")
        behind = [index for index, step in zip(writers, held, strict=True) if step < newest]
        _share_metrics(run_dir, rank, writers[place], behind)
    return HostDirectories(tuple(writers), writers[place], run_id, lock)


def _held(run_dir: Path, look: bool) -> tuple[str, int, int, bool]:
    """The run's id, "" where there is none; its newest step, by manifests and undamaged; and
    whether there are traces of checkpoints.

    Both steps are -1 where there are no checkpoints, or this rank is not to `look`.
    """
    path = run_dir / RUN_ID
    run_id = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
    if not look:
        return run_id, -1, -1, False
    held, intact = newest_step(run_dir), newest_intact(run_dir, print)
    step = -1 if intact is None else intact.step
    held = -1 if held is None else held
    return run_id, max(held, step), step, bool(traces(run_dir))


def _require_one_run(
    run_dir: Path, hosts: Sequence[str], run_ids: Sequence[str], held: Sequence[int]
) -> None:
    """See that all directories with checkpoints are of one run; the same on all ranks."""
    runs = [(host, run) for host, run, step in zip(hosts, run_ids, held, strict=True) if step >= 0]
    for host, run_id in runs:
        if run_id != runs[0][1]:
            raise RunError(
                f"{run_dir} holds another run on {host} than on {runs[0][0]}: move the one away "
                "that is not to go on, or give another --run-dir."
            ).of_all_ranks()


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
    path = run_dir / METRICS_FILE
    with horovod.raise_on_all_ranks():
        known = rank.index == source and path.exists()
        text = path.read_text(encoding="utf-8", errors="replace") if known else None
    text = horovod.gather(text)[source]
    with horovod.raise_on_all_ranks():
        if rank.index in behind and text is not None:
            write_atomically(path, text)
