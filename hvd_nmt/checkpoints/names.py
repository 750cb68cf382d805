"""Names: of a checkpoint's files, and of what is in them. No TensorFlow here.

model.ckpt-500.index                     PREFIX + suffix; the prefix is what names a checkpoint
best_models/val_loss=1.5943-step-500.index
model/encoder/0/attention/qkv/.ATTRIBUTES/VARIABLE_VALUE     key of a weight: WEIGHTS + path
                                                             of the weight in the model + VALUE
"""

import fnmatch
import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hvd_nmt.common.errors import ConfigError

SUFFIXES = (".data-00000-of-00001", ".meta", ".index")
"""endings of the files of a checkpoint that TensorFlow reads, the data file first"""
ALL_SUFFIXES = (".json", *SUFFIXES)
NEWEST = "model.ckpt-"
"""how the names of a run's newest checkpoints begin"""
DECIMALS = {"val_loss": 4, "bleu": 2, "chrf": 2}
"""measures by which models can be the best, with the decimals of the value in a name"""
BEST_DIR = "best_models"
DAMAGED_DIR = "damaged"
RESCUED_DIR = "rescued"
"""has a folder of each host that saved alone when another host was lost"""
PRIVATE = ".saving-"
"""how the names of files and folders begin that a save has not finished, or a killed one left"""
POINTER = "checkpoint"
"""TensorFlow's own pointer to the newest checkpoint"""

WEIGHTS, AVERAGE, OPTIMIZER, STEP = "model", "ema", "optimizer", "step"
"""first parts of the keys of weights, their moving average, the optimizer's state, the step"""
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
"""end of the key of every variable"""
LOSS_SCALE = "loss_scale"
"""part of Adam's state in float16 alone, and first part of what follows `OPTIMIZER` in its keys"""
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
"""key of the text in which TensorFlow 2 describes the Python objects that were saved"""

# A stack ends with a layer normalisation, which is frozen with it.
_STACKS = {
    "encoder": ("encoder", "encoder_norm"), "decoder": ("decoder", "decoder_norm"),
    "embedding": ("embedding", "source_embedding"),
}  # fmt: skip
_RUN_PREFIX = re.compile(rf"(?:model\.ckpt|(?:{'|'.join(DECIMALS)})=[\d.]+-step)-(\d+)")
_PATTERN = re.compile(r"[*?\[\\]")
_ANY_SUFFIX = re.compile(r"\.(data-\d+-of-\d+|index|meta|json)$")


def best(measure: str, value: float, step: int) -> str:
    """Name of a step's checkpoint among the best ones by a measure."""
    return f"{measure}={value:.{DECIMALS[measure]}f}-step-{step}"


def badness(measure: str, value: float) -> float:
    """A value of a measure as a number that is lower for a better model."""
    return value if measure == "val_loss" else -value


def file(prefix: Path, suffix: str) -> Path:
    """A file of a checkpoint."""
    return Path(f"{prefix}{suffix}")


def manifest_file(prefix: Path) -> Path:
    """The manifest of a checkpoint; written last, so where it is, the checkpoint is complete."""
    return file(prefix, ".json")


def literal(prefix: Path) -> str:
    """A prefix for TensorFlow's readers, which take *, ?, [ and \\ in a path for a pattern."""
    odd = [folder for folder in prefix.parents if _PATTERN.search(folder.name)]
    if not odd:
        return os.fspath(prefix)
    folder = odd[0].stat()  # not a deeper one: each save has another folder
    path = _by_descriptor(odd[0], folder.st_dev, folder.st_ino)
    return os.path.join(path, prefix.relative_to(odd[0]))


@functools.cache
def _by_descriptor(folder: Path, _device: int, _inode: int) -> str:
    """Another path of a folder; its descriptor stays open, for readers open files late."""
    return f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}"


def private(prefix: Path) -> Path:
    """The folder of a checkpoint's files until they are complete; left behind by a killed save."""
    return prefix.parent / (PRIVATE + prefix.name)


def without_suffix(name: str) -> str:
    """The prefix of a checkpoint, given by itself or by any of its files."""
    return _ANY_SUFFIX.sub("", name)


def step_of(prefix: Path) -> int | None:
    """The step in a name as runs give them, OpenSeq2Seq's too; None for any other name."""
    match = _RUN_PREFIX.fullmatch(prefix.name)
    return int(match[1]) if match else None


def prefixes(folder: Path) -> list[Path]:
    """The prefix of every checkpoint of a run of which a folder has any file, oldest first."""
    try:
        files = os.listdir(folder)  # `glob` takes a folder that it may not read for an empty one
    except (FileNotFoundError, NotADirectoryError):
        return []
    prefixes = {folder / without_suffix(name) for name in files if _ANY_SUFFIX.search(name)}
    of_runs = (prefix for prefix in prefixes if step_of(prefix) is not None)
    return sorted(of_runs, key=lambda prefix: step_of(prefix) or 0)


def newest_prefixes(run_dir: Path) -> list[Path]:
    """The prefixes of a run and of what its hosts have rescued, newest first.

    Of those of one step the run's own comes first.
    """
    of_all = prefixes(run_dir)
    for folder in sorted(run_dir.glob(f"{RESCUED_DIR}/*")):
        of_all += prefixes(folder)
    return sorted(of_all, key=lambda prefix: step_of(prefix) or 0, reverse=True)


def frozen(paths: Sequence[str], patterns: str) -> set[str]:
    """The paths, of those of all weights of a model, that stay as they are.

    `patterns` is `training.freeze`: separated by commas or spaces, each is a glob in which `*` also
    stands for slashes, and names what is below it too. `encoder` and `decoder` include their last
    normalisation, `embedding` the source's own matrix, if there is one. ConfigError: a pattern
    names no weight, or together they leave none to train.
    """
    chosen: set[str] = set()
    for pattern in patterns.replace(",", " ").split():
        globs = [glob for part in _STACKS.get(pattern, (pattern,)) for glob in (part, f"{part}/*")]
        named = {path for path in paths for glob in globs if fnmatch.fnmatchcase(path, glob)}
        if not named:
            kinds = dict.fromkeys(re.sub(r"/\d+/", "/*/", path) for path in paths)
            raise ConfigError(
                f"training.freeze {pattern!r} matches no weight: use one of {', '.join(kinds)}."
            )
        chosen |= named
    if len(chosen) == len(paths):
        raise ConfigError(f"training.freeze {patterns!r} freezes every weight: name fewer of them.")
    return chosen
