"""On which hosts a run has a directory of its own, and who writes checkpoints there.

Hosts may share the run directory, by a network file system, or have one each. Of those that have,
`checkpoints.copies` keep the newest checkpoints. A start finds out which they are, and brings the
newest checkpoint of the run to the host of rank 0, from where it goes on.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.find import newest_intact, step_to_resume
from hvd_nmt.checkpoints.run_files import CONFIG, RUN_ID
from hvd_nmt.config import Config
from hvd_nmt.training import horovod, run_directory
from hvd_nmt.training.bring import bring
from hvd_nmt.training.horovod import Rank

Log = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class HostDirectories:
    """Who writes the checkpoints of a run."""

    writers: tuple[int, ...]
    """ranks that write them, each into a directory of its own; rank 0 is the first"""
    lock: TextIO | None = None
    """of this rank's directory, if it writes a copy; to be kept while it may write"""


@dataclasses.dataclass(frozen=True)
class Held:
    """What a run directory holds at the start."""

    is_run: bool
    """whether a run was described there, or has left a checkpoint"""
    run_id: str
    """see `run_files`; empty: none, as in runs of versions before"""
    step: int
    """of the newest complete checkpoint; -1: there is none"""


def agree(config: Config, rank: Rank, log: Log) -> HostDirectories:
    """Look at the run directories of all hosts, and have the newest checkpoint on rank 0's.

    A collective, before anything else looks at the directory.

    Args:
        config: of this start.
        rank: this one.
        log: gets a line for what a reader must know.

    Raises:
        RunError: a directory cannot be read or written, or another run is in that of a copy.
    """
    run_dir = config.run_dir
    hosts = horovod.gather(rank.host)
    speakers = [hosts.index(host) for host in dict.fromkeys(hosts)]
    if len(speakers) == 1:
        return HostDirectories((0,))
    owners = _owners(run_dir, rank, speakers)
    with horovod.raise_on_all_ranks():
        mine = dataclasses.asdict(look(run_dir)) if rank.index in owners else None
    found = enumerate(horovod.gather(mine))
    held = {index: Held(**facts) for index, facts in found if facts is not None}
    run_id = _brought(run_dir, rank, hosts, held, log)
    wanted = horovod.gather(config.checkpoints.copies)[0]
    writers = [0]
    for index in owners[1:]:
        if held[index].step >= 0 and (held[index].run_id != run_id or not run_id):
            log(
                f"copies      {hosts[index]} holds another run in {run_dir}: no copy is kept there "
                "unless that is moved away"
            )
        elif len(writers) < wanted:
            writers.append(index)
    if len(writers) > 1:
        log(f"copies      of each checkpoint are kept on {', '.join(hosts[i] for i in writers)}")
    with horovod.raise_on_all_ranks():
        copies = rank.index in writers[1:]
        return HostDirectories(
            tuple(writers), run_directory.hold(run_dir, rank) if copies else None
        )


def look(run_dir: Path) -> Held:
    """What a run directory holds; only manifests are read."""
    path = run_dir / RUN_ID
    run_id = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    is_run = (run_dir / CONFIG).exists() or any(names.prefixes(run_dir))
    return Held(is_run, run_id, step_to_resume(run_dir))


def _owners(run_dir: Path, rank: Rank, speakers: list[int]) -> list[int]:
    """The first rank of each directory there is: each writes a file, and who sees it shares it.

    Args:
        run_dir: run directory.
        rank: this one.
        speakers: the first rank of each host.
    """
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


def _brought(run_dir: Path, rank: Rank, hosts: list[str], held: dict[int, Held], log: Log) -> str:
    """Have the newest checkpoint of the run on rank 0's host; gives the run's id.

    Where that host has no run, the newest of any other is taken for it.
    """
    first = held[0]
    others = [
        index for index, other in held.items()
        if index and other.step >= 0
        and (not first.is_run or (first.run_id and other.run_id == first.run_id))
    ]  # fmt: skip
    if not others:
        return first.run_id
    source = max(others, key=lambda index: (held[index].step, -index))
    with horovod.raise_on_all_ranks():
        intact = newest_intact(run_dir, log) if rank.is_first else None
    step = horovod.gather(intact.step if intact is not None else -1)[0]
    if held[source].step > step:
        with_records = held[source].step > first.step
        brought = bring(run_dir, rank, source, step, with_records=with_records)
        if brought is not None:
            log(
                f"found       the checkpoint of step {brought:,} on {hosts[source]}: brought to "
                f"{hosts[0]}"
            )
    return first.run_id if first.is_run else held[source].run_id
