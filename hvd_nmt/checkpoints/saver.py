"""Atomic, verified checkpoints that TensorFlow 1 and 2 can read.

    model.ckpt-500.data-00000-of-00001   every tensor, one after the other
    model.ckpt-500.index                 name, shape, place and CRC of each tensor
    model.ckpt-500.meta                  the graph, for a process that has only TensorFlow
    model.ckpt-500.json                  the manifest: written last, so it says "complete"
    best_models/val_loss=1.5943-step-500.*
    checkpoint                           TensorFlow's own pointer to the newest

A checkpoint is written under a private name, synced, renamed, and only then gets its manifest, with
a SHA-256 of each file. `find` compares these and TensorFlow's CRC of each tensor.
"""

import contextlib
import dataclasses
import errno
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_nmt.checkpoints import contents, meta_graph, names
from hvd_nmt.checkpoints.find import best_first, newest_first
from hvd_nmt.checkpoints.manifest import Checkpoint, Manifest
from hvd_nmt.checkpoints.names import BEST_DIR, SUFFIXES
from hvd_nmt.common.errors import RunError, system_error
from hvd_nmt.common.files import fingerprint, rename_together, replacing_file, sync


class Saver:
    """Writes the checkpoints of a run; for one rank of each directory.

    Args:
        state: its `model` is the Transformer, its `ema`, if any, the moving average of the weights,
            which is then the model in `.meta`.
        facts: the manifest's values that do not change during the run.
        keep, keep_best: newest and best checkpoints kept, the best by `evaluation.best_by`.
    """

    def __init__(
        self,
        run_dir: Path,
        state: tf.train.Checkpoint,
        facts: dict[str, Any],
        keep: int,
        keep_best: int,
        best_by: str = "val_loss",
    ) -> None:
        self._run_dir, self._state, self._best_by = run_dir, state, best_by
        self._facts = {**facts, "best_by": best_by}
        self._keep, self._keep_best = keep, keep_best
        # Now, not in the first save: tracing the model takes seconds, and a stop has few.
        self._meta = meta_graph.export(getattr(state, names.AVERAGE, state.model), state)
        sweep(run_dir)

    def save(self, step: int) -> Checkpoint:
        """Write `model.ckpt-STEP`; drop the oldest beyond `keep`.

        Raises RunError if the disk is full or the file system fails; what was there before is
        intact.
        """
        with _explained(self._run_dir, self._run_dir / names.newest(step)) as prefix:
            saved = self._write(prefix, step)
            complete = newest_first(self._run_dir)
            _point_to(complete[: self._keep])
            for old in complete[self._keep :]:
                remove(old.prefix)
        return saved

    def note(
        self, step: int, val_loss: float, bleu: float | None = None, chrf: float | None = None
    ) -> Checkpoint | None:
        """Note the scores of `model.ckpt-STEP`; if it is among the `keep_best` best, link it there.

        Its files get a second name, `best_models/val_loss=X-step-STEP` or the like. Returns the
        best model; None if it is not among them, as is no value of NaN or Inf.

        Raises RunError if there is no such checkpoint, and as `save` does.
        """
        scores: dict[str, Any] = {"val_loss": val_loss, "bleu": bleu, "chrf": chrf}
        value, measure = scores[self._best_by], self._best_by
        checkpoint = Checkpoint.at(self._run_dir / names.newest(step))
        with _explained(self._run_dir, checkpoint.prefix) as prefix:
            path = names.manifest_file(prefix)
            manifest = dataclasses.replace(checkpoint.manifest, val_loss=val_loss)
            with replacing_file(path, draft=names.private(path)) as draft:
                draft.write_text(manifest.text(), encoding="utf-8")
        if value is None or not math.isfinite(value):
            return None
        best = self._best_first()
        if len(best) >= self._keep_best:
            worst = getattr(best[self._keep_best - 1].manifest, measure)
            if worst is not None and names.badness(measure, value) >= names.badness(measure, worst):
                return None
        name = names.best(measure, value, step)
        with _explained(self._run_dir, self._run_dir / BEST_DIR / name) as prefix:
            manifest = dataclasses.replace(manifest, **scores)
            with _drafted(prefix) as draft:
                for suffix in SUFFIXES:
                    _link(names.file(checkpoint.prefix, suffix), names.file(draft, suffix))
                publish(draft, prefix, manifest.text())
            for old in self._best_first()[self._keep_best :]:
                remove(old.prefix)
        return Checkpoint(prefix, manifest)

    def _best_first(self) -> list[Checkpoint]:
        return best_first(self._run_dir, data_hash=self._facts["data_hash"], best_by=self._best_by)

    def _write(self, prefix: Path, step: int) -> Checkpoint:
        with _drafted(prefix) as draft:
            self._state.write(os.fspath(draft))
            names.file(draft, ".meta").write_bytes(self._meta)
            files = {
                suffix: dataclasses.asdict(fingerprint(names.file(draft, suffix)))
                for suffix in SUFFIXES
            }
            for suffix in SUFFIXES:
                sync(names.file(draft, suffix))
            table = contents.variable_table(draft)
            manifest = Manifest(
                step=step, val_loss=None, files=files, variables=table, **self._facts
            )
            publish(draft, prefix, manifest.text())
        return Checkpoint(prefix, manifest)


def _link(file: Path, draft: Path) -> None:
    """Give a file a second name, or copy it where its file system knows no links."""
    try:
        os.link(file, draft)
    except OSError as error:
        if _is_full(error):
            raise
        shutil.copyfile(file, draft)
        sync(draft)


def publish(draft: Path, prefix: Path, manifest: str) -> None:
    """Put files of a checkpoint, which are on the disk, in place: the manifest, a text, comes last.

    `draft` is their prefix in a folder of their own on the same file system; files with `prefix`
    are replaced.
    """
    draft_manifest = draft.parent / "manifest"
    draft_manifest.write_text(manifest, encoding="utf-8")
    sync(draft_manifest)
    try:
        remove(prefix)  # a resumed run writes the same best model again
        rename_together([
            *((names.file(draft, suffix), names.file(prefix, suffix)) for suffix in SUFFIXES),
            (draft_manifest, names.manifest_file(prefix)),
        ])  # fmt: skip
    except BaseException:
        remove(prefix)
        raise


@contextlib.contextmanager
def _drafted(prefix: Path) -> Iterator[Path]:
    """A prefix in a private folder, which is removed at the end with all that is in it."""
    private = names.private(prefix)
    try:
        private.mkdir(parents=True, exist_ok=True)
        yield private / prefix.name
    finally:
        shutil.rmtree(private, ignore_errors=True)


def sweep(run_dir: Path) -> None:
    """Remove what a killed save has left: private drafts, and files that got no manifest."""
    for folder in (run_dir, run_dir / BEST_DIR):
        for draft in folder.glob(names.PRIVATE + "*"):
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink()
        for prefix in names.prefixes(folder):
            if not names.manifest_file(prefix).exists():
                remove(prefix)


def remove(prefix: Path) -> None:
    """Delete a checkpoint, the manifest first, so that no step in between looks complete."""
    for suffix in names.ALL_SUFFIXES:
        names.file(prefix, suffix).unlink(missing_ok=True)


@contextlib.contextmanager
def _explained(run_dir: Path, prefix: Path) -> Iterator[Path]:
    try:
        yield prefix
    except (OSError, tf.errors.OpError) as error:
        remedy = "make room" if _is_full(error) else "mend that"
        earlier = newest_first(run_dir) or best_first(run_dir)
        intact = (
            "earlier checkpoints are intact" if earlier else "no other checkpoint was saved yet"
        )
        reason = system_error(error) or "TensorFlow's writer failed"
        raise RunError(
            f"The checkpoint {prefix} cannot be written ({reason}); {intact}: {remedy}, "
            "then start the same command again."
        ) from error


def _is_full(error: Exception) -> bool:
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "errno", None) in full or any(os.strerror(n) in str(error) for n in full)


def _point_to(kept: list[Checkpoint]) -> None:
    """Update TensorFlow's own pointer, `checkpoint`, for tools that follow it; newest first."""
    lines = [f"model_checkpoint_path: {json.dumps(kept[0].prefix.name)}"]
    lines += [f"all_model_checkpoint_paths: {json.dumps(c.prefix.name)}" for c in reversed(kept)]
    pointer = kept[0].prefix.parent / names.POINTER
    with replacing_file(pointer, draft=names.private(pointer)) as draft:
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
