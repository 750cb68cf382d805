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

import dataclasses
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_nmt import config as configuration
from hvd_nmt.errors import RunError
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import meta_graph

SUFFIXES = (".data-00000-of-00001", ".meta", ".index")
BEST_DIR = "best_models"
_PRIVATE = ".saving-"
_STEP = re.compile(r"(?:model\.ckpt|val_loss=[\d.a-z]+-step)-(\d+)$")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a checkpoint is, and what it belongs to."""

    step: int
    """optimizer steps done; the position in the data follows from it"""
    val_loss: float | None
    """validation loss at this step, if it was evaluated"""
    vocabulary_hash: str
    """sha256 of the SentencePiece model"""
    data_hash: str
    """hash of the prepared data"""
    model: dict[str, Any]
    """sizes of the model"""
    vocabulary_size: int
    """rows of the shared matrix"""
    ranks: int
    """number of ranks that trained it"""
    files: dict[str, dict[str, Any]]
    """suffix -> bytes and sha256"""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    prefix: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self.manifest.step


class Saver:
    """Writes the checkpoints of a run. For rank 0.

    Args:
        run_dir: run directory.
        state: what is saved: its `model` is the Transformer.
        facts: the manifest's values that do not change during the run.
        keep: newest checkpoints kept.
        keep_best: best checkpoints kept.
    """

    def __init__(
        self, run_dir: Path, state: tf.train.Checkpoint, facts: dict[str, Any],
        keep: int, keep_best: int,
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
        done = self._write(self._run_dir / f"model.ckpt-{step}", step, val_loss)
        _point_to(done.prefix)
        for old in newest_first(self._run_dir)[self._keep :]:
            remove(old.prefix)
        return done

    def save_best(self, step: int, val_loss: float) -> Checkpoint | None:
        """Write `best_models/val_loss=X-step-STEP` if it is among the `keep_best` lowest losses."""
        best = best_first(self._run_dir)
        if len(best) >= self._keep_best:
            worst = best[self._keep_best - 1].manifest.val_loss
            if worst is not None and val_loss >= worst:
                return None
        name = f"val_loss={val_loss:.4f}-step-{step}"
        saved = self._write(self._run_dir / BEST_DIR / name, step, val_loss)
        for old in best_first(self._run_dir)[self._keep_best :]:
            remove(old.prefix)
        return saved

    def _write(self, prefix: Path, step: int, val_loss: float | None) -> Checkpoint:
        private = prefix.parent / (_PRIVATE + prefix.name)
        try:
            prefix.parent.mkdir(parents=True, exist_ok=True)
            private.mkdir(exist_ok=True)
            draft = private / prefix.name
            self._state.write(os.fspath(draft))
            if self._meta is None:
                self._meta = meta_graph.export(self._state.model, self._state)
            Path(f"{draft}.meta").write_bytes(self._meta)
            read_fully(draft)
            files = {suffix: _fingerprint(Path(f"{draft}{suffix}")) for suffix in SUFFIXES}
            for suffix in SUFFIXES:
                _sync(Path(f"{draft}{suffix}"))
                os.replace(f"{draft}{suffix}", f"{prefix}{suffix}")
            manifest = Manifest(step=step, val_loss=val_loss, files=files, **self._facts)
            draft_manifest = private / "manifest"
            text = json.dumps(dataclasses.asdict(manifest), indent=1)
            draft_manifest.write_text(text + "\n", encoding="utf-8")
            _sync(draft_manifest)
            os.replace(draft_manifest, f"{prefix}.json")
            _sync(prefix.parent)
        except (OSError, tf.errors.OpError) as error:
            reason = getattr(error, "strerror", None) or getattr(error, "message", error)
            raise RunError(
                f"The checkpoint {prefix} cannot be written ({reason}); earlier checkpoints are "
                "intact: make room, then start the same command again."
            ) from error
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
    return sorted((c for c in found if c), key=lambda c: (c.manifest.val_loss or 0.0, c.step))


def traces(run_dir: Path) -> list[Path]:
    """Any sign that a checkpoint was ever written here: complete, torn or without a manifest."""
    return [
        path
        for folder in (run_dir, run_dir / BEST_DIR)
        for pattern in ("model.ckpt-*", "val_loss=*")
        for path in folder.glob(pattern)
    ]


def newest_verified(run_dir: Path, say: Callable[[str], None] = print) -> Checkpoint | None:
    """The newest checkpoint of which every byte is right; damaged ones are put aside.

    Args:
        run_dir: run directory.
        say: told about each damaged checkpoint.

    Returns:
        None in a fresh run directory.

    Raises:
        RunError: there are checkpoints and none can be used: starting from scratch here would
            bury them.
    """
    candidates = newest_first(run_dir) or sorted(best_first(run_dir), key=lambda c: -c.step)
    for candidate in candidates:
        try:
            verify(candidate)
            return candidate
        except RunError as error:
            say(f"{error} Trying the one before.")
            _quarantine(candidate.prefix)
    if left := traces(run_dir):
        raise RunError(
            f"{run_dir} holds checkpoint files ({left[0].name}, ...) but none is complete and "
            "undamaged: restore one from a copy, or choose another --run-dir to start afresh."
        )
    return None


def verify(checkpoint: Checkpoint) -> None:
    """Read every tensor and compare every file with the manifest.

    Raises:
        RunError: a file is missing, or a byte of it has changed.
    """
    for suffix, wanted in checkpoint.manifest.files.items():
        path = Path(f"{checkpoint.prefix}{suffix}")
        try:
            damaged = _fingerprint(path) != wanted
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
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
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
            raise RunError(f"{run_dir} holds no checkpoint: is it a run directory of train?")
        return found[0].prefix
    name = re.sub(r"\.(data-\d+-of-\d+|index|meta|json)$", "", which)
    for prefix in (Path(name), run_dir / name, run_dir / BEST_DIR / name):
        if Path(f"{prefix}.index").exists():
            return prefix
    raise RunError(f"No checkpoint {which}: give best, latest, or the path of its .index file.")


def load_model(
    run_dir: Path, which: str = "best", compute_dtype: str = "float32"
) -> tuple[Transformer, int]:
    """A trained model, ready to decode.

    Args:
        run_dir: run directory.
        which: see `find`.
        compute_dtype: dtype of activations.

    Returns:
        The model and the training step of its weights.

    Raises:
        RunError: no such checkpoint, or it does not fit the run's configuration or vocabulary.
    """
    if not (run_dir / "config.yaml").exists():
        raise RunError(f"{run_dir} is no run directory: it has no config.yaml.")
    config = configuration.load(run_dir / "config.yaml")
    prefix = find(run_dir, which)
    manifest = _manifest(Path(f"{prefix}.json"))
    vocabulary = run_dir / "spm.model"
    if _fingerprint(vocabulary)["sha256"] != manifest.vocabulary_hash:
        raise RunError(
            f"{vocabulary} is not the vocabulary that {prefix.name} was trained with: put the "
            "right one back."
        )
    model = Transformer(config.model, manifest.vocabulary_size, compute_dtype)
    try:
        status = tf.train.Checkpoint(model=model).read(os.fspath(prefix))
        status.assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise RunError(
            f"{prefix} does not fit the model in {run_dir / 'config.yaml'}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return model, manifest.step


def restore(state: tf.train.Checkpoint, checkpoint: Checkpoint) -> None:
    """Load everything that a run saves: weights, Adam's moments, step and loss scale.

    Raises:
        RunError: the checkpoint is of another model.
    """
    try:
        state.read(os.fspath(checkpoint.prefix)).assert_consumed()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise RunError(
            f"{checkpoint.prefix} does not fit this model ({str(error).splitlines()[0]}): use the "
            "configuration it was trained with, or another --run-dir."
        ) from error


def variables(state: tf.train.Checkpoint) -> list[tf.Variable]:
    """Everything that a run saves, the loss scale included, in the same order on all ranks."""
    return [variable for _, variable in meta_graph.keyed_variables(state)]


def sweep(run_dir: Path) -> None:
    """Remove what a killed save has left: private drafts, and files that got no manifest."""
    for folder in (run_dir, run_dir / BEST_DIR):
        for draft in folder.glob(_PRIVATE + "*"):
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink()
        for data in folder.glob("*" + SUFFIXES[0]):
            prefix = Path(os.fspath(data)[: -len(SUFFIXES[0])])
            if _STEP.search(prefix.name) and not Path(f"{prefix}.json").exists():
                remove(prefix)


def remove(prefix: Path) -> None:
    """Delete a checkpoint, the manifest first, so that no step in between looks complete."""
    for suffix in (".json", *SUFFIXES):
        Path(f"{prefix}{suffix}").unlink(missing_ok=True)


def _quarantine(prefix: Path) -> None:
    folder = prefix.parent / "damaged"
    folder.mkdir(exist_ok=True)
    for suffix in (".json", *SUFFIXES):
        if Path(f"{prefix}{suffix}").exists():
            os.replace(f"{prefix}{suffix}", folder / (prefix.name + suffix))
    print(f"{prefix} was moved to {folder}.", file=sys.stderr)


def _opened(path: Path) -> Checkpoint | None:
    try:
        return Checkpoint(path.with_suffix(""), _manifest(path))
    except RunError:
        return None


def _manifest(path: Path) -> Manifest:
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise RunError(
            f"{path}, the manifest of a checkpoint, cannot be read ({error})."
        ) from error


def _point_to(prefix: Path) -> None:
    """Update TensorFlow's own pointer, `checkpoint`, for tools that follow it."""
    names = [c.prefix.name for c in reversed(newest_first(prefix.parent))]
    lines = [f"model_checkpoint_path: {json.dumps(prefix.name)}"]
    lines += [f"all_model_checkpoint_paths: {json.dumps(name)}" for name in names]
    draft = prefix.parent / f"{_PRIVATE}checkpoint"
    draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _sync(draft)
    os.replace(draft, prefix.parent / "checkpoint")


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return {"bytes": stream.tell(), "sha256": digest}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
