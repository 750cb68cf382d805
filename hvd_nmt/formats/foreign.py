"""A model that another program trained, and the run directory of ours that it becomes.

    runs/imported/
        model.ckpt-1600.*       .data .index .meta and manifest, as `train` writes them
        config.yaml spm.model   what `translate`, `export` and `train` need, with spm.source.model
                                where source and target have SentencePiece models of their own
        imported.json           what it was made of, and how it is used

`openseq2seq` and `marian` read the files of those programs into a `ForeignModel`.
"""

import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.run_files import (
    CONFIG,
    IMPORTED,
    NORMALIZATION,
    SOURCE_VOCABULARY,
    VOCABULARY,
    write_record,
)
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.state import adam_state, run_state, weights_by_path
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import exclusive, replacing, require_free
from hvd_nmt.config import Config, ModelConfig
from hvd_nmt.model import architectures
from hvd_nmt.model.transformer import Transformer

_NOT_TRAINED = """\
# Made by hvd_nmt.convert. Only `model` is known of the training in the other program: all else is
# what hvd_nmt would train with from here on, and nothing has been trained with it yet.
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
    """Adam's state, gathered in as many steps as the model was trained for."""

    m: dict[str, np.ndarray]
    """first moments by the path of their weight"""
    v: dict[str, np.ndarray]
    """second moments, in the same way"""


@dataclasses.dataclass(frozen=True, eq=False)
class ForeignModel:
    """Everything that a run directory is made of."""

    config: ModelConfig
    weights: dict[str, np.ndarray]
    """float32, by path in our model, such as encoder/0/attention/qkv"""
    moments: Moments | None
    """None: there are none, and `train` cannot go on in the run directory"""
    step: int
    """optimizer steps that it was trained for, as far as is known"""
    vocabulary: bytes
    """SentencePiece model with our ids, joint or of the target"""
    origin: dict[str, Any]
    """what it was made of, for the record"""
    source_vocabulary: bytes | None = None
    """that of the source; None: `vocabulary` is joint"""
    normalization: Literal["gnmt", "marian"] = "gnmt"
    """of `model.decoding.Decoding`: the one that its own program translates with"""

    @property
    def vocabulary_size(self) -> int:
        """Rows of the matrix of target and softmax, which the source may share."""
        return len(self.weights["embedding"])

    @property
    def source_vocabulary_size(self) -> int:
        """Rows of the source's own matrix; 0: it has none."""
        return len(self.weights.get("source_embedding", ()))

    @property
    def parameters(self) -> int:
        """Number of trained values."""
        return sum(weight.size for weight in self.weights.values())


def write(foreign: ForeignModel, defaults: Config, out: Path) -> Path:
    """Make a run directory, complete or not at all; the prefix of its checkpoint.

    `defaults` says everything about training and data that the model does not say.

    Raises:
        ConfigError: it is there already.
        RunError: weights are missing, unknown or of another shape.
        DataError: it cannot be written.
    """
    training = defaults.training
    if foreign.moments and training.precision == "auto":
        # float16 would also want a loss scale, which a checkpoint in float32 does not hold.
        training = dataclasses.replace(training, precision="float32")
    config = dataclasses.replace(defaults, run_dir=out, model=foreign.config, training=training)
    with exclusive(out):
        require_free(out)
        with replacing(out) as draft:
            own = foreign.source_vocabulary
            facts = {
                "vocabulary_hash": hashlib.sha256(foreign.vocabulary).hexdigest(),
                "source_vocabulary_hash": hashlib.sha256(own).hexdigest() if own else "",
                "source_vocabulary_size": foreign.source_vocabulary_size,
                "data_hash": "",
                "model": configuration.as_plain(foreign.config),
                "vocabulary_size": foreign.vocabulary_size,
                "ranks": 0,
            }
            state = _state(foreign)
            saved = Saver(draft, state, facts, keep=1, keep_best=1).save(foreign.step)
            (draft / VOCABULARY).write_bytes(foreign.vocabulary)
            if own:
                (draft / SOURCE_VOCABULARY).write_bytes(own)
            configuration.save(config, draft / CONFIG)
            text = (draft / CONFIG).read_text(encoding="utf-8")
            (draft / CONFIG).write_text(_NOT_TRAINED + text, encoding="utf-8")
            use = {NORMALIZATION: foreign.normalization}
            write_record(draft / IMPORTED, foreign.origin | use)
    return out / saved.prefix.name


def assembled(
    table: Mapping[str, Sequence[str]], tensors: Mapping[str, np.ndarray], where: Path
) -> dict[str, np.ndarray]:
    """Our weights, each made of one or several of another program's, side by side.

    `table` gives for the path of a weight of ours the names of its parts, joined along their last
    axis. All `tensors` must be used.
    """
    wanted = {name for names in table.values() for name in names}
    if missing := sorted(wanted - set(tensors)):
        raise RunError(f"{where} lacks {', '.join(missing)}: it is of another kind of model.")
    if unused := sorted(set(tensors) - wanted):
        raise RunError(
            f"{where} holds {', '.join(unused)}, which this model has no place for: it is of "
            "another kind of model."
        )
    return {
        path: np.concatenate([tensors[name] for name in names], -1).astype(np.float32)
        for path, names in table.items()
    }


def count_layers(names: Sequence[str], prefix: str) -> int:
    """How many layers there are, by the highest number that follows a prefix in any name."""
    found = (re.match(r"\d+", name.removeprefix(prefix)) for name in names)
    return max((int(number[0]) + 1 for number in found if number), default=0)


def fingerprinted(paths: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of files by their paths, for the record."""
    found = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                found[os.fspath(path)] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}.") from None
    return found


def model_of(foreign: ForeignModel) -> Transformer:
    """The model, ready to compute.

    Raises:
        RunError: weights are missing, unknown or of another shape.
    """
    model = architectures.build(
        foreign.config, foreign.vocabulary_size,
        source_vocabulary_size=foreign.source_vocabulary_size,
    )  # fmt: skip
    _assign(weights_by_path(model), foreign.weights)
    return model


def _state(foreign: ForeignModel) -> tf.train.Checkpoint:
    """What a checkpoint of a run with this model holds; without moments weights and step alone."""
    model = model_of(foreign)
    if foreign.moments is None:
        return run_state(model, foreign.step)
    adam = adam_state(weights_by_path(model), foreign.step)
    _assign(adam.m, foreign.moments.m)
    _assign(adam.v, foreign.moments.v)
    return run_state(model, foreign.step, adam)


def _assign(variables: Mapping[str, tf.Variable], values: Mapping[str, np.ndarray]) -> None:
    if differing := sorted(set(variables) ^ set(values)):
        raise RunError(f"These weights are in one of the two models only: {', '.join(differing)}.")
    for path, variable in variables.items():
        if variable.shape != values[path].shape:
            raise RunError(
                f"{path} has shape {list(values[path].shape)} instead of {list(variable.shape)}: "
                "the sizes that were given or found do not fit the weights."
            )
        variable.assign(values[path])
