"""One model from several checkpoints: the mean of their weights, written as a checkpoint again.

    runs/x-average/
        model.ckpt-2400.*       the mean, under the step of the newest checkpoint that went in
        config.yaml spm.model   of the run, so that whatever takes a run directory takes this one
        average.json            which checkpoints went in, with their steps and SHA-256

The weights are those that the optimizer moved, also in a run with `training.ema_decay`. Only they
and the step are written: Adam's moments were gathered at other weights than the mean. So `train`
refuses to go on in such a directory; a new run may begin with it.

Source: Vaswani et al. 2017, section 6.1, average the last 5 checkpoints of the base model.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hvd_nmt.checkpoints import contents, find, names
from hvd_nmt.checkpoints.manifest import Checkpoint, read_manifest
from hvd_nmt.checkpoints.names import BEST_DIR, MANIFEST_SUFFIX
from hvd_nmt.checkpoints.run_files import (
    CONFIG,
    IMPORTED,
    SOURCE_VOCABULARY,
    VOCABULARY,
    write_record,
)
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.state import run_state, weights_by_path
from hvd_nmt.checkpoints.weights import load_model, other_size
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import rename_together, require_free, sync
from hvd_nmt.model.transformer import Transformer

RECORD = "average.json"
Weights = dict[str, np.ndarray]
"""key of a weight in the checkpoint -> its values, float32"""
_OF_THE_RUN = (CONFIG, VOCABULARY, SOURCE_VOCABULARY, IMPORTED)
"""of which the last two are not in all runs"""


def newest(run_dir: Path, count: int) -> list[Checkpoint]:
    """The last `count` checkpoints of a run, newest first; fewer if there are fewer."""
    _require_sound(run_dir, f"{names.NEWEST}*")
    return _several(find.newest_first(run_dir)[:count], run_dir, "--checkpoints.keep")


def best(run_dir: Path, count: int) -> list[Checkpoint]:
    """The `count` best checkpoints by `evaluation.best_by`, best first, or all there are."""
    for beginning in names.BEST:
        _require_sound(run_dir, f"{BEST_DIR}/{beginning}*")
    return _several(find.best_first(run_dir)[:count], run_dir / BEST_DIR, "--checkpoints.keep-best")


def named(run_dir: Path, which: Sequence[str]) -> list[Checkpoint]:
    """The checkpoints of these names, as `find.find` understands them."""
    return [Checkpoint.at(find.find(run_dir, name)) for name in which]


def write(run_dir: Path, chosen: Sequence[Checkpoint], output: Path) -> Path:
    """Write the mean of at least one checkpoint, complete or not at all; the prefix of the new one.

    Memory holds two sets of weights in float32 and one tensor in float64. The checkpoints should
    come from one run: models that began with different weights have no useful mean.

    Raises:
        ConfigError: the output is there already.
        RunError: a checkpoint is damaged, or of another model or vocabulary than the run; or the
            output cannot be written.
    """
    require_free(output)
    for checkpoint in chosen:
        find.verify(checkpoint)
    with _drafted(output) as draft:
        last = max(chosen, key=lambda checkpoint: checkpoint.step)
        model, step = load_model(run_dir, os.fspath(last.prefix))
        _require_alike(chosen, last, model)
        assign(model, mean([c.prefix for c in chosen]))
        state, facts = run_state(model, step), last.manifest.facts()
        saved = Saver(draft, state, facts, keep=1, keep_best=1).save(step)
        record = [checkpoint.record() for checkpoint in chosen]
        what = "the mean of the weights of these checkpoints"
        write_record(draft / RECORD, {"what": what, "checkpoints": record})
        there = [name for name in _OF_THE_RUN if (run_dir / name).exists()]
        for name in there:
            shutil.copyfile(run_dir / name, draft / name)
        for name in (RECORD, *there):
            sync(draft / name)
        sync(draft)
        rename_together([(draft, output)])
    return output / saved.prefix.name


def mean(prefixes: Sequence[Path]) -> Weights:
    """The mean of the weights of the checkpoints of one model with these prefixes.

    Summed in float64, one weight after the other: memory holds the result and one weight more.
    """
    if not prefixes:
        raise RunError("No checkpoint is given to average: name at least one.")
    each = [_weights(prefix) for prefix in prefixes]
    for prefix, weights in zip(prefixes, each, strict=True):
        if weights != each[0]:
            raise RunError(f"{prefix} and {prefixes[0]} are of different models: no mean exists.")
    read = [contents.values(prefix) for prefix in prefixes]
    return {
        name: (sum((of(name) for of in read), np.zeros(shape)) / len(read)).astype(np.float32)
        for name, shape in each[0].items()
    }


def moving_average(prefix: Path) -> Weights | None:
    """The moving average that a checkpoint holds, under the keys of the weights, or None."""
    variables, value = contents.read(prefix).variables, contents.values(prefix)
    average = {
        v.name.replace(names.AVERAGE, names.WEIGHTS, 1): value(v.name)
        for v in variables
        if v.group == contents.AVERAGE
    }
    return average or None


def assign(model: Transformer, weights: Weights) -> None:
    """Give a model these weights, in place."""
    variables = {names.weight_key(path): x for path, x in weights_by_path(model).items()}
    shapes = {key: tuple(variable.shape) for key, variable in variables.items()}
    if shapes != {key: x.shape for key, x in weights.items()}:
        raise RunError("The weights are not of this model: load the model of the same run.")
    for key, variable in variables.items():
        variable.assign(weights[key])


def _weights(prefix: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each weight of a checkpoint, by its key."""
    variables = contents.read(prefix).variables
    return {v.name: v.shape for v in variables if v.group in contents.WEIGHTS}


def _require_sound(run_dir: Path, prefixes: str) -> None:
    """Lists of checkpoints pass over a damaged manifest; a mean without it would be another one."""
    for path in sorted(run_dir.glob(prefixes + MANIFEST_SUFFIX)):
        read_manifest(path)
    find.find(run_dir, "latest")  # or it is no run at all


def _several(found: list[Checkpoint], folder: Path, option: str) -> list[Checkpoint]:
    if len(found) < 2:
        things = "1 complete checkpoint" if found else "no complete checkpoint"
        raise RunError(
            f"{folder} holds {things}, and a mean needs 2 or more: let the run keep more of them "
            f"({option}), or name others with --checkpoints."
        )
    return found


def _require_alike(chosen: Sequence[Checkpoint], last: Checkpoint, model: Transformer) -> None:
    """See that all are of the run's model and vocabulary."""
    for checkpoint in chosen:
        manifest = checkpoint.manifest
        if manifest.vocabulary_hashes != last.manifest.vocabulary_hashes:
            raise RunError(
                f"{checkpoint.prefix} was trained with another vocabulary than {last.prefix}: "
                "they have no mean."
            )
        if difference := other_size(manifest, model):
            name, theirs, ours = difference
            raise RunError(
                f"{checkpoint.prefix} is of another model than the run's config.yaml and "
                f"{last.prefix.name}: its {name} is {theirs}, not {ours}."
            )


@contextlib.contextmanager
def _drafted(output: Path) -> Iterator[Path]:
    """An empty hidden folder beside the output, removed at the end if it is still there."""
    draft = output.with_name(f".{output.name}.partial-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        yield draft
    except OSError as error:
        raise RunError(f"{output} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
