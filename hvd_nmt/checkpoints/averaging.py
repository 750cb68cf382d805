"""One model from several checkpoints: the mean of their weights, written as a checkpoint again.

Source: Vaswani et al. 2017, section 6.1, average the last 5 checkpoints of the base model.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hvd_nmt.checkpoints import contents, find, names, run_files
from hvd_nmt.checkpoints.manifest import Checkpoint, CheckpointManifest
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.state import run_state, weights_by_path
from hvd_nmt.checkpoints.weights import load_model, other_size
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import exclusive, replacing, require_free
from hvd_nmt.model.transformer import Transformer


def write(run_dir: Path, chosen: Sequence[Checkpoint], output: Path) -> Path:
    """Write the mean of at least one checkpoint, complete or not at all; the prefix of the new one.

    The output is a run directory with config.yaml and vocabulary of the run, the checkpoint, under
    the step of the newest that went in, and average.json, which names them all. Only weights and
    step are written: Adam's moments were gathered at other weights, so `train` refuses to go on. In
    a run with `training.ema_decay`, too, the weights are those that the optimizer moved.

    Raises ConfigError if the output is there already, DataError if it cannot be written, RunError
    if a checkpoint is damaged, or of another model or vocabulary than the run.
    """
    with exclusive(output):
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
        assign(model, mean([checkpoint.prefix for checkpoint in chosen]))
        with replacing(output) as draft:
            name = save_weights(draft, run_dir, model, last.manifest)
            record = [checkpoint.record() for checkpoint in chosen]
            what = "the mean of the weights of these checkpoints"
            run_files.write_record(draft / "average.json", {"what": what, "checkpoints": record})
    return output / name


def assign(model: Transformer, weights: dict[str, np.ndarray]) -> None:
    """Give a model these weights of another of the same sizes, in place."""
    for path, variable in weights_by_path(model).items():
        variable.assign(weights[f"{names.WEIGHTS}/{path}{names.VALUE}"])


def save_weights(
    folder: Path, run_dir: Path, model: Transformer, manifest: CheckpointManifest
) -> str:
    """Make of a folder a run directory that translates: weights, no moments; the new prefix's name.

    `manifest` is that of a checkpoint of the run, from which the model was made.
    """
    saver = Saver(folder, run_state(model, manifest.step), manifest.facts(), keep=1, keep_best=1)
    for name in (run_files.CONFIG, run_files.IMPORTED, *run_files.VOCABULARIES):
        if (run_dir / name).exists():
            shutil.copyfile(run_dir / name, folder / name)
    return saver.save(manifest.step).prefix.name


def mean(prefixes: Sequence[Path]) -> dict[str, np.ndarray]:
    """Key -> the mean, float32, of each weight of checkpoints, summed in float64 one by one."""
    readers, found = [contents.reader(prefix) for prefix in prefixes], {}
    for variable in contents.read(prefixes[0]).variables:
        if variable.group in contents.WEIGHTS:
            total = np.zeros(variable.shape)
            for reader in readers:
                total += reader.get_tensor(variable.name)
            found[variable.name] = (total / len(readers)).astype(np.float32)
    return found
