"""A checkpoint that is on another host, brought to that of rank 0, byte by byte."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints import names, records
from hvd_nmt.checkpoints.find import newest_intact
from hvd_nmt.checkpoints.names import SUFFIXES
from hvd_nmt.checkpoints.saver import publish
from hvd_nmt.common.files import sync
from hvd_nmt.training import horovod
from hvd_nmt.training.horovod import Rank

_PIECE_BYTES = 1 << 25
"""that travel at a time, and that each rank has in memory"""


def bring(
    run_dir: Path, rank: Rank, source: int, above_step: int, *, with_records: bool
) -> int | None:
    """Bring the newest undamaged checkpoint of another rank's host to rank 0's; a collective.

    Complete or not at all, with the manifest last; whoever restores from it verifies it.

    Args:
        run_dir: run directory.
        rank: this one.
        source: rank on the other host.
        above_step: a checkpoint of this step or an older one is left where it is.
        with_records: whether configuration, metrics and the like come, too.

    Returns:
        Step of the checkpoint; None if none was brought.

    Raises:
        RunError: it cannot be read there, or written here; on all ranks.
    """
    is_source = rank.index == source
    prefix, facts = run_dir, None
    with horovod.raise_on_all_ranks():
        found = newest_intact(run_dir, print) if is_source else None
        if found is not None and found.step > above_step:
            prefix = found.prefix
            sizes = [names.file(prefix, suffix).stat().st_size for suffix in SUFFIXES]
            manifest = names.manifest_file(prefix).read_text(encoding="utf-8")
            facts = [found.step, os.fspath(prefix.relative_to(run_dir)), sizes, manifest]
    facts = horovod.gather(facts)[source]
    if facts is None:
        return None
    step, name, sizes, manifest = facts
    if with_records:
        _bring_records(run_dir, rank, source)
    target = run_dir / name
    draft = names.private(target) / target.name
    try:
        for suffix, n_bytes in zip(SUFFIXES, sizes, strict=True):
            from_to = names.file(prefix, suffix), names.file(draft, suffix)
            _bring_file(*from_to, n_bytes, rank, source)
        with horovod.raise_on_all_ranks():
            if rank.is_first:
                publish(draft, target, manifest)
    finally:
        if rank.is_first:
            shutil.rmtree(draft.parent, ignore_errors=True)
    return int(step)


def _bring_records(run_dir: Path, rank: Rank, source: int) -> None:
    with horovod.raise_on_all_ranks():
        changes = records.Records(run_dir).changes() if rank.index == source else None
    changes = horovod.gather(changes)[source]
    with horovod.raise_on_all_ranks():
        if rank.is_first:
            records.put(run_dir, changes)


def _bring_file(there: Path, here: Path, n_bytes: int, rank: Rank, source: int) -> None:
    """Each piece goes to all ranks, for all take part in what they send each other."""
    everybody = horovod.everybody()
    from_source = everybody._replace(ranks=(source, *everybody.ranks))
    with horovod.raise_on_all_ranks():
        if rank.is_first:
            here.parent.mkdir(parents=True, exist_ok=True)
            here.write_bytes(b"")
    for offset in range(0, n_bytes, _PIECE_BYTES):
        length = min(_PIECE_BYTES, n_bytes - offset)
        piece = np.zeros(length, np.uint8)
        with horovod.raise_on_all_ranks():
            if rank.index == source:
                piece = np.fromfile(there, np.uint8, length, offset=offset)
                if len(piece) < length:
                    raise OSError(f"{there} has become shorter")
        with tf.device("CPU:0"):
            piece = horovod.of_first_in(from_source, tf.constant(piece), "piece").numpy()
        with horovod.raise_on_all_ranks():
            if rank.is_first:
                with here.open("ab") as stream:
                    stream.write(piece.tobytes())
    with horovod.raise_on_all_ranks():
        if rank.is_first:
            sync(here)
