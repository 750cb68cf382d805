"""One model from several checkpoints: the mean of their weights, written as a checkpoint again.

Source: Vaswani et al. 2017, section 6.1, average the last 5 checkpoints of the base model.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hvd_nmt.checkpoints import contents, find, names
from hvd_nmt.checkpoints.manifest import Checkpoint, CheckpointManifest
from hvd_nmt.checkpoints.run_files import RunDirectory, new_directory, write_record
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.state import run_state, weights_by_path
from hvd_nmt.checkpoints.weights import load_model, other_size
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import require_free
from hvd_nmt.model.transformer import Transformer


def write(run_dir: Path, chosen: Sequence[Checkpoint], output: Path) -> Path:
    """Write the mean of at least one checkpoint, complete or not at all; the prefix of the new one.

    The output is a run directory with config.yaml and vocabulary of the run, the checkpoint, under
    the step of the newest that went in, and average.json, which names them all. Only weights and
    step are written: Adam's moments were gathered at other weights, so `train` cannot continue. In
    a run with `training.ema_decay`, too, the weights are those that the optimizer moved.

    Raises what `new_directory` does, and RunError if a checkpoint is damaged, or of
    another model or vocabulary than the run.
    """
    require_free(output)
    for checkpoint in chosen:
        find.verify(checkpoint)
    last = max(chosen, key=lambda checkpoint: checkpoint.step)
    model, _ = load_model(run_dir, os.fspath(last.prefix))
    for checkpoint in chosen:
        manifest = checkpoint.manifest
        same_pieces = manifest.vocabulary_hashes == last.manifest.vocabulary_hashes
        if not same_pieces or other_size(manifest, model):
            raise RunError(
                f"{checkpoint.prefix} is of another model or vocabulary than {last.prefix}: "
                "average checkpoints of equal models."
            )
    assign_mean(model, [checkpoint.prefix for checkpoint in chosen])
    with new_directory(output) as draft:
        name = save_weights(draft, run_dir, model, last.manifest)
        record = [checkpoint.record() for checkpoint in chosen]
        what = "the mean of the weights of these checkpoints"
        write_record(draft / "average.json", {"what": what, "checkpoints": record})
    return output / name


def assign_mean(model: Transformer, prefixes: Sequence[Path]) -> None:
    """Give a model the mean of its weights in checkpoints, summed in float64."""
    readers = [contents.reader(prefix) for prefix in prefixes]
    for path, variable in weights_by_path(model).items():
        key = f"{names.WEIGHTS}/{path}{names.VALUE}"
        total = sum(reader.get_tensor(key).astype(np.float64) for reader in readers)
        variable.assign((total / len(readers)).astype(np.float32))


def save_weights(
    folder: Path, run_dir: Path, model: Transformer, manifest: CheckpointManifest
) -> str:
    """Make of a folder a run directory that translates: weights, no moments; the new prefix's name.

    `manifest` is that of a checkpoint of the run, from which the model was made.
    """
    saver = Saver(folder, run_state(model, manifest.step), manifest.facts(), keep=1, keep_best=1)
    run = RunDirectory(run_dir)
    for path in (run.config, run.imported, run.vocabulary, run.source_vocabulary):
        if path.exists():
            shutil.copyfile(path, folder / path.name)
    return saver.save(manifest.step).prefix.name
