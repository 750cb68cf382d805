"""Atomic, verified checkpoints that TensorFlow 1 and 2 can read.

    model.ckpt-500.data-00000-of-00001   every tensor, one after the other
    model.ckpt-500.index                 name, shape, place and CRC of each tensor
    model.ckpt-500.meta                  the graph, for a process that has only TensorFlow
    model.ckpt-500.json                  the manifest: written last, so it says "complete"
    best_models/val_loss=1.5943-step-500.*
    checkpoint                           TensorFlow's own pointer to the newest

A checkpoint is written under a private name, read back in full (TensorFlow keeps a CRC of each
tensor), synced, renamed, and only then gets its manifest. On the way back the manifest decides,
newest first, and every tensor is read before a checkpoint is believed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_nmt.checkpoints import meta_graph
from hvd_nmt.checkpoints.manifest import Manifest, read_manifest
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import sync
from hvd_nmt.data.corpus import fingerprint

SUFFIXES = (".data-00000-of-00001", ".meta", ".index")
BEST_DIR = "best_models"
DAMAGED_DIR = "damaged"
_PRIVATE = ".saving-"
_NAMED = 4
"""checkpoints that a message names, at most"""
_STEP = re.compile(r"(?:model\.ckpt|val_loss=[\d.]+-step)-(\d+)")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    prefix: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.manifest.step

    def record(self) -> dict[str, Any]:
        """What a run that was made of it writes down; the SHA-256 is that of the data file."""
        return {
            "prefix": os.fspath(self.prefix),
            "step": self.step,
            "val_loss": self.manifest.val_loss,
            "sha256": self.manifest.files[SUFFIXES[0]]["sha256"],
        }


class Saver:
    """Writes the checkpoints of a run. For rank 0.

    Args:
        run_dir: run directory.
        state: what is saved: its `model` is the Transformer, its `ema`, if any, the moving average
            of the weights, which is then the model in `.meta`.
        facts: the manifest's values that do not change during the run.
        keep: newest checkpoints kept.
        keep_best: best checkpoints kept.
    """

    def __init__(
        self,
        run_dir: Path,
        state: tf.train.Checkpoint,
        facts: dict[str, Any],
        keep: int,
        keep_best: int,
    ) -> None:
        self._run_dir, self._state, self._facts = run_dir, state, facts
        self._keep, self._keep_best = keep, keep_best
        self._meta: bytes | None = None
        sweep(run_dir)

    def save(self, step: int, val_loss: float | None = None) -> Checkpoint:
        """Write `model.ckpt-STEP`; drop the oldest beyond `keep`.

        Raises:
            RunError: the disk is full or the file system fails; what was there before is intact.
        """
        with _explained(self._run_dir / f"model.ckpt-{step}") as prefix:
            done = self._write(prefix, step, val_loss)
            _point_to(prefix)
            for old in newest_first(self._run_dir)[self._keep :]:
                remove(old.prefix)
        return done

    def save_best(self, step: int, val_loss: float) -> Checkpoint | None:
        """Write `best_models/val_loss=X-step-STEP` if it is among the `keep_best` lowest losses.

        Returns:
            None if it is not: neither is a loss of NaN or Inf.

        Raises:
            RunError: as `save`.
        """
        if not math.isfinite(val_loss):
            return None
        best = best_first(self._run_dir)
        if len(best) >= self._keep_best:
            worst = best[self._keep_best - 1].manifest.val_loss
            if worst is not None and val_loss >= worst:
                return None
        name = f"val_loss={val_loss:.4f}-step-{step}"
        with _explained(self._run_dir / BEST_DIR / name) as prefix:
            saved = self._write(prefix, step, val_loss)
            for old in best_first(self._run_dir)[self._keep_best :]:
                remove(old.prefix)
        return saved

    def _write(self, prefix: Path, step: int, val_loss: float | None) -> Checkpoint:
        private = _private(prefix)
        renaming = False
        try:
            private.mkdir(parents=True, exist_ok=True)
            draft = private / prefix.name
            self._state.write(os.fspath(draft))
            if self._meta is None:
                model = getattr(self._state, "ema", self._state.model)
                self._meta = meta_graph.export(model, self._state)
            Path(f"{draft}.meta").write_bytes(self._meta)
            read_fully(draft)
            files = {
                suffix: dataclasses.asdict(fingerprint(Path(f"{draft}{suffix}")))
                for suffix in SUFFIXES
            }
            manifest = Manifest(step=step, val_loss=val_loss, files=files, **self._facts)
            draft_manifest = private / "manifest"
            draft_manifest.write_text(manifest.text(), encoding="utf-8")
            for path in (*(Path(f"{draft}{suffix}") for suffix in SUFFIXES), draft_manifest):
                sync(path)
            renaming = True
            remove(prefix)  # a resumed run writes the same best model again
            for suffix in SUFFIXES:
                os.replace(f"{draft}{suffix}", f"{prefix}{suffix}")
            os.replace(draft_manifest, f"{prefix}.json")
            sync(prefix.parent)
        except BaseException:
            if renaming:
                remove(prefix)
            raise
        finally:
            shutil.rmtree(private, ignore_errors=True)
        return Checkpoint(prefix, manifest)


def newest_first(run_dir: Path) -> list[Checkpoint]:
    """The complete `model.ckpt-N` of a run, by step; files are not read."""
    found = [_opened(path) for path in run_dir.glob("model.ckpt-*.json")]
    return sorted((c for c in found if c), key=lambda c: -c.step)


def best_first(run_dir: Path) -> list[Checkpoint]:
    """The complete `best_models/*` of a run, by validation loss."""
    found = [_opened(path) for path in (run_dir / BEST_DIR).glob("val_loss=*.json")]
    by_loss = (
        (math.inf if c.manifest.val_loss is None else c.manifest.val_loss, c.step, c)
        for c in found
        if c
    )
    return [c for _, _, c in sorted(by_loss, key=lambda item: item[:2])]


def newest_verified(run_dir: Path, say: Callable[[str], None] = print) -> Checkpoint | None:
    """The newest checkpoint of which every byte is right; damaged ones are put aside.

    Args:
        run_dir: run directory.
        say: told about each damaged checkpoint.

    Returns:
        None in a fresh run directory.

    Raises:
        RunError: there are, or were, checkpoints and none can be used: starting from scratch here
            would bury them.
    """
    prefixes = [
        prefix
        for folder in (run_dir, run_dir / BEST_DIR)
        for prefix in sorted(_prefixes(folder), key=lambda p: -(_step(p) or 0))
        if not _private(prefix).exists() or Path(f"{prefix}.json").exists()  # not a killed save
    ]
    for prefix in prefixes:
        try:
            candidate = Checkpoint(prefix, read_manifest(Path(f"{prefix}.json")))
            verify(candidate)
            return candidate
        except RunError as error:
            _quarantine(prefix)
            say(f"{error} It was moved to {prefix.parent / DAMAGED_DIR}; trying the one before.")
    signs = (f"{DAMAGED_DIR}/*", f"{BEST_DIR}/{DAMAGED_DIR}/*", "checkpoint")
    if once_held := [path for sign in signs for path in run_dir.glob(sign)]:
        raise RunError(
            f"{run_dir} held checkpoints ({once_held[0].relative_to(run_dir)} says so) and none "
            "that is complete and undamaged is left: restore one from a copy, or choose another "
            "--run-dir to start afresh."
        )
    return None


def verify(checkpoint: Checkpoint) -> None:
    """Read every tensor and compare every file with the manifest.

    Raises:
        RunError: a file is missing, a byte of it has changed, or it has another checkpoint's name.
    """
    if _step(checkpoint.prefix) not in (None, checkpoint.step):
        raise RunError(f"{checkpoint.prefix} is the checkpoint of step {checkpoint.step}.")
    for suffix, wanted in checkpoint.manifest.files.items():
        path = Path(f"{checkpoint.prefix}{suffix}")
        try:
            damaged = dataclasses.asdict(fingerprint(path)) != wanted
        except OSError as error:
            raise RunError(f"{path} cannot be read ({error.strerror}).") from error
        if damaged:
            raise RunError(f"{path} has changed since it was written: the checkpoint is damaged.")
    read_fully(checkpoint.prefix)


def read_fully(prefix: Path) -> None:
    """Read every tensor of a checkpoint; TensorFlow compares each with its CRC.

    Raises:
        RunError: a tensor cannot be read, or is not what was written.
    """
    try:
        reader = tf.train.load_checkpoint(os.fspath(prefix))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        reason = str(getattr(error, "message", error)).splitlines()[0]
        raise RunError(f"The checkpoint {prefix} is damaged ({reason}).") from error


def find(run_dir: Path, which: str) -> Path:
    """The prefix of a checkpoint.

    Args:
        run_dir: run directory.
        which: "best" (lowest validation loss), "latest", or a prefix (with or without suffix).

    Raises:
        RunError: there is no such checkpoint.
    """
    if which in ("best", "latest"):
        found = best_first(run_dir) if which == "best" else []
        found = found or newest_first(run_dir) or best_first(run_dir)
        if not found:
            missing = "is it a run directory of train?"
            if not run_dir.exists():
                missing = f"there is no directory {run_dir}."
            raise RunError(f"{run_dir} holds no checkpoint: {missing}")
        return found[0].prefix
    name = re.sub(r"\.(data-\d+-of-\d+|index|meta|json)$", "", which)
    for prefix in (Path(name), run_dir / name, run_dir / BEST_DIR / name):
        if Path(f"{prefix}.index").exists():
            return prefix
    raise RunError(
        f"No checkpoint {which}: give best, latest, or the path of its .index file; "
        f"{_holds(run_dir)}."
    )


def _holds(run_dir: Path) -> str:
    """Which checkpoints there are, for who has named another."""
    if not run_dir.exists():
        return f"there is no directory {run_dir}"
    names = [c.prefix.name for c in (*newest_first(run_dir), *best_first(run_dir))]
    if not names:
        return f"{run_dir} holds none"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{run_dir} holds {', '.join(names[:_NAMED])}{more}"


@contextlib.contextmanager
def another_advised(prefix: Path) -> Iterator[None]:
    """Where reading a checkpoint fails, name an intact one of the same run, if there is one.

    Raises:
        RunError: that of the block, with the advice.
    """
    try:
        yield
    except RunError as error:
        folder = prefix.parent
        run_dir = folder.parent if folder.name == BEST_DIR else folder
        others = (*best_first(run_dir), *newest_first(run_dir))
        intact = next((c for c in others if c.prefix != prefix and _is_intact(c)), None)
        advice = f"no other checkpoint in {run_dir} is intact."
        if intact is not None:
            advice = f"another one of this run is intact: --checkpoint {intact.prefix}."
        raise RunError(f"{str(error).removesuffix('.')}; {advice}") from error


def _is_intact(checkpoint: Checkpoint) -> bool:
    try:
        verify(checkpoint)
    except RunError:
        return False
    return True


def sweep(run_dir: Path) -> None:
    """Remove what a killed save has left: private drafts, and files that got no manifest."""
    for folder in (run_dir, run_dir / BEST_DIR):
        for draft in folder.glob(_PRIVATE + "*"):
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink()
        for prefix in _prefixes(folder):
            if not Path(f"{prefix}.json").exists():
                remove(prefix)


def remove(prefix: Path) -> None:
    """Delete a checkpoint, the manifest first, so that no step in between looks complete."""
    for suffix in (".json", *SUFFIXES):
        Path(f"{prefix}{suffix}").unlink(missing_ok=True)


def _prefixes(folder: Path) -> set[Path]:
    """Of every checkpoint of which any file is there."""
    names = (
        path.name.removesuffix(suffix)
        for path in folder.glob("*")
        for suffix in (".json", *SUFFIXES)
        if path.name.endswith(suffix)
    )
    return {folder / name for name in names if _STEP.fullmatch(name)}


def _step(prefix: Path) -> int | None:
    match = _STEP.fullmatch(prefix.name)
    return int(match[1]) if match else None


def _private(prefix: Path) -> Path:
    """Where the files of a checkpoint are until they are complete; left behind by a killed save."""
    return prefix.parent / (_PRIVATE + prefix.name)


@contextlib.contextmanager
def _explained(prefix: Path) -> Iterator[Path]:
    try:
        yield prefix
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "message", error)
        raise RunError(
            f"The checkpoint {prefix} cannot be written ({reason}); earlier checkpoints are "
            "intact: make room, then start the same command again."
        ) from error


def _quarantine(prefix: Path) -> None:
    folder = prefix.parent / DAMAGED_DIR
    folder.mkdir(exist_ok=True)
    for suffix in (".json", *SUFFIXES):
        if Path(f"{prefix}{suffix}").exists():
            os.replace(f"{prefix}{suffix}", folder / (prefix.name + suffix))


def _opened(path: Path) -> Checkpoint | None:
    try:
        return Checkpoint(path.with_suffix(""), read_manifest(path))
    except RunError:
        return None


def _point_to(prefix: Path) -> None:
    """Update TensorFlow's own pointer, `checkpoint`, for tools that follow it."""
    names = [c.prefix.name for c in reversed(newest_first(prefix.parent))]
    lines = [f"model_checkpoint_path: {json.dumps(prefix.name)}"]
    lines += [f"all_model_checkpoint_paths: {json.dumps(name)}" for name in names]
    draft = prefix.parent / f"{_PRIVATE}checkpoint"
    try:
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        sync(draft)
        os.replace(draft, prefix.parent / "checkpoint")
    finally:
        draft.unlink(missing_ok=True)
