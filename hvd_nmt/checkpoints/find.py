"""Which checkpoints a run has, which of them are undamaged, and which one a name means."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf

from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.manifest import Checkpoint, DamagedError, kind_of
from hvd_nmt.checkpoints.names import BEST_DIR, DAMAGED_DIR
from hvd_nmt.common.errors import RunError, system_error
from hvd_nmt.common.files import fingerprint, rename_together

_NAMED = 4
"""checkpoints that a message names, at most"""


def newest_first(run_dir: Path, passed_over: type[RunError] = RunError) -> list[Checkpoint]:
    """The complete `model.ckpt-N` of a run, by step; only the manifests are read.

    An error of the class `passed_over` in reading a manifest leaves it out; others are raised.
    """
    return sorted(_complete(run_dir, names.NEWEST, passed_over), key=lambda c: -c.step)


def best_first(
    run_dir: Path, passed_over: type[RunError] = RunError, data_hash: str | None = None,
    best_by: str | None = None,
) -> list[Checkpoint]:  # fmt: skip
    """The complete `best_models/*` of a run, by `evaluation.best_by`, the best first.

    Values on other data mean something else: best models from before a change of data are left out.
    So are those without a value of the measure that now decides.

    Args:
        passed_over: as for `newest_first`.
        data_hash: of the data; None: those of the newest `model.ckpt-N`, if there is one.
        best_by: the measure; None: that of the newest checkpoint.
    """
    found = list(_complete(run_dir / BEST_DIR, names.BEST, passed_over))
    newest = newest_first(run_dir, passed_over)[:1] if None in (data_hash, best_by) else []
    if data_hash is None and newest:
        data_hash = newest[0].manifest.data_hash
    if best_by is None:
        last = newest or sorted(found, key=lambda checkpoint: -checkpoint.step)
        best_by = last[0].manifest.best_by if last else "val_loss"
    measure = best_by if best_by in names.DECIMALS else "val_loss"  # it was TER once

    def order(checkpoint: Checkpoint) -> tuple[float, int]:
        value = getattr(checkpoint.manifest, measure)
        return math.inf if value is None else names.badness(measure, value), checkpoint.step

    kept = (c for c in found if data_hash in (None, c.manifest.data_hash))
    if measure != "val_loss":  # imported models have none of their validation losses
        kept = (c for c in kept if getattr(c.manifest, measure) is not None)
    return sorted(kept, key=order)


def newest_verified(run_dir: Path, say: Callable[[str], None] = print) -> Checkpoint | None:
    """The newest checkpoint of which every byte is right; None in a fresh run directory.

    Damaged ones are put aside, and `say` is told of each. One that cannot be read this time is not
    damaged: neither is it moved nor another one taken.

    Raises:
        RunError: a checkpoint cannot be read this time; or there are, or were, checkpoints and none
            can be used: starting from scratch here would bury them.
    """
    found = newest_intact(run_dir, say)
    if found is not None:
        return found
    if signs := traces(run_dir):
        raise RunError(
            f"{run_dir} held checkpoints ({signs[0].relative_to(run_dir)} says so) and none "
            "that is complete and undamaged is left: restore one from a copy, or choose another "
            "--run-dir to start afresh."
        )
    return None


def traces(run_dir: Path) -> list[Path]:
    """What says that there were checkpoints."""
    signs = (f"{DAMAGED_DIR}/*", f"{BEST_DIR}/{DAMAGED_DIR}/*", names.POINTER)
    return [path for sign in signs for path in run_dir.glob(sign)]


def newest_intact(run_dir: Path, say: Callable[[str], None] = print) -> Checkpoint | None:
    """As `newest_verified`, but None also where there were checkpoints and none can be used."""
    prefixes = [  # without killed saves
        prefix
        for folder in (run_dir, run_dir / BEST_DIR)
        for prefix in names.prefixes(folder)
        if not names.private(prefix).exists() or names.manifest_file(prefix).exists()
    ]
    for prefix in prefixes:
        try:
            candidate = Checkpoint.at(prefix)
            verify(candidate)
            return candidate
        except DamagedError as error:
            _quarantine(prefix)
            say(f"{error} It was moved to {prefix.parent / DAMAGED_DIR}; trying the one before.")
        except RunError as error:
            raise RunError(
                f"{error} It was left where it is: start the same command again once that is "
                f"mended, or move {prefix}.* away to go on from the checkpoint before it."
            ) from error
    return None


def verify(checkpoint: Checkpoint) -> None:
    """Read every tensor and compare every file with the manifest.

    Raises DamagedError if a file is missing or changed, or it has another checkpoint's name;
    RunError if one cannot be read this time.
    """
    if names.step_of(checkpoint.prefix) not in (None, checkpoint.step):
        raise DamagedError(f"{checkpoint.prefix} is the checkpoint of step {checkpoint.step}.")
    for suffix, wanted in checkpoint.manifest.files.items():
        path = names.file(checkpoint.prefix, suffix)
        try:
            damaged = dataclasses.asdict(fingerprint(path)) != wanted
        except OSError as error:
            raise kind_of(error)(f"{path} cannot be read ({error.strerror}).") from error
        if damaged:
            raise DamagedError(
                f"{path} has changed since it was written: the checkpoint is damaged."
            )
    read_fully(checkpoint.prefix)


def read_fully(prefix: Path) -> None:
    """Read every tensor of a checkpoint; TensorFlow compares each with its CRC.

    Raises DamagedError if one is not what was written, RunError if it cannot be read this time.
    """
    try:
        dtypes = tf.train.load_checkpoint(os.fspath(prefix)).get_variable_to_dtype_map()
        with tf.device("CPU:0"):
            for name, dtype in dtypes.items():
                # Python goes on meanwhile, which it does not while a reader's `get_tensor` reads.
                tf.raw_ops.RestoreV2(
                    prefix=os.fspath(prefix), tensor_names=[name], shape_and_slices=[""],
                    dtypes=[dtype],
                )  # fmt: skip
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        reason = str(getattr(error, "message", error)).splitlines()[0]
        kind, fault = kind_of(error), f"is damaged ({reason})"
        if kind is not DamagedError:
            fault = f"cannot be read ({system_error(error)})"
        raise kind(f"The checkpoint {prefix} {fault}.") from error


def find(run_dir: Path, which: str) -> Path:
    """The prefix of a checkpoint: "best" (by `evaluation.best_by`), "latest", or a prefix or file.

    Raises RunError if there is no such checkpoint, or it cannot be told which one it is.
    """
    if which in ("best", "latest"):
        best, newest = (of(run_dir, DamagedError) for of in (best_first, newest_first))
        found = (best if which == "best" else newest) or newest or best
        if not found:
            missing = "is it a run directory of train?"
            if not run_dir.exists():
                missing = f"there is no directory {run_dir}."
            raise RunError(f"{run_dir} holds no checkpoint: {missing}")
        return found[0].prefix
    name = names.without_suffix(which)
    for prefix in (Path(name), run_dir / name, run_dir / BEST_DIR / name):
        if names.file(prefix, ".index").exists():
            return prefix
    raise RunError(
        f"No checkpoint {which}: give best, latest, or the path of its .index file; "
        f"{_holds(run_dir)}."
    )


def _holds(run_dir: Path) -> str:
    """Which checkpoints there are, for who has named another."""
    if not run_dir.exists():
        return f"there is no directory {run_dir}"
    found = [c.prefix.name for c in (*newest_first(run_dir), *best_first(run_dir))]
    if not found:
        return f"{run_dir} holds none"
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{run_dir} holds {', '.join(found[:_NAMED])}{more}"


@contextlib.contextmanager
def another_advised(prefix: Path) -> Iterator[None]:
    """Where reading a checkpoint fails, name an intact one of the same run, if there is one."""
    try:
        yield
    except RunError as error:
        run_dir = names.run_dir_of(prefix)
        others = (*best_first(run_dir), *newest_first(run_dir))
        intact = next((c for c in others if c.prefix != prefix and _is_intact(c)), None)
        advice = f"no other checkpoint in {run_dir} is intact."
        if intact is not None:
            advice = f"another one of this run is intact: --checkpoint {intact.prefix}."
        raise RunError(f"{str(error).removesuffix('.')}; {advice}") from error


def _is_intact(checkpoint: Checkpoint) -> bool:
    try:
        verify(checkpoint)
    except RunError:
        return False
    return True


def _quarantine(prefix: Path) -> None:
    folder = prefix.parent / DAMAGED_DIR
    folder.mkdir(exist_ok=True)
    for suffix in names.ALL_SUFFIXES:
        file = names.file(prefix, suffix)
        if file.exists():
            rename_together([(file, folder / file.name)])


def _complete(
    folder: Path, beginning: str | tuple[str, ...], passed_over: type[RunError]
) -> Iterator[Checkpoint]:
    """The checkpoints whose names begin so and whose manifests are sound."""
    for path in folder.glob(f"*{names.MANIFEST_SUFFIX}"):
        if path.name.startswith(beginning):
            with contextlib.suppress(passed_over):
                yield Checkpoint.at(path.with_suffix(""))
