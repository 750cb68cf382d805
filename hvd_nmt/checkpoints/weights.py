"""From checkpoint files to variables.

Where a run keeps a moving average of its weights (`training.ema_decay`), its checkpoints stand for
that average. Translation, scores, export and a run that starts from it take the averaged weights,
as its own validation did. The weights that the optimizer moved are in the same files: for a resumed
run and for `python -m hvd_nmt.average --raw`.
"""

import os
from pathlib import Path

import tensorflow as tf

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.find import find, read_fully, verify
from hvd_nmt.checkpoints.manifest import Checkpoint, CheckpointManifest, read_manifest
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.checkpoints.state import keyed_variables, weights_by_path
from hvd_nmt.common.errors import RunError, system_error
from hvd_nmt.config import ModelConfig
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.model.transformer import Transformer, build_transformer


def load_model(
    run_dir: Path, which: str = "best", compute_dtype: str = "float32"
) -> tuple[Transformer, int]:
    """The model that `find` finds, and its step; RunError: missing, damaged, or of another run."""
    config = RunDirectory(run_dir).read_config()
    prefix = find(run_dir, which)
    manifest = manifest_of(run_dir, prefix)
    read_fully(prefix)
    try:
        model = build_transformer(
            config.model, manifest.vocabulary_size, compute_dtype,
            source_vocabulary_size=manifest.source_vocabulary_size,
        )  # fmt: skip
        if difference := other_size(manifest, model):
            raise ValueError(difference)
        _read(model, prefix)
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        reason, file = str(error).splitlines()[0], RunDirectory(run_dir).config
        raise RunError(
            f"{prefix} does not fit {file}: {reason}; correct it (a missing line is a default)."
        ) from error
    return model, manifest.step


def manifest_of(run_dir: Path, prefix: Path) -> CheckpointManifest:
    """A checkpoint's manifest; RunError unless the run has just the vocabularies that it names."""
    manifest, run = read_manifest(names.manifest_file(prefix)), RunDirectory(run_dir)
    both = zip(manifest.vocabulary_hashes, run.vocabulary_hashes(), strict=True)
    for file, (theirs, ours) in zip((run.vocabulary, run.source_vocabulary), both, strict=True):
        if theirs != ours:
            fault = "is not the vocabulary" if ours else "is missing, the vocabulary"
            remedy = "put the right one back" if theirs else "remove it"
            who = f"that {prefix.name} was trained with"
            raise RunError(f"{file} {fault} {who}: {remedy}.")
    return manifest


def restore(state: tf.train.Checkpoint, checkpoint: Checkpoint) -> None:
    """Load all that a run saves into `state`.

    The precision of a run follows the hardware: a checkpoint of float16 is resumed without its
    loss scale in another one; one of another precision, in float16, with that of `state`.

    Raises RunError if the checkpoint is of another model, or cannot be read.
    """
    prefix = checkpoint.prefix
    try:
        path = names.literal(prefix)
        saved = set(tf.train.load_checkpoint(path).get_variable_to_dtype_map())
        wanted = {key for key, _ in keyed_variables(state)}
        scale, second = (f"{names.OPTIMIZER}/{part}/" for part in (names.LOSS_SCALE, "v"))
        # Earlier versions kept a second moment of the matrices that Muon moves: 0.
        in_one = (wanted - saved) | {key for key in saved - wanted if not key.startswith(second)}
        in_one -= {names.OBJECT_GRAPH}
        if others := [key for key in in_one if not key.startswith(scale)]:
            raise ValueError(f"only one of the two has {min(others)}")
        state.read(path).expect_partial()
    except (ValueError, tf.errors.OpError) as error:
        if reason := system_error(error):
            raise RunError(f"Cannot read the checkpoint {prefix} ({reason}).") from error
        reasons = other_size(checkpoint.manifest, state.model), str(error).splitlines()[0]
        reason = ", ".join(filter(None, reasons))
        raise RunError(
            f"{prefix} does not fit this model ({reason}): use its sizes, or another --run-dir."
        ) from error


def start_from(
    source: str, state: tf.train.Checkpoint, data: DataDirectory
) -> tuple[Checkpoint, str]:
    """Give a new run the weights of another; the checkpoint, and what the log says of it.

    Where the new run has another vocabulary, a piece that both know keeps its rows; the rows of the
    others stay as they were drawn. `source` is `training.init_from`.

    Raises RunError if there is no such checkpoint, it is damaged, or it is of another model.
    """
    path = Path(source)  # of a run directory, whose best is meant, or of a checkpoint
    checkpoint = Checkpoint.at(find(path, "best") if path.is_dir() else find(path.parent, source))
    prefix, manifest, model = checkpoint.prefix, checkpoint.manifest, state.model
    run_dir = prefix.parent.parent if prefix.parent.name == names.BEST_DIR else prefix.parent
    ours = data.manifest.vocabulary_hash, data.manifest.source_vocabulary_hash
    same_pieces = manifest.vocabulary_hashes == ours
    if difference := other_size(manifest, model, with_rows=same_pieces):
        raise RunError(
            f"--init-from: {prefix} is of another model: {difference}. Give this run the same "
            "sizes, for example with --config and its config.yaml."
        )
    if bool(manifest.source_vocabulary_size) != (model.source_embedding is not None):
        raise RunError(
            f"--init-from: only one of {prefix} and {data.path} has a separate source "
            f"vocabulary: prepare the data with {RunDirectory(run_dir).prepare_options()}."
        )
    verify(checkpoint)
    line = f"begins with {prefix}, step {manifest.step:,}"
    if same_pieces:
        _read(model, prefix)
    else:
        line += f": {_copy_by_piece(run_dir, prefix, model, data)}"
    average = getattr(state, names.AVERAGE, None)
    if average is not None:
        average.set_weights(model.get_weights())
    return checkpoint, line


def _copy_by_piece(run_dir: Path, prefix: Path, model: Transformer, data: DataDirectory) -> str:
    """Fill a model from one of another vocabulary; how many pieces both know."""
    origin, _ = load_model(run_dir, os.fspath(prefix))
    old, new = RunDirectory(run_dir).vocabularies(), (data.source_spm_path, data.spm_path)
    (source, source_size), (target, size) = map(_shared_pieces, old, new)
    rows_of = {"embedding": target, "logits_bias": target, "source_embedding": source}
    before = weights_by_path(origin)
    for path, weight in weights_by_path(model).items():
        values = before[path].numpy()
        if path in rows_of:
            kept, values = values, weight.numpy()
            for old_row, new_row in rows_of[path]:
                values[new_row] = kept[old_row]
        weight.assign(values)
    rows = f"{len(target):,} of {size:,}"
    if model.source_embedding is not None:
        rows = f"{len(source):,} of {source_size:,} source pieces and {rows} target"
    return f"{rows} pieces keep their rows"


def _shared_pieces(before: Path, after: Path) -> tuple[list[tuple[int, int]], int]:
    """Old and new id of each piece that two vocabularies share; the size of the new one."""
    models = (sentencepiece_model.parsed(path.read_bytes()) for path in (before, after))
    old, new = ({piece.piece: i for i, piece in enumerate(model.pieces)} for model in models)
    return [(old[name], i) for name, i in new.items() if name in old], len(new)


def other_size(manifest: CheckpointManifest, model: Transformer, *, with_rows: bool = True) -> str:
    """The first size in which a checkpoint's model differs from another one, in words; "": none.

    Rates of dropout are no part of what weights mean, and without learned positions neither is the
    length that the model reads. `with_rows`: the rows of the embeddings must be equal, too.
    """
    config = model.config
    # A checkpoint from before a field was there has what is now that field's default.
    sizes = configuration.as_plain(ModelConfig()) | manifest.model
    wanted = configuration.as_plain(config)
    for name in ("vocabulary_size", "source_vocabulary_size") if with_rows else ():
        sizes[name], wanted[name] = getattr(manifest, name), getattr(model, name)
    for name, value in sizes.items():
        free = name.endswith("dropout") or (name == "max_length" and config.positions != "learned")
        if not free and value != wanted.get(name, value):
            return f"its {name} is {value}, not {wanted[name]}"
    return ""


def _read(model: Transformer, prefix: Path) -> None:
    """Fill a model from a checkpoint: with the average in it, if there is one."""
    path = names.literal(prefix)
    keys = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    averaged = any(key.startswith(f"{names.AVERAGE}/") for key in keys)
    state = tf.train.Checkpoint(**{names.AVERAGE if averaged else names.WEIGHTS: model})
    state.read(path).assert_existing_objects_matched().expect_partial()
