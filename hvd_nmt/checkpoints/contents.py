"""What a checkpoint contains: its files, its variables, and what each byte is for.

Works on checkpoints of this package and on those of OpenSeq2Seq, and needs no TensorFlow.
"""

import collections
import dataclasses
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hvd_nmt.checkpoints import index_file, names
from hvd_nmt.checkpoints.size import predict, recipe_bytes
from hvd_nmt.common.errors import RunError
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
    group: str
    """one of `GROUPS`"""
    tensor: index_file.Tensor
    """type, shape and place of the values"""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return self.tensor.shape

    @property
    def dtype(self) -> str:
        """The type of its values."""
        return self.tensor.dtype

    @property
    def count(self) -> int:
        """How many values it has."""
        return self.tensor.count

    @property
    def n_bytes(self) -> int:
        """What it takes in the data file."""
        return self.tensor.n_bytes

    def norm(self) -> float:
        """The root of the sum of its squares; NaN for text."""
        if self.dtype == "string":
            return math.nan
        return _norm(index_file.values(self.tensor))


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
    """what the configuration alone says it must be; None where there is no configuration"""

    @property
    def parameters(self) -> int:
        """Weights of the model."""
        return sum(v.count for v in self.variables if v.group in WEIGHTS)

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
    """The prefixes of a run's checkpoints by step, newest last: `model.ckpt-N`, else `best_models`.

    Only names are looked at, not whether a checkpoint is undamaged.
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
    """Take a checkpoint apart.

    Args:
        prefix: path of the checkpoint without the ending, such as runs/demo/model.ckpt-800.

    Raises:
        RunError: there is no such checkpoint, or its index or object graph is damaged.
    """
    tensors = index_file.tensors(prefix)
    originals = _original_names(tensors)
    variables = tuple(
        Variable(tensor.name, _group(originals.get(tensor.name, ""), tensor.name), tensor)
        for tensor in tensors
    )
    data = {tensor.path for tensor in tensors}
    if missing := [path for path in sorted(data) if not path.exists()]:
        raise RunError(f"{missing[0]} is missing: without it {prefix.name} holds no values.")
    return Anatomy(
        prefix=prefix,
        step=_step(variables, prefix),
        files=tuple(_files(prefix)),
        variables=variables,
        data_bytes=sum(path.stat().st_size for path in data),
        predicted_bytes=_predicted(prefix, variables),
    )


def changes(before: Path, after: Path) -> dict[str, float]:
    """How far each group of variables moved between two checkpoints of one model.

    Args:
        before: prefix of the earlier checkpoint.
        after: prefix of the later one.

    Returns:
        Group -> norm of the difference over the norm before, all variables of the group taken as
        one vector; inf where all was 0 before. Counters are left out.
    """
    earlier, later = ({v.name: v for v in read(prefix).variables} for prefix in (before, after))
    if {(v.name, v.shape) for v in earlier.values()} != {(v.name, v.shape) for v in later.values()}:
        raise RunError(f"{before} and {after} hold different variables: they are not of one model.")
    moved: dict[str, float] = collections.defaultdict(float)
    size: dict[str, float] = collections.defaultdict(float)
    for name, variable in earlier.items():
        if variable.dtype.startswith("float"):
            old, new = index_file.values(variable.tensor), index_file.values(later[name].tensor)
            moved[variable.group] += _norm(new.astype(np.float64) - old) ** 2
            size[variable.group] += _norm(old) ** 2
    found = {}
    for group in (name for name in GROUPS if name in size):
        from_0 = math.inf if moved[group] else 0.0
        found[group] = math.sqrt(moved[group] / size[group]) if size[group] else from_0
    return found


def _norm(values: np.ndarray) -> float:
    flat = values.ravel().astype(np.float64)
    return math.sqrt(float(flat @ flat))


def _group(original: str, name: str) -> str:
    """The group of a variable.

    Version 0.1 numbered Adam's moments as Keras does; their names, such as m/qkv, only the object
    graph knows.
    """
    if original.startswith(("m/", "v/")):
        return f"Adam {original[0]}"
    found = (group for group, pattern in _GROUPS if re.search(pattern, name))
    return next(found, "other")


def _original_names(tensors: Iterable[index_file.Tensor]) -> dict[str, str]:
    """Key of a variable -> the name it had in Python, from the object graph if there is one."""
    graphs = [tensor for tensor in tensors if tensor.name == names.OBJECT_GRAPH]
    if not graphs:
        return {}
    originals = {}
    try:
        for _, node in index_file.fields(index_file.text(graphs[0])):
            for number, value in index_file.fields(node):
                if number == 2:  # a SerializedTensor: name, full_name, checkpoint_key
                    attribute = dict(index_file.fields(value))
                    originals[_text(attribute.get(3))] = _text(attribute.get(2))
    except (ValueError, IndexError, KeyError) as error:
        raise RunError(
            f"{graphs[0].path} holds a damaged object graph ({error}): use another checkpoint."
        ) from None
    return originals


def _text(value: int | bytes | None) -> str:
    if not isinstance(value, bytes):
        raise ValueError("a name is missing")
    return value.decode()


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
            return int(index_file.values(variable.tensor))
    return _step_in_name(prefix)


def _step_in_name(prefix: Path) -> int | None:
    match = re.search(r"-(\d+)$", prefix.name)
    return int(match[1]) if match else None


def _predicted(prefix: Path, variables: Sequence[Variable]) -> int | None:
    """What the manifest's configuration, or the recipe's formula, says of the data file."""
    keys = {variable.name for variable in variables}
    by_adam = any(variable.group == "Adam v" for variable in variables)
    if names.OBJECT_GRAPH not in keys:
        weights = [variable for variable in variables if variable.group in WEIGHTS]
        float32 = all(weight.dtype == "float32" for weight in weights)
        return recipe_bytes(sum(w.count for w in weights)) if by_adam and float32 else None
    manifest = _manifest(prefix)
    known = {field.name for field in dataclasses.fields(ModelConfig)}
    sizes = manifest.get("model")
    if not by_adam or not isinstance(sizes, dict) or not known >= set(sizes):
        return None  # an average of checkpoints has no moments of Adam
    if names.VERSION_0_1_KEY in keys:
        return None  # its object graph was another one
    scaled = any("loss_scale" in key for key in keys)
    try:
        return predict(
            ModelConfig(**sizes),
            int(manifest["vocabulary_size"]),
            "float16" if scaled else "float32",
            freeze=str(manifest.get("freeze", "")),
            averaged=any(variable.group == AVERAGE for variable in variables),
            source_vocabulary_size=int(manifest.get("source_vocabulary_size", 0)),
        ).n_bytes
    except (KeyError, TypeError, ValueError):
        return None


def _manifest(prefix: Path) -> dict[str, Any]:
    try:
        content = json.loads(names.manifest_file(prefix).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
