"""Which checkpoints a run has, which of them are undamaged, and which one a name means."""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.manifest import Checkpoint, DamagedError, kind_of
from hvd_nmt.checkpoints.names import BEST_DIR, DAMAGED_DIR
from hvd_nmt.common.errors import RunError, system_error
from hvd_nmt.common.files import fingerprint, rename_together


def newest_first(folder: Path) -> list[Checkpoint]:
    """Checkpoints of a folder with good manifests, newest first; RunError: one is unreadable."""
    checkpoints, is_best = [], folder.name == BEST_DIR
    for prefix in reversed(names.prefixes(folder)):
        if prefix.name.startswith(names.NEWEST) is is_best:
            continue  # a person's copy
        with contextlib.suppress(DamagedError):
            checkpoints.append(Checkpoint.at(prefix))
    return checkpoints


def best_first(run_dir: Path) -> list[Checkpoint]:
    """The complete `best_models/*` of a run, the best first; errors as above.

    The newest checkpoint says by which measure (`evaluation.best_by`) and on which data: values on
    other data mean something else, so best models from before a change of them are left out.
    """
    best = newest_first(run_dir / BEST_DIR)
    by_step = newest_first(run_dir) or best
    if not by_step:
        return []
    newest = by_step[0].manifest

    def order(checkpoint: Checkpoint) -> tuple[float, int]:
        value = getattr(checkpoint.manifest, newest.best_by)
        return math.inf if value is None else names.badness(newest.best_by, value), checkpoint.step

    return sorted((c for c in best if c.manifest.data_hash == newest.data_hash), key=order)


def newest_intact(run_dir: Path, say: Callable[[str], None] = print) -> Checkpoint | None:
    """The newest checkpoint of which every byte is right; None if there is none.

    Damaged ones are put aside, and `say` is told of each. One that cannot be read this time is not
    damaged: RunError, and neither is it moved nor another one taken.
    """
    best = run_dir / BEST_DIR
    prefixes = [  # without killed saves
        prefix
        for prefix in [*names.newest_prefixes(run_dir), *reversed(names.prefixes(best))]
        if not names.private(prefix).exists() or names.manifest_file(prefix).exists()
    ]
    for prefix in prefixes:
        try:
            candidate = Checkpoint.at(prefix)
            verify(candidate)
            return candidate
        except DamagedError as error:
            aside = prefix.parent / DAMAGED_DIR
            aside.mkdir(exist_ok=True)
            files = (names.file(prefix, suffix) for suffix in names.ALL_SUFFIXES)
            rename_together([(file, aside / file.name) for file in files if file.exists()])
            say(f"{error} It was moved to {aside}; trying the one before.")
        except RunError as error:
            raise RunError(
                f"{error} Fix the cause and run the same command again, or move {prefix}.* away "
                "to resume from the checkpoint before it."
            ) from error
    return None


def held_some(run_dir: Path) -> bool:
    """Whether something says that there were checkpoints: a fresh start would bury them."""
    folders = ("", f"{BEST_DIR}/", f"{names.RESCUED_DIR}/*/")
    signs = (names.POINTER, *(f"{folder}{DAMAGED_DIR}/*" for folder in folders))
    return any(path for sign in signs for path in run_dir.glob(sign))


def verify(checkpoint: Checkpoint) -> None:
    """Read every tensor and compare every file with the manifest.

    Raises DamagedError if a file is missing or changed, or it has another checkpoint's name;
    RunError if one cannot be read this time, or not by TensorFlow, though no byte has changed.
    """
    import tensorflow as tf

    require_unchanged(checkpoint)
    try:
        read_fully(checkpoint.prefix)
    except DamagedError as error:
        if isinstance(error.__cause__, tf.errors.DataLossError):
            raise  # by TensorFlow's own CRCs it was damaged before it was hashed
        raise RunError(f"{error} But each of its bytes is as it was written.") from error


def require_unchanged(checkpoint: Checkpoint) -> None:
    """Compare every file with the manifest, without TensorFlow; errors as those of `verify`."""
    if names.step_of(checkpoint.prefix) not in (None, checkpoint.step):
        raise DamagedError(f"{checkpoint.prefix} is of step {checkpoint.step}, not of its name.")
    for suffix, wanted in checkpoint.manifest.files.items():
        path = names.file(checkpoint.prefix, suffix)
        try:
            damaged = dataclasses.asdict(fingerprint(path)) != wanted
        except OSError as error:
            raise kind_of(error)(f"Cannot read {path} ({error.strerror}).") from error
        if damaged:
            raise DamagedError(f"{path} has changed since it was written: it is damaged.")


def read_fully(prefix: Path) -> None:
    """Read every tensor with its CRC; DamagedError: not as written; RunError: unreadable now."""
    import tensorflow as tf

    try:
        path = names.literal(prefix)
        dtypes = tf.train.load_checkpoint(path).get_variable_to_dtype_map()
        with tf.device("CPU:0"):
            for name, dtype in dtypes.items():
                # Python continues meanwhile, which it does not while a reader's `get_tensor` reads.
                tf.raw_ops.RestoreV2(
                    prefix=path, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
                )
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        reason = str(getattr(error, "message", error)).splitlines()[0]
        kind, fault = kind_of(error), f"is damaged ({reason})"
        if kind is not DamagedError:
            fault = f"cannot be read ({system_error(error)})"
        raise kind(f"The checkpoint {prefix} {fault}.") from error


def find(run_dir: Path, which: str) -> Path:
    """The prefix of "best" (`evaluation.best_by`), "latest", a prefix or a file; RunError: none."""
    if which in ("best", "latest"):
        best, newest = best_first(run_dir), newest_first(run_dir)
        checkpoints = (best if which == "best" else newest) or newest or best
        if not checkpoints:
            raise RunError(f"{run_dir} has no checkpoint: give the directory of a training run.")
        return checkpoints[0].prefix
    name = names.without_suffix(which)
    for prefix in (Path(name), run_dir / name, run_dir / BEST_DIR / name):
        if names.file(prefix, ".index").exists():
            return prefix
    raise RunError(f"No checkpoint {which}: give best, latest, or a prefix, as in model.ckpt-600.")
