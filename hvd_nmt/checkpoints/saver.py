"""Atomic, verified checkpoints that TensorFlow 1 and 2 can read.

    model.ckpt-500.data-00000-of-00001   every tensor, one after the other
    model.ckpt-500.index                 name, shape, place and CRC of each tensor
    model.ckpt-500.meta                  the graph, for a process that has only TensorFlow
    model.ckpt-500.json                  the manifest: written last, so it says "complete"
    best_models/val_loss=1.5943-step-500.*
    checkpoint                           TensorFlow's own pointer to the newest

A checkpoint is written under a private name, read back in full (TensorFlow keeps a CRC of each
tensor), synced, renamed, and only then gets its manifest. `find` is the way back.
"""

import contextlib
import dataclasses
import errno
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_nmt.checkpoints import meta_graph, names
from hvd_nmt.checkpoints.find import badness, best_first, newest_first, read_fully
from hvd_nmt.checkpoints.manifest import Checkpoint, Manifest
from hvd_nmt.checkpoints.names import BEST_DIR, SUFFIXES
from hvd_nmt.common.errors import RunError, system_error
from hvd_nmt.common.files import fingerprint, rename_together, replacing_file, sync

_NO_SCORES: Mapping[str, Any] = {"val_loss": None}


class Saver:
    """Writes the checkpoints of a run. For rank 0.

    Args:
        run_dir: run directory.
        state: what is saved: its `model` is the Transformer, its `ema`, if any, the moving average
            of the weights, which is then the model in `.meta`.
        facts: the manifest's values that do not change during the run.
        keep: newest checkpoints kept.
        keep_best: best checkpoints kept.
        best_by: `evaluation.best_by`, which decides what they are.
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

    def save(self, step: int, *, read_back: bool = True) -> Checkpoint:
        """Write `model.ckpt-STEP`; drop the oldest beyond `keep`.

        Args:
            step: steps done.
            read_back: whether to read it in full before anything older is dropped. If not, nothing
                is dropped, and the next start has what it falls back to if this one is damaged.

        Raises:
            RunError: the disk is full or the file system fails; what was there before is intact.
        """
        with _explained(self._run_dir, self._run_dir / names.newest(step)) as prefix:
            done = self._write(prefix, step, read_back=read_back)
            complete = newest_first(self._run_dir)
            kept = complete[: self._keep] if read_back else complete
            _point_to(kept)
            for old in complete[len(kept) :]:
                remove(old.prefix)
        return done

    def note_loss(self, step: int, val_loss: float) -> None:
        """Put the validation loss into the manifest of `model.ckpt-STEP`, if there is one.

        Raises:
            RunError: the disk is full or the file system fails; what was there before is intact.
        """
        for checkpoint in newest_first(self._run_dir):
            if checkpoint.step == step:
                with _explained(self._run_dir, checkpoint.prefix) as prefix:
                    path = names.manifest_file(prefix)
                    manifest = dataclasses.replace(checkpoint.manifest, val_loss=val_loss)
                    with replacing_file(path, draft=names.private(path)) as draft:
                        draft.write_text(manifest.text(), encoding="utf-8")

    def save_best(
        self, step: int, val_loss: float, bleu: float | None = None, chrf: float | None = None
    ) -> Checkpoint | None:
        """Write `best_models/val_loss=X-step-STEP` if it is among the `keep_best` best.

        Args:
            step: steps done.
            val_loss: validation loss; with `best_by` it may be another one that decides.
            bleu: of the dev sentences.
            chrf: of the dev sentences.

        Returns:
            None if it is not: neither is a value of NaN or Inf.
        """
        scores = {"val_loss": val_loss, "bleu": bleu, "chrf": chrf}
        value, measure = scores[self._best_by], self._best_by
        if value is None or not math.isfinite(value):
            return None
        best = self._best_first()
        if len(best) >= self._keep_best:
            worst = getattr(best[self._keep_best - 1].manifest, measure)
            if worst is not None and badness(measure, value) >= badness(measure, worst):
                return None
        best_prefix = self._run_dir / BEST_DIR / names.best(measure, value, step)
        with _explained(self._run_dir, best_prefix) as prefix:
            saved = self._write(prefix, step, scores)
            for old in self._best_first()[self._keep_best :]:
                remove(old.prefix)
        return saved

    def _best_first(self) -> list[Checkpoint]:
        return best_first(self._run_dir, data_hash=self._facts["data_hash"], best_by=self._best_by)

    def _write(
        self, prefix: Path, step: int, scores: Mapping[str, Any] = _NO_SCORES,
        read_back: bool = True,
    ) -> Checkpoint:  # fmt: skip
        private = names.private(prefix)
        renaming = False
        try:
            private.mkdir(parents=True, exist_ok=True)
            draft = private / prefix.name
            self._state.write(os.fspath(draft))
            names.file(draft, ".meta").write_bytes(self._meta)
            if read_back:
                read_fully(draft)
            files = {
                suffix: dataclasses.asdict(fingerprint(names.file(draft, suffix)))
                for suffix in SUFFIXES
            }
            manifest = Manifest(step=step, files=files, **scores, **self._facts)
            draft_manifest = private / "manifest"
            draft_manifest.write_text(manifest.text(), encoding="utf-8")
            for path in (*(names.file(draft, suffix) for suffix in SUFFIXES), draft_manifest):
                sync(path)
            renaming = True
            remove(prefix)  # a resumed run writes the same best model again
            rename_together([
                *((names.file(draft, suffix), names.file(prefix, suffix)) for suffix in SUFFIXES),
                (draft_manifest, names.manifest_file(prefix)),
            ])  # fmt: skip
        except BaseException:
            if renaming:
                remove(prefix)
            raise
        finally:
            shutil.rmtree(private, ignore_errors=True)
        return Checkpoint(prefix, manifest)


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
