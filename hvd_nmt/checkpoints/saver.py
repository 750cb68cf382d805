"""Atomic, verified checkpoints that TensorFlow 1 and 2 can read.

A checkpoint is written under a private name, synced, renamed, and only then gets its manifest, with
a SHA-256 of each file. `find` compares these and TensorFlow's CRC of each tensor.
"""

import contextlib
import copy
import dataclasses
import functools
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_nmt.checkpoints import contents, names
from hvd_nmt.checkpoints.find import best_first, newest_first
from hvd_nmt.checkpoints.manifest import Checkpoint, CheckpointManifest
from hvd_nmt.checkpoints.names import BEST_DIR, STEP, SUFFIXES, VALUE
from hvd_nmt.checkpoints.state import keyed_variables
from hvd_nmt.common.errors import system_error, unwritten
from hvd_nmt.common.files import fingerprint, rename_durably, rename_together, sync
from hvd_nmt.model.transformer import Transformer


class Saver:
    """Writes the checkpoints of a run; for one rank of each directory.

    Args:
        state: its `model` is the Transformer; its `ema`, if any, the average, is that in `.meta`.
        facts: the manifest's values that do not change during the run.
        keep, keep_best: newest and best checkpoints kept, the best by `evaluation.best_by`.
        newest: the intact checkpoint from which the run resumes; its `.meta` serves again.
    """

    def __init__(
        self, run_dir: Path, state: tf.train.Checkpoint, facts: dict[str, Any], keep: int,
        keep_best: int, best_by: str = "val_loss", newest: Checkpoint | None = None,
    ) -> None:  # fmt: skip
        self._run_dir, self._state, self._best_by = run_dir, state, best_by
        self._facts = {**facts, "best_by": best_by}
        self._keep, self._keep_best = keep, keep_best
        # Now, not in the first save: tracing the model takes seconds, and a stop has few.
        if newest is not None:
            self._meta = names.file(newest.prefix, ".meta").read_bytes()
        else:
            self._meta = meta_graph(getattr(state, names.AVERAGE, state.model), state)
        sweep(run_dir)

    def save(self, step: int) -> Checkpoint:
        """Write `model.ckpt-STEP`, drop the oldest beyond `keep`; UserError: failed, all intact."""
        prefix = self._run_dir / f"{names.NEWEST}{step}"
        with _explained(prefix):
            with _drafted(prefix) as draft:
                self._state.write(os.fspath(draft))
                names.file(draft, ".meta").write_bytes(self._meta)
                files = {}
                for suffix in SUFFIXES:
                    path = names.file(draft, suffix)
                    files[suffix] = dataclasses.asdict(fingerprint(path))
                    sync(path)
                table = contents.variable_table(draft)
                manifest = CheckpointManifest(
                    step=step, val_loss=None, files=files, variables=table, **self._facts
                )
                _publish(draft, prefix, manifest)
            complete = newest_first(self._run_dir)
            _point_to(complete[: self._keep])
            for old in complete[self._keep :]:
                remove(old.prefix)
            # What a host had alone is older, and all have continued from it.
            shutil.rmtree(self._run_dir / names.RESCUED_DIR, ignore_errors=True)
        return Checkpoint(prefix, manifest)

    def rescue(self, step: int, host: str) -> Checkpoint:
        """Write what a host has where another is lost; it counts for no `keep`. As `save`."""
        alone = copy.copy(self)
        alone._run_dir = self._run_dir / names.RESCUED_DIR / host
        return alone.save(step)

    def note(
        self, step: int, val_loss: float | None, bleu: float | None = None,
        chrf: float | None = None,
    ) -> None:  # fmt: skip
        """Note the scores of `model.ckpt-STEP`, the newest; link it if it is among the best.

        Its files get a second name, `best_models/val_loss=X-step-STEP` or the like, which the
        `keep_best` best keep; a value of NaN or Inf is never among them.

        Raises RunError if there is no such checkpoint, and as `save` does.
        """
        newest = self._run_dir / f"{names.NEWEST}{step}"
        scores: dict[str, Any] = {"val_loss": val_loss, "bleu": bleu, "chrf": chrf}
        manifest = dataclasses.replace(Checkpoint.at(newest).manifest, **scores)
        path, value = names.manifest_file(newest), scores[self._best_by]
        with _explained(newest), _drafted(path) as draft:
            draft.write_text(manifest.text(), encoding="utf-8")
            rename_durably(draft, path)
        if value is None or not math.isfinite(value):
            return
        best = self._run_dir / BEST_DIR / names.best(self._best_by, value, step)
        with _explained(best):
            with _drafted(best) as draft:
                for suffix in SUFFIXES:
                    _link(names.file(newest, suffix), names.file(draft, suffix))
                _publish(draft, best, manifest)
            for old in best_first(self._run_dir)[self._keep_best :]:
                remove(old.prefix)


def _link(file: Path, draft: Path) -> None:
    """Give a file a second name, or copy it where its file system knows no links."""
    try:
        os.link(file, draft)
    except OSError:
        shutil.copyfile(file, draft)
        sync(draft)


def _publish(draft: Path, prefix: Path, manifest: CheckpointManifest) -> None:
    """Put files of a checkpoint, which are on the disk, in place: the manifest comes last.

    `draft` is their prefix in a private folder of the same disk; files of `prefix` are replaced.
    """
    draft_manifest = draft.parent / "manifest"
    draft_manifest.write_text(manifest.text(), encoding="utf-8")
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
def _drafted(path: Path) -> Iterator[Path]:
    """A path in a private folder, which is removed at the end with all that is in it."""
    private = names.private(path)
    try:
        private.mkdir(parents=True, exist_ok=True)
        yield private / path.name
    finally:
        shutil.rmtree(private, ignore_errors=True)


def sweep(run_dir: Path) -> None:
    """Remove what a killed save has left: private drafts, and files that got no manifest."""
    for folder in (run_dir, run_dir / BEST_DIR):
        for draft in folder.glob(names.PRIVATE + "*"):
            if draft.is_dir():
                shutil.rmtree(draft, ignore_errors=True)
            else:
                draft.unlink(missing_ok=True)
        for prefix in names.prefixes(folder):
            if not names.manifest_file(prefix).exists():
                remove(prefix)


def remove(prefix: Path) -> None:
    """Delete a checkpoint, the manifest first, so that no step in between looks complete."""
    for suffix in names.ALL_SUFFIXES:
        names.file(prefix, suffix).unlink(missing_ok=True)


@contextlib.contextmanager
def _explained(prefix: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = system_error(error) or "TensorFlow's writer failed"
        raise unwritten(
            f"Cannot write the checkpoint {prefix} ({reason}); earlier ones are intact: make room "
            "or fix the cause, then run the same command again.", error,
        ) from error  # fmt: skip


def _point_to(kept: list[Checkpoint]) -> None:
    """Update TensorFlow's own pointer, `checkpoint`, for tools that follow it; newest first."""
    lines = [f"model_checkpoint_path: {json.dumps(kept[0].prefix.name)}"]
    lines += [f"all_model_checkpoint_paths: {json.dumps(c.prefix.name)}" for c in reversed(kept)]
    pointer = kept[0].prefix.parent / names.POINTER
    with _drafted(pointer) as draft:
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        rename_durably(draft, pointer)


def meta_graph(model: Transformer, state: tf.train.Checkpoint) -> bytes:
    """The graph of a model that `state` saves as `model` or `ema`, to be run by TensorFlow alone.

        tf.compat.v1.disable_eager_execution()
        saver = tf.compat.v1.train.import_meta_graph(prefix + ".meta")
        with tf.compat.v1.Session() as session:
            saver.restore(session, prefix)
            session.run("logits:0", {"source:0": source_BxS, "target:0": target_BxT})

    A serialised MetaGraphDef with placeholders `source` and `target` (int32 ids, BxS and BxT, each
    row ending with eos and padded with 0), the result `logits` (float32 BxTxV), and a saver that
    restores the weights and the step, by the keys of the object graph.
    """
    keys = {id(variable): key for key, variable in keyed_variables(state)}
    traced = _traced(model)
    owners = {id(variable.handle): variable for variable in model.variables}
    with tf.Graph().as_default():
        replaced = {
            traced_input.name: tf.compat.v1.placeholder(tf.int32, [None, None], name)
            for traced_input, name in zip(traced.inputs[:2], ("source", "target"), strict=True)
        }
        create = functools.partial(
            tf.compat.v1.get_variable, initializer=tf.zeros_initializer(), use_resource=True
        )
        variables = {STEP + VALUE: create(STEP, [], tf.int64)}
        for handle, placeholder in traced.graph.captures:
            original = owners[id(handle)]
            key = keys[id(original)]
            variables[key] = create(key.removesuffix(VALUE), original.shape, original.dtype)
            replaced[placeholder.name] = variables[key].handle
        graph, wanted = traced.graph.as_graph_def(), [traced.outputs[0].name]
        (logits,) = tf.graph_util.import_graph_def(
            graph, input_map=replaced, return_elements=wanted, name="transformer"
        )
        tf.identity(logits, name="logits")
        saver = tf.compat.v1.train.Saver(variables)
        return tf.compat.v1.train.export_meta_graph(
            saver_def=saver.as_saver_def(), clear_devices=True
        ).SerializeToString()


def _traced(model: Transformer) -> tf.types.experimental.ConcreteFunction:
    """The model as a graph in float32, which every machine can run.

    Keras layers cannot be made or called in a TensorFlow 1 graph without changing their classes
    for the rest of the process; a traced function can be copied into one.
    """
    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(autograph=False)
    def logits(source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        return model(source, target)

    dtype, model.activation_dtype = model.activation_dtype, tf.float32
    try:
        return logits.get_concrete_function(ids, ids)
    finally:
        model.activation_dtype = dtype
