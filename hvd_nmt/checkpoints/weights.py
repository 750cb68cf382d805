"""From checkpoint files to variables.

Where a run keeps a moving average of its weights (`training.ema_decay`), that average is what its
checkpoints stand for: translation, scores, export and a run that starts from it take the averaged
weights, as its own validation did. The weights that the optimizer moved are in the same files and
are used when training resumes, by `raw=True` here, and by `python -m hvd_nmt.average --raw`.
"""

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.find import another_advised, find, read_fully, verify
from hvd_nmt.checkpoints.manifest import Checkpoint, Manifest, read_manifest
from hvd_nmt.checkpoints.run_files import (
    CONFIG,
    SOURCE_VOCABULARY,
    VOCABULARY,
    load_config,
    prepare_options,
    require_target_text,
    vocabulary_hashes,
)
from hvd_nmt.checkpoints.state import keyed_variables, with_loss_scale_of
from hvd_nmt.common.errors import RunError, system_error
from hvd_nmt.config import ModelConfig
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.model import architectures
from hvd_nmt.model.transformer import Transformer


def load_model(
    run_dir: Path, which: str = "best", compute_dtype: str = "float32", *, raw: bool = False
) -> tuple[Transformer, int]:
    """A trained model, ready to decode.

    Args:
        run_dir: run directory.
        which: see `find`.
        compute_dtype: dtype of activations.
        raw: take the weights that the optimizer moved even if the run averages them.

    Returns:
        The model and the training step of its weights.

    Raises:
        RunError: no such checkpoint, or it is damaged, or it does not fit the run's configuration
            or vocabulary.
    """
    config = load_config(run_dir)
    prefix = find(run_dir, which)
    with another_advised(prefix):
        manifest = read_manifest(names.manifest_file(prefix))
    require_vocabularies(run_dir, manifest, prefix.name)
    with another_advised(prefix):
        read_fully(prefix)
    model = architectures.build(
        config.model, manifest.vocabulary_size, compute_dtype,
        source_vocabulary_size=manifest.source_vocabulary_size,
    )  # fmt: skip
    try:
        _read(model, prefix, raw)
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise RunError(
            f"{prefix} does not fit the model in {run_dir / CONFIG}: {str(error).splitlines()[0]}"
        ) from error
    return model, manifest.step


def require_vocabularies(run_dir: Path, manifest: Manifest, name: str) -> None:
    """See that a run directory has the vocabularies that a checkpoint was trained with.

    Args:
        run_dir: run directory.
        manifest: of the checkpoint.
        name: of the checkpoint, for errors.

    Raises:
        RunError: one is missing, is another one, or is there without being the checkpoint's.
    """
    wanted = manifest.vocabulary_hash, manifest.source_vocabulary_hash
    found = vocabulary_hashes(run_dir)
    for file, theirs, ours in zip((VOCABULARY, SOURCE_VOCABULARY), wanted, found, strict=True):
        if theirs and not ours:
            whose = "vocabulary" if file == VOCABULARY else "source's vocabulary"
            raise RunError(f"{run_dir} has no {file}, the {whose} of its checkpoints.")
        if ours and not theirs:
            raise RunError(
                f"{run_dir / file} is of no use to {name}, which was trained with one vocabulary "
                "for both languages: take the file away."
            )
        if theirs != ours:
            raise RunError(
                f"{run_dir / file} is not the vocabulary that {name} was trained with: put the "
                "right one back."
            )


def restore(state: tf.train.Checkpoint, checkpoint: Checkpoint) -> bool:
    """Load everything that a run saves: weights, Adam's moments, average, step and loss scale.

    A checkpoint of float16 goes on without its loss scale in a run of another precision; one of
    another precision goes on in float16 with the loss scale that `state` has.

    Args:
        state: of the run, see `state.run_state`.
        checkpoint: of a run.

    Returns:
        Whether the loss scale was left out so, on one side or the other.

    Raises:
        RunError: the checkpoint is of another model, or cannot be read.
    """
    prefix = os.fspath(checkpoint.prefix)
    try:
        saved = tf.train.load_checkpoint(prefix).get_variable_to_dtype_map()
        readable = with_loss_scale_of(state, saved)
        readable.read(prefix).assert_consumed()
        return readable is not state
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        if said := system_error(error):
            raise RunError(f"The checkpoint {prefix} cannot be read ({said}).") from error
        raise RunError(
            f"{checkpoint.prefix} does not fit this model ({str(error).splitlines()[0]}): use the "
            "configuration it was trained with, or another --run-dir."
        ) from error


def start_from(source: str, state: tf.train.Checkpoint, data: DataDirectory) -> Checkpoint:
    """Give a new run the weights of another, and nothing else; the checkpoint they are from.

    Args:
        source: `training.init_from`.
        state: what the new run saves; its `model` gets the weights.
        data: what the new run trains on; its vocabulary must be that of the weights.

    Raises:
        RunError: there is no such checkpoint, it is damaged, or it is of another vocabulary or
            of another model.
    """
    checkpoint = _origin(source)
    require_target_text(names.run_dir_of(checkpoint.prefix))
    prefix, manifest, model = checkpoint.prefix, checkpoint.manifest, state.model
    theirs, ours = (
        (one.vocabulary_hash, one.source_vocabulary_hash) for one in (manifest, data.manifest)
    )
    if theirs != ours:
        raise RunError(
            f"--init-from: {prefix} was trained with another vocabulary than that of {data.path}: "
            f"prepare the data with {prepare_options(names.run_dir_of(prefix))}."
        )
    if difference := other_size(manifest, model):
        name, theirs, ours = difference
        raise RunError(
            f"--init-from: {prefix} is of another model: its {name} is {theirs}, not {ours}; give "
            "this run the same sizes, for example with --config and its config.yaml."
        )
    verify(checkpoint)
    _read(model, prefix, raw=False)
    average = getattr(state, names.AVERAGE, None)
    if average is not None:
        _read(average, prefix, raw=False)
    return checkpoint


def other_size(manifest: Manifest, model: Transformer) -> tuple[str, Any, Any] | None:
    """The first size in which a checkpoint's model differs from another one.

    Rates of dropout are no part of what weights mean, and without learned positions neither is the
    length that the model reads.

    Args:
        manifest: of the checkpoint.
        model: the other model.

    Returns:
        Name of the size, its value in the checkpoint, and in `model`; None if all are equal.
    """
    # A checkpoint from before a field was there has what is now that field's default.
    rows = "vocabulary_size", "source_vocabulary_size"
    found = {
        **configuration.as_plain(ModelConfig()), **manifest.model,
        **{name: getattr(manifest, name) for name in rows},
    }  # fmt: skip
    config = model.config
    wanted = configuration.as_plain(config) | {name: getattr(model, name) for name in rows}
    for name, value in found.items():
        free = name.endswith("dropout") or (name == "max_length" and config.positions != "learned")
        if not free and value != wanted.get(name, value):
            return name, value, wanted[name]
    return None


def variables(state: tf.train.Checkpoint) -> list[tf.Variable]:
    """Everything that a run saves, the loss scale included, in the same order on all ranks."""
    return [variable for _, variable in keyed_variables(state)]


def _read(model: Transformer, prefix: Path, raw: bool) -> None:
    """Fill a model from a checkpoint: with the average in it, if there is one and not `raw`."""
    keys = tf.train.load_checkpoint(os.fspath(prefix)).get_variable_to_shape_map()
    averaged = not raw and names.holds_average(keys)
    state = tf.train.Checkpoint(**{names.AVERAGE if averaged else names.WEIGHTS: model})
    state.read(os.fspath(prefix)).assert_existing_objects_matched().expect_partial()


def _origin(source: str) -> Checkpoint:
    path = Path(source)
    if path.is_dir():
        prefix = find(path, "best")
    else:
        try:
            prefix = find(path.parent, path.name)
        except RunError:
            raise RunError(
                f"--init-from: {source} is neither a run directory nor the path of a checkpoint "
                "on the host of rank 0."
            ) from None
    return Checkpoint.at(prefix)
