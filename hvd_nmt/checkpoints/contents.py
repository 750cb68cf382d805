"""What a checkpoint contains: its files, its variables, and what each byte is for."""

import collections
import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.size import predict
from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import RunError, UserError
from hvd_nmt.config import ModelConfig

_PURPOSES = {
    ".data-": "the values of every variable, one after the other, as raw little-endian numbers",
    ".index": "a sorted table: for each variable its type, shape, place in the data file and CRC",
    ".meta": "the graph (a MetaGraphDef), so that TensorFlow alone can run the model",
    ".json": "our manifest: step, validation loss, sizes, and a SHA-256 of each file",
}
_POINTER = "TensorFlow's pointer to the newest checkpoint, a few lines of text"

# The first pattern found in a name decides. Ours first; then OpenSeq2Seq's, where it differs.
_GROUPS = (
    ("object graph", rf"^{names.OBJECT_GRAPH}$"),
    ("moving average", rf"^{names.AVERAGE}/"),
    ("step and loss scale", rf"^({names.STEP}|global_step)\b|loss_scale"),
    ("Adam m", rf"^{names.OPTIMIZER}/m/|/Adam$"),
    ("Adam v", rf"^{names.OPTIMIZER}/v/|/Adam_1$"),
    ("optimizer scalars", rf"^{names.OPTIMIZER}/(_|iterations)|beta[12]_power$"),
    ("layer norms", r"_norm/|layer_norm"),
    ("encoder attention", r"encoder/.*attention/"),
    ("encoder feed-forward", r"encoder/.*(feed_forward|ffn)/"),
    ("cross-attention", r"decoder/.*(cross_attention|encdec_attention)/"),
    ("decoder self-attention", r"decoder/.*attention/"),
    ("decoder feed-forward", r"decoder/.*(feed_forward|ffn)/"),
    ("embedding", r"model/((source_)?embedding|positions|logits_bias)\b|embedding_and_softmax"),
)
GROUPS = (
    "embedding", "encoder attention", "encoder feed-forward", "decoder self-attention",
    "cross-attention", "decoder feed-forward", "layer norms", "moving average",
    "Adam m", "Adam v", "optimizer scalars", "step and loss scale", "object graph", "other",
)  # fmt: skip
"""of variables, in the order in which they are listed"""
WEIGHTS = GROUPS[:7]
"""the groups that make the model"""
AVERAGE = "moving average"
"""the group of the weights' moving average, in a run with `training.ema_decay`"""


@dataclass(frozen=True)
class File:
    """A file of a checkpoint."""

    name: str
    n_bytes: int
    purpose: str
    """one sentence without its full stop"""


@dataclass(frozen=True)
class Variable:
    """A variable of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """type of the values as NumPy calls it, or "string" """
    n_bytes: int
    """what it takes in the data file"""

    @property
    def count(self) -> int:
        """How many values it has."""
        return math.prod(self.shape)

    @property
    def group(self) -> str:
        """One of `GROUPS`."""
        return next((group for group, pattern in _GROUPS if re.search(pattern, self.name)), "other")


@dataclass(frozen=True)
class Group:
    """What a group of variables takes of the data file."""

    name: str
    variables: int
    count: int
    """values of all of them"""
    n_bytes: int
    share: float
    """share of the data file, 0 to 1"""


@dataclass(frozen=True)
class Anatomy:
    """A checkpoint, taken apart."""

    prefix: Path
    step: int | None
    """optimizer steps done; None where the checkpoint holds no step"""
    files: tuple[File, ...]
    variables: tuple[Variable, ...]
    data_bytes: int
    """size of the data files on disk"""
    predicted_bytes: int | None
    """what the configuration alone says of `model_bytes`; None where there is no configuration"""

    @property
    def parameters(self) -> int:
        """Weights of the model."""
        return sum(v.count for v in self.variables if v.group in WEIGHTS)

    @property
    def model_bytes(self) -> int:
        """Bytes of the weights, their average and Adam's moments."""
        of_model = (*WEIGHTS, AVERAGE, "Adam m", "Adam v")
        return sum(v.n_bytes for v in self.variables if v.group in of_model)

    @property
    def other_bytes(self) -> int:
        """Bytes of the data file that belong to no variable: 0 in a sound checkpoint."""
        return self.data_bytes - sum(variable.n_bytes for variable in self.variables)

    def groups(self) -> list[Group]:
        """Where each byte of the data file goes, in the order of `GROUPS`; only what there is."""
        found = []
        for name in GROUPS:
            members = [variable for variable in self.variables if variable.group == name]
            n_bytes = sum(variable.n_bytes for variable in members)
            count = sum(variable.count for variable in members)
            share = n_bytes / self.data_bytes if self.data_bytes else 0.0
            if members:
                found.append(Group(name, len(members), count, n_bytes, share))
        return found


def prefixes(run_dir: Path) -> list[Path]:
    """The prefixes of a run's checkpoints, damaged ones too, by step, newest last.

    They are `model.ckpt-N`, else those in `best_models`.
    """
    for pattern in (f"{names.NEWEST}*.index", f"{names.BEST_DIR}/*.index", "*.index"):
        found = [path.with_name(path.name.removesuffix(".index")) for path in run_dir.glob(pattern)]
        if found:
            return sorted(found, key=lambda prefix: (_step_in_name(prefix) or 0, prefix.name))
    return []


def latest(run_dir: Path) -> Path | None:
    """The last of `prefixes`; None if the run has written no checkpoint yet."""
    found = prefixes(run_dir)
    return found[-1] if found else None


def read(prefix: Path) -> Anatomy:
    """Take a checkpoint apart; raises RunError if there is none, or its index is damaged."""
    data = sorted(prefix.parent.glob(f"{prefix.name}.data-*"))
    if not data:
        raise RunError(f"{prefix}.data-* is missing: without it {prefix.name} holds no values.")
    manifest = _manifest(prefix)
    table = manifest.get("variables") or variable_table(prefix)
    variables = tuple(Variable(name, tuple(shape), *rest) for name, shape, *rest in table)
    return Anatomy(
        prefix=prefix,
        step=manifest.get("step", _step(variables, prefix)),
        files=tuple(_files(prefix)),
        variables=variables,
        data_bytes=sum(path.stat().st_size for path in data),
        predicted_bytes=_predicted(manifest, variables),
    )


def variable_table(prefix: Path) -> list[list[Any]]:
    """Name, shape, type and bytes of each variable, as TensorFlow reads them, in order of names.

    Raises RunError if the index cannot be read, or is damaged.
    """
    reader = _reader(prefix)
    dtypes, table = reader.get_variable_to_dtype_map(), []
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        n_bytes = 0 if dtypes[name].name == "string" else math.prod(shape) * dtypes[name].size
        table.append([name, shape, dtypes[name].name, n_bytes])
    texts = [row for row in table if row[2] == "string"]
    if len(texts) == 1:  # the object graph: all that is left
        data = prefix.parent.glob(f"{prefix.name}.data-*")
        texts[0][3] = sum(path.stat().st_size for path in data) - sum(row[3] for row in table)
    return table


def values(prefix: Path) -> Callable[[str], np.ndarray]:
    """A function that reads a variable of a checkpoint by its name; raises as above."""
    return _reader(prefix).get_tensor


def _reader(prefix: Path) -> Any:
    tensorflow_import.import_tensorflow()
    import tensorflow as tf

    try:
        return tf.train.load_checkpoint(str(prefix))
    except (tf.errors.OpError, ValueError) as error:
        reason = str(getattr(error, "message", error)).splitlines()[0]
        raise RunError(
            f"{prefix}.index is no index of a TensorFlow checkpoint, or damaged ({reason})."
        ) from None


def changes(before: Path, after: Path) -> dict[str, float]:
    """How far each group of variables moved between two checkpoints of one model.

    Group -> norm of the difference over the norm before, all variables of the group taken as one
    vector; inf where all was 0 before. Counters are left out.
    """
    earlier, later = ({v.name: v for v in read(prefix).variables} for prefix in (before, after))
    if {(v.name, v.shape) for v in earlier.values()} != {(v.name, v.shape) for v in later.values()}:
        raise RunError(f"{before} and {after} hold different variables: they are not of one model.")
    moved: dict[str, float] = collections.defaultdict(float)
    size: dict[str, float] = collections.defaultdict(float)
    value_before, value_after = values(before), values(after)
    for name, variable in earlier.items():
        if variable.dtype.startswith("float"):
            old, new = (read(name).astype(np.float64) for read in (value_before, value_after))
            moved[variable.group] += float(np.sum((new - old) ** 2))
            size[variable.group] += float(np.sum(old**2))
    found = {}
    for group in (name for name in GROUPS if name in size):
        from_0 = math.inf if moved[group] else 0.0
        found[group] = math.sqrt(moved[group] / size[group]) if size[group] else from_0
    return found


def _files(prefix: Path) -> Iterable[File]:
    for ending, purpose in _PURPOSES.items():
        for path in sorted(prefix.parent.iterdir()):
            if path.name.startswith(prefix.name + ending):
                yield File(path.name, path.stat().st_size, purpose)
    pointer = prefix.parent / names.POINTER
    if pointer.is_file():
        yield File(pointer.name, pointer.stat().st_size, _POINTER)


def _step(variables: Iterable[Variable], prefix: Path) -> int | None:
    for variable in variables:
        if variable.name.split("/")[0] in (names.STEP, "global_step") and variable.count == 1:
            return int(values(prefix)(variable.name))
    return _step_in_name(prefix)


def _step_in_name(prefix: Path) -> int | None:
    match = re.search(r"-(\d+)$", prefix.name)
    return int(match[1]) if match else None


def _predicted(manifest: dict[str, Any], variables: Iterable[Variable]) -> int | None:
    """What the manifest's configuration, or the recipe's formula, says of `model_bytes`."""
    groups = {variable.group for variable in variables}
    if "Adam v" not in groups:
        return None  # an average of checkpoints has no moments of Adam
    if not manifest:  # OpenSeq2Seq: weights and two moments
        weights = [variable for variable in variables if variable.group in WEIGHTS]
        return 3 * sum(w.n_bytes for w in weights)
    try:
        return predict(
            ModelConfig(**manifest["model"]),
            int(manifest["vocabulary_size"]),
            freeze=str(manifest.get("freeze", "")),
            averaged=AVERAGE in groups,
            source_vocabulary_size=int(manifest.get("source_vocabulary_size", 0)),
        ).n_bytes
    except (UserError, KeyError, TypeError, ValueError):
        return None


def _manifest(prefix: Path) -> dict[str, Any]:
    try:
        content = json.loads(names.manifest_file(prefix).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
