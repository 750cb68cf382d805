"""From checkpoint files to variables."""

from __future__ import annotations

import os
from pathlib import Path

import tensorflow as tf

from hvd_nmt import config as configuration
from hvd_nmt.data.corpus import fingerprint
from hvd_nmt.errors import RunError
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import meta_graph
from hvd_nmt.training.checkpoints import Checkpoint, find, read_fully, read_manifest


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
        RunError: no such checkpoint, or it is damaged, or it does not fit the run's configuration
            or vocabulary.
    """
    if not (run_dir / "config.yaml").exists():
        raise RunError(f"{run_dir} is no run directory: it has no config.yaml.")
    config = configuration.load(run_dir / "config.yaml")
    prefix = find(run_dir, which)
    manifest = read_manifest(Path(f"{prefix}.json"))
    vocabulary = run_dir / "spm.model"
    if not vocabulary.exists():
        raise RunError(f"{run_dir} has no {vocabulary.name}, the vocabulary of its checkpoints.")
    if fingerprint(vocabulary).sha256 != manifest.vocabulary_hash:
        raise RunError(
            f"{vocabulary} is not the vocabulary that {prefix.name} was trained with: put the "
            "right one back."
        )
    read_fully(prefix)
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
