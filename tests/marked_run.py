"""Helpers for tests of checkpoints: a small run under training, marked with its step."""

import os
from pathlib import Path

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints.find import newest_intact
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.names import OBJECT_GRAPH
from hvd_nmt.checkpoints.state import keyed_variables

SUFFIXES = (".data-00000-of-00001", ".index", ".meta", ".json")
FACTS = {
    "vocabulary_hash": "v", "data_hash": "d", "model": {"width": 16}, "vocabulary_size": 40,
    "ranks": 1,
}  # fmt: skip


def mark(state: tf.train.Checkpoint, step: int) -> None:
    """Gives every variable a value that tells the step."""
    for _, variable in keyed_variables(state):
        variable.assign(tf.cast(tf.fill(variable.shape, step), variable.dtype))


def marked(prefix: Path) -> set[float]:
    """The values found in a checkpoint: that of its step alone."""
    reader = tf.train.load_checkpoint(os.fspath(prefix))
    names = set(reader.get_variable_to_shape_map()) - {OBJECT_GRAPH}
    return {float(value) for name in names for value in np.unique(reader.get_tensor(name))}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def files_of(*prefixes: str) -> set[str]:
    return {prefix + suffix for prefix in prefixes for suffix in SUFFIXES}


def newest(run_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    said: list[str] = []
    return newest_intact(run_dir, said.append), said
