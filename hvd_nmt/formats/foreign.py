"""A model that another program trained, and the run directory of ours that it becomes."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import tensorflow as tf

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints import run_files
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.state import OptimizerState, run_state
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import Config
from hvd_nmt.model.transformer import Transformer


@dataclasses.dataclass(frozen=True)
class ForeignModel:
    """Everything that a run directory is made of.

    A module of `formats/` makes it of the files of its program, which `convert.py` offers:

        def read(folder: Path) -> ForeignModel:
            tensors = load_file(folder / "model.safetensors")
            model = build_transformer(ModelConfig(encoder_layers=6), len(tensors["embed"]))
            assign(weights_by_path(model), {"embedding": ("embed",)}, tensors, folder)
            return ForeignModel("Program", model, (folder / "spm.model").read_bytes())
    """

    program: str
    """the program that trained it"""
    model: Transformer
    vocabulary: bytes
    """SentencePiece model with our ids, joint or of the target"""
    source_vocabulary: bytes | None = None
    """SentencePiece model of the source; None: `vocabulary` is joint"""
    step: int = 0
    """optimizer steps that it was trained for, as far as is known"""
    adam: OptimizerState | None = None
    """None: it is unknown, and `train` cannot continue in the run directory"""
    normalization: Literal["gnmt", "marian"] = "gnmt"
    """length penalty that its program translates with, as in `model.decoding.Decoding`"""


def write(foreign: ForeignModel, defaults: Config, out: Path) -> Path:
    """Make a run directory, complete or not at all; the prefix of its checkpoint.

    `defaults` says everything about training and data that the model does not say. Raises what
    `run_files.new_directory` does.
    """
    model, source_vocabulary = foreign.model, foreign.source_vocabulary
    config = dataclasses.replace(defaults, run_dir=out, model=model.config)
    facts = {
        "vocabulary_hash": hashlib.sha256(foreign.vocabulary).hexdigest(),
        "source_vocabulary_hash": "",
        "source_vocabulary_size": model.source_vocabulary_size,
        "data_hash": "",
        "model": configuration.as_plain(model.config),
        "vocabulary_size": model.vocabulary_size,
        "ranks": 0,
    }
    if source_vocabulary:
        facts["source_vocabulary_hash"] = hashlib.sha256(source_vocabulary).hexdigest()
    state = run_state(model, foreign.step, foreign.adam)
    with run_files.new_directory(out) as draft:
        saved = Saver(draft, state, facts, keep=1, keep_best=1).save(foreign.step)
        run = run_files.RunDirectory(draft)
        run.vocabulary.write_bytes(foreign.vocabulary)
        if source_vocabulary:
            run.source_vocabulary.write_bytes(source_vocabulary)
        configuration.save(config, run.config)
        facts = {"program": foreign.program, run_files.NORMALIZATION: foreign.normalization}
        run_files.write_record(run.imported, facts)
    return out / saved.prefix.name


def assign(
    variables: Mapping[str, tf.Variable], table: Mapping[str, Sequence[str]],
    tensors: Mapping[str, np.ndarray], where: Path,
) -> None:  # fmt: skip
    """Set our variables, each to one or several of another program's tensors, side by side.

    `table` gives for the path of a variable the names of its parts, joined along their last axis.
    RunError: tensors are missing, of no use or of another shape.
    """
    wanted = {name for names in table.values() for name in names}
    if missing := sorted(wanted - set(tensors)):
        raise RunError(f"{where} has no {', '.join(missing)}: it is of another kind of model.")
    if unused := sorted(set(tensors) - wanted):
        raise RunError(
            f"{where} also has {', '.join(unused)}, unknown to this model: it is of another kind."
        )
    for path, variable in variables.items():
        value = np.concatenate([tensors[name] for name in table[path]], -1)
        if variable.shape != value.shape:
            raise RunError(
                f"{path} of {where} has shape {list(value.shape)} instead of "
                f"{list(variable.shape)}: it is of another kind of model."
            )
        variable.assign(value.astype(np.float32))
