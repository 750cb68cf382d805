"""From checkpoint files to variables.

Where a run keeps a moving average of its weights (`training.ema_decay`), its checkpoints stand for
that average: translation, scores, export and a run that starts from it take the averaged weights,
as its own validation did. The weights that the optimizer moved are in the same files. A resumed run
uses them, as do `raw=True` here and `python -m hvd_nmt.average --raw`.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
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
    vocabularies,
    vocabulary_hashes,
)
from hvd_nmt.checkpoints.state import keyed_variables, with_loss_scale_of
from hvd_nmt.common.errors import RunError, system_error
from hvd_nmt.config import ModelConfig
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.model.transformer import Transformer, build_transformer


def load_model(
    run_dir: Path, which: str = "best", compute_dtype: str = "float32", *, raw: bool = False
) -> tuple[Transformer, int]:
    """A trained model, ready to decode, and the training step of its weights; `which`: see `find`.

    `raw`: take the weights that the optimizer moved even if the run averages them.

    Raises RunError if the checkpoint is missing or damaged, or does not fit the run's configuration
    or vocabulary.
    """
    config = load_config(run_dir)
    prefix = find(run_dir, which)
    with another_advised(prefix):
        manifest = read_manifest(names.manifest_file(prefix))
    require_vocabularies(run_dir, manifest, prefix.name)
    with another_advised(prefix):
        read_fully(prefix)
    model = build_transformer(
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
    """See that a run directory has the vocabularies of a checkpoint; `name` is for errors.

    Raises RunError if one is missing, is another one, or is there without being the checkpoint's.
    """
    wanted, found = manifest.vocabulary_hashes, vocabulary_hashes(run_dir)
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
    """Load all that a run saves into `state`; whether a loss scale was left out on either side.

    A checkpoint of float16 goes on without its loss scale in a run of another precision; one of
    another precision goes on in float16 with the loss scale that `state` has.

    Raises RunError if the checkpoint is of another model, or cannot be read.
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


def start_from(
    source: str, state: tf.train.Checkpoint, data: DataDirectory
) -> tuple[Checkpoint, str]:
    """Give a new run the weights of another; the checkpoint, and what the log says of it.

    Where the new run has another vocabulary, a piece that both know keeps its rows; the rows of the
    others stay as they were drawn. `source` is `training.init_from`; the model and the average of
    `state` get the weights.

    Raises RunError if there is no such checkpoint, it is damaged, or it is of another model.
    """
    checkpoint = _origin(source)
    prefix, manifest, model = checkpoint.prefix, checkpoint.manifest, state.model
    run_dir = names.run_dir_of(prefix)
    ours = data.manifest.vocabulary_hash, data.manifest.source_vocabulary_hash
    same_pieces = manifest.vocabulary_hashes == ours
    difference = other_size(manifest, model, with_rows=same_pieces)
    if difference is None and bool(manifest.source_vocabulary_size) != (
        model.source_embedding is not None
    ):
        raise RunError(
            f"--init-from: one of {prefix} and {data.path} has a vocabulary of its own for the "
            f"source, the other has not: prepare the data with {prepare_options(run_dir)}."
        )
    if difference:
        name, theirs, wanted = difference
        raise RunError(
            f"--init-from: {prefix} is of another model: its {name} is {theirs}, not {wanted}; "
            "give this run the same sizes, for example with --config and its config.yaml."
        )
    verify(checkpoint)
    said = f"begins with {prefix}, step {manifest.step:,}"
    if same_pieces:
        _read(model, prefix, raw=False)
    else:
        said += f": {_copy_by_piece(run_dir, prefix, model, data)}"
    average = getattr(state, names.AVERAGE, None)
    if average is not None:
        for copy, weight in zip(
            average.trainable_variables, model.trainable_variables, strict=True
        ):
            copy.assign(weight)
    return checkpoint, said


def _copy_by_piece(run_dir: Path, prefix: Path, model: Transformer, data: DataDirectory) -> str:
    """Fill a model from one of another vocabulary; how many pieces both know."""
    old, _ = load_model(run_dir, os.fspath(prefix))
    before, after = vocabularies(run_dir), (data.source_spm_path, data.spm_path)
    source, target = (_same_pieces(*paths) for paths in zip(before, after, strict=True))
    for weight, origin in zip(model.trainable_variables, old.trainable_variables, strict=True):
        pieces = None
        if weight is model.embedding or weight is model.logits_bias:
            pieces = target
        elif weight is model.source_embedding:
            pieces = source
        _assign(weight, origin.numpy(), pieces)
    sides = (
        {"": target} if model.source_embedding is None else {"source ": source, "target ": target}
    )
    return ", ".join(
        f"{len(found):,} of {size:,} {side}pieces keep their rows"
        for side, (found, _, size) in sides.items()
    )


def _same_pieces(before: Path, after: Path) -> tuple[list[int], list[int], int]:
    """The pieces of two vocabularies: old ids and new ids of those in both, size of the new one."""
    old, new = (
        {
            piece.piece: number
            for number, piece in enumerate(sentencepiece_model.parsed(path.read_bytes()).pieces)
        }
        for path in (before, after)
    )
    shared = [name for name in new if name in old]
    return [old[name] for name in shared], [new[name] for name in shared], len(new)


def _assign(
    weight: tf.Variable, old: np.ndarray, pieces: tuple[list[int], list[int], int] | None
) -> None:
    """Give a weight all old values; or, by the pieces that two vocabularies share, its rows."""
    values = old
    if pieces is not None:
        values = weight.numpy()
        values[pieces[1]] = old[pieces[0]]
    weight.assign(values)


def other_size(
    manifest: Manifest, model: Transformer, *, with_rows: bool = True
) -> tuple[str, Any, Any] | None:
    """The first size in which a checkpoint's model differs from another one; None if all are equal.

    Rates of dropout are no part of what weights mean, and without learned positions neither is the
    length that the model reads. `with_rows`: the rows of the embeddings must be equal, too. Returns
    the size's name, its value in the checkpoint, and in `model`.
    """
    # A checkpoint from before a field was there has what is now that field's default.
    rows = ("vocabulary_size", "source_vocabulary_size") if with_rows else ()
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
    """The checkpoint that `training.init_from` names: the best of a run directory, or itself."""
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
