"""One model from several checkpoints: the mean of their weights, written as a checkpoint again.

    runs/x-average/
        model.ckpt-2400.*       the mean, under the step of the newest checkpoint that went in
        config.yaml spm.model   of the run, so that whatever takes a run directory takes this one
        average.json            which checkpoints went in, with their steps and SHA-256

The weights are those that the optimizer moved, also in a run that keeps a moving average of them
(`training.ema_decay`). They and the step are all that is written. Translation needs no more, and
there are no moments of Adam that belong to a mean: those of one checkpoint were gathered at other
weights. So `train` refuses to go on in such a directory; it may be what a new run begins with.

Source: Vaswani et al. 2017, section 6.1, average the last 5 checkpoints of the base model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from hvd_nmt.checkpoints import mean, saver
from hvd_nmt.checkpoints.manifest import Manifest, read_manifest
from hvd_nmt.checkpoints.saver import BEST_DIR, SUFFIXES, Checkpoint, Saver
from hvd_nmt.checkpoints.weights import load_model, other_size
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import require_free, sync
from hvd_nmt.model.transformer import Transformer

RECORD = "average.json"
_OF_THE_RUN = ("config.yaml", "spm.model")
_NAMES_OF_A_RUN = ("model.ckpt-", "val_loss=")


def newest(run_dir: Path, count: int) -> list[Checkpoint]:
    """The last `count` checkpoints of a run, newest first; fewer if there are fewer.

    Raises:
        RunError: there are not two, or the manifest of any is damaged.
    """
    _require_sound(run_dir, "model.ckpt-*.json")
    found = saver.newest_first(run_dir)[:count]
    return _several(found, f"{run_dir} holds", "--checkpoints.keep")


def best(run_dir: Path, count: int) -> list[Checkpoint]:
    """The `count` checkpoints of the lowest validation loss, best first; fewer if there are fewer.

    Raises:
        RunError: there are not two, or the manifest of any is damaged.
    """
    _require_sound(run_dir, f"{BEST_DIR}/val_loss=*.json")
    found = saver.best_first(run_dir)[:count]
    return _several(found, f"{run_dir / BEST_DIR} holds", "--checkpoints.keep-best")


def named(run_dir: Path, names: Sequence[str]) -> list[Checkpoint]:
    """The checkpoints of these names, as `checkpoints.find` understands them.

    Raises:
        RunError: there is no such checkpoint, or its manifest is missing or damaged.
    """
    prefixes = [saver.find(run_dir, name) for name in names]
    return [Checkpoint(p, read_manifest(Path(f"{p}.json"))) for p in prefixes]


def write(run_dir: Path, chosen: Sequence[Checkpoint], output: Path) -> Path:
    """Write the mean of some checkpoints; verified, and complete or not there at all.

    Memory holds two sets of weights in float32 and one tensor in float64, however many checkpoints
    there are.

    Args:
        run_dir: the run whose configuration and vocabulary they have.
        chosen: at least one. They should come from one run: models that began with different
            weights have no useful mean.
        output: a folder that is to be made. Inside a run directory it is instead the prefix of the
            new checkpoint's files, and the record goes to `<prefix>.average.json`.

    Returns:
        The prefix of the new checkpoint.

    Raises:
        ConfigError: the output is there already.
        RunError: a checkpoint is damaged, or of another model or vocabulary than the run; or the
            output cannot be written.
    """
    _require_free(output)
    for checkpoint in chosen:
        saver.verify(checkpoint)
    with _drafted(output) as draft:
        last = max(chosen, key=lambda checkpoint: checkpoint.step)
        model, step = load_model(run_dir, os.fspath(last.prefix))
        _require_alike(chosen, last, model)
        mean.assign(model, mean.average([c.prefix for c in chosen]))
        state = tf.train.Checkpoint(model=model, step=tf.Variable(step, dtype=tf.int64))
        saved = Saver(draft, state, _facts(last.manifest), keep=1, keep_best=1).save(step)
        (draft / RECORD).write_text(_record(chosen), encoding="utf-8")
        for name in _OF_THE_RUN:
            shutil.copyfile(run_dir / name, draft / name)
        for name in (RECORD, *_OF_THE_RUN):
            sync(draft / name)
        sync(draft)
        if not _is_prefix(output):
            os.replace(draft, output)
            sync(output.parent)
            return output / saved.prefix.name
        os.replace(draft / RECORD, f"{output}.{RECORD}")
        for suffix in (*SUFFIXES, ".json"):  # the manifest last: it says "complete"
            os.replace(f"{saved.prefix}{suffix}", f"{output}{suffix}")
        sync(output.parent)
        return output


def _is_prefix(output: Path) -> bool:
    """Whether an output is the prefix of files in a run directory, and not a new folder."""
    return not output.is_dir() and (output.parent / "config.yaml").exists()


def _require_sound(run_dir: Path, manifests: str) -> None:
    """Lists of checkpoints pass over a damaged manifest; a mean without it would be another one."""
    for path in sorted(run_dir.glob(manifests)):
        read_manifest(path)
    saver.find(run_dir, "latest")  # or it is no run at all


def _several(found: list[Checkpoint], where: str, option: str) -> list[Checkpoint]:
    if len(found) < 2:
        things = "1 complete checkpoint" if found else "no complete checkpoint"
        raise RunError(
            f"{where} {things}, and a mean needs 2 or more: let the run keep more of them "
            f"({option}), or name others with --checkpoints."
        )
    return found


def _require_free(output: Path) -> None:
    if _is_prefix(output):
        if output.name.startswith(_NAMES_OF_A_RUN):
            raise RunError(
                f"{output} is a name that a run gives its own checkpoints, which it deletes in "
                "time: choose another --out."
            )
        for suffix in (".json", *SUFFIXES):
            require_free(Path(f"{output}{suffix}"))
    require_free(output)


def _require_alike(chosen: Sequence[Checkpoint], last: Checkpoint, model: Transformer) -> None:
    """See that all are of the run's model."""
    for checkpoint in chosen:
        manifest = checkpoint.manifest
        if manifest.vocabulary_hash != last.manifest.vocabulary_hash:
            raise RunError(
                f"{checkpoint.prefix} was trained with another vocabulary than {last.prefix}: "
                "they have no mean."
            )
        if difference := other_size(manifest, model.config, model.vocabulary_size):
            name, theirs, ours = difference
            raise RunError(
                f"{checkpoint.prefix} is of another model than the run's config.yaml and "
                f"{last.prefix.name}: its {name} is {theirs}, not {ours}."
            )


def _facts(manifest: Manifest) -> dict[str, object]:
    """What the mean has in common with the newest checkpoint in it."""
    of_the_mean = ("step", "val_loss", "files")
    fields = (field.name for field in dataclasses.fields(manifest))
    return {name: getattr(manifest, name) for name in fields if name not in of_the_mean}


def _record(chosen: Sequence[Checkpoint]) -> str:
    content = {
        "what": "the mean of the weights of these checkpoints",
        "checkpoints": [checkpoint.record() for checkpoint in chosen],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


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
