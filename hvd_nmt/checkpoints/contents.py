"""The contents of a checkpoint: its files, its variables, and what each byte is for."""

import collections
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hvd_nmt.checkpoints import names, sizes
from hvd_nmt.checkpoints.manifest import CheckpointManifest, read_manifest
from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import RunError, UserError
from hvd_nmt.config import ModelConfig

_PURPOSES = {
    "{}.data-*": "the values of every variable, one after the other, as raw little-endian numbers",
    "{}.index": "a sorted table: for each variable its type, shape, place in the data file and CRC",
    "{}.meta": "the graph (a MetaGraphDef), so that TensorFlow alone can run the model",
    "{}.json": "our manifest: step, validation loss, sizes, and a SHA-256 of each file",
    names.POINTER: "TensorFlow's pointer to the newest checkpoint, a few lines of text",
}
"""purpose of each file of a checkpoint; {} stands for the checkpoint's name"""
_PATTERNS = {
    "embedding": r"model/((source_)?embedding|positions|logits_bias)\b|embedding_and_softmax",
    "encoder attention": r"encoder/.*attention/",
    "encoder feed-forward": r"encoder/.*(feed_forward|ffn)/",
    "decoder self-attention": r"decoder/.*attention/",
    "cross-attention": r"decoder/.*(cross_attention|encdec_attention)/",
    "decoder feed-forward": r"decoder/.*(feed_forward|ffn)/",
    "layer norms": r"_norm/|layer_norm",
    "moving average": rf"^{names.AVERAGE}/",
    "optimizer": rf"^{names.OPTIMIZER}/",
    "Adam m": rf"^{names.OPTIMIZER}/m/|/Adam$",
    "Adam v": rf"^{names.OPTIMIZER}/v/|/Adam_1$",
    "optimizer scalars": rf"^{names.OPTIMIZER}/(_|iterations)|beta[12]_power$",
    "step and loss scale": rf"^({names.STEP}|global_step)\b|loss_scale",
    "object graph": rf"^{names.OBJECT_GRAPH}$",
}
"""names of a group's variables, ours and OpenSeq2Seq's; the last pattern that fits decides"""
GROUPS = (*_PATTERNS, "other")
"""groups of variables, in the order in which they are listed"""
WEIGHTS = GROUPS[:7]
"""the groups that make the model"""
SLOTS = ("optimizer", "Adam m", "Adam v")
"""the groups of what an optimizer keeps of weights; with Muon the m of a matrix is its momentum"""
AVERAGE = "moving average"
"""the group of the weights' moving average, in a run with `training.ema_decay`"""


class File(NamedTuple):
    """A file of a checkpoint."""

    name: str
    n_bytes: int
    purpose: str
    """what it is for, a sentence without its full stop"""


@dataclass(frozen=True)
class Variable:
    """A variable of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """type of the values as NumPy calls it, or "string" """
    n_bytes: int
    """bytes of the data file that hold it"""

    @property
    def count(self) -> int:
        """How many values it has."""
        return math.prod(self.shape)

    @property
    def group(self) -> str:
        """One of `GROUPS`."""
        fitting = (g for g in reversed(_PATTERNS) if re.search(_PATTERNS[g], self.name))
        return next(fitting, "other")


@dataclass(frozen=True)
class VariableGroup:
    """What a group of variables takes of the data file."""

    name: str
    variables: int
    count: int
    """values of all its variables"""
    n_bytes: int
    share: float
    """its share of the data file, 0 to 1"""


@dataclass(frozen=True)
class Anatomy:
    """A checkpoint, taken apart."""

    prefix: Path
    step: int | None
    """optimizer steps done, by the manifest or the name; None: neither says"""
    files: tuple[File, ...]
    variables: tuple[Variable, ...]
    data_bytes: int
    """size of the data files on disk"""
    predicted_bytes: int | None
    """`model_bytes` by the configuration alone; None without a configuration"""

    @property
    def parameters(self) -> int:
        """Weights of the model."""
        return sum(v.count for v in self.variables if v.group in WEIGHTS)

    @property
    def model_bytes(self) -> int:
        """Bytes of the weights, their average and what the optimizer keeps of them."""
        groups = (*WEIGHTS, AVERAGE, *SLOTS)
        return sum(v.n_bytes for v in self.variables if v.group in groups)

    def groups(self) -> list[VariableGroup]:
        """Where each byte of the data file goes, in the order of `GROUPS`; only what there is."""
        groups = []
        for name in GROUPS:
            members = [variable for variable in self.variables if variable.group == name]
            n_bytes = sum(variable.n_bytes for variable in members)
            count, share = sum(v.count for v in members), n_bytes / max(1, self.data_bytes)
            if members:
                groups.append(VariableGroup(name, len(members), count, n_bytes, share))
        return groups


def readable(run_dir: Path) -> list[Path]:
    """The prefixes of `model.ckpt-N`, or else of `best_models`, damaged ones too, newest last."""
    for pattern in (f"{names.NEWEST}*.index", f"{names.BEST_DIR}/*.index", "*.index"):
        if files := list(run_dir.glob(pattern)):
            prefixes = (path.with_name(path.name.removesuffix(".index")) for path in files)
            return sorted(prefixes, key=lambda prefix: (names.step_of(prefix) or 0, prefix.name))
    return []


def read(prefix: Path) -> Anatomy:
    """Take a checkpoint apart; raises RunError if there is none, or its index is damaged."""
    data = sorted(prefix.parent.glob(f"{escape(prefix.name)}.data-*"))
    if not data:
        raise RunError(f"{prefix}.data-* is missing: copy it back, it has all values.")
    try:
        manifest = read_manifest(names.manifest_file(prefix))
    except RunError:
        manifest = None  # of another program, or damaged
    table = (manifest and manifest.variables) or variable_table(prefix)
    variables = tuple(
        Variable(name, tuple(shape), dtype, n_bytes) for name, shape, dtype, n_bytes in table
    )
    return Anatomy(
        prefix=prefix,
        step=manifest.step if manifest else names.step_of(prefix),
        files=tuple(
            File(path.name, path.stat().st_size, purpose)
            for pattern, purpose in _PURPOSES.items()
            for path in sorted(prefix.parent.glob(pattern.format(escape(prefix.name))))
            if path.is_file()
        ),
        variables=variables,
        data_bytes=sum(path.stat().st_size for path in data),
        predicted_bytes=_predicted(manifest, variables),
    )


def variable_table(prefix: Path) -> list[tuple[str, list[int], str, int]]:
    """Name, shape, type and bytes of each variable in order of names; raises as `reader`."""
    checkpoint = reader(prefix)
    dtypes, shapes = checkpoint.get_variable_to_dtype_map(), checkpoint.get_variable_to_shape_map()
    texts = [name for name, dtype in dtypes.items() if dtype.name == "string"]
    n_bytes = {name: math.prod(shapes[name]) * dtypes[name].size for name in shapes}
    n_bytes |= dict.fromkeys(texts, 0)
    if len(texts) == 1:  # the object graph: all that is left
        data = prefix.parent.glob(f"{escape(prefix.name)}.data-*")
        n_bytes[texts[0]] = sum(path.stat().st_size for path in data) - sum(n_bytes.values())
    return [(name, shapes[name], dtypes[name].name, n_bytes[name]) for name in sorted(shapes)]


def reader(prefix: Path) -> Any:
    """A checkpoint as a `tf.train.CheckpointReader`; RunError: its index is damaged or missing."""
    tensorflow_import.import_tensorflow()
    import tensorflow as tf

    try:
        return tf.train.load_checkpoint(names.literal(prefix))
    except (tf.errors.OpError, ValueError) as error:
        reason = str(getattr(error, "message", error)).splitlines()[0]
        raise RunError(f"{prefix}.index is damaged, or not of TensorFlow ({reason}).") from None


def changes(before: Path, after: Path) -> dict[str, float]:
    """Group -> norm of its weights' change between two checkpoints, over their norm before."""
    readers = reader(before), reader(after)
    squares: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(2))
    for variable in read(before).variables:
        if variable.group in WEIGHTS:
            old, new = (of.get_tensor(variable.name).astype(np.float64) for of in readers)
            squares[variable.group] += np.sum((new - old) ** 2), np.sum(old**2)
    return {group: math.sqrt(moved / size) for group, (moved, size) in squares.items()}


def _predicted(manifest: CheckpointManifest | None, variables: Iterable[Variable]) -> int | None:
    """What the manifest's configuration, or the recipe's formula, says of `model_bytes`."""
    groups = {variable.group for variable in variables}
    if groups.isdisjoint(SLOTS):
        return None  # an average of checkpoints has no optimizer
    if manifest is None:  # OpenSeq2Seq: weights and two moments
        return 3 * sum(v.n_bytes for v in variables if v.group in WEIGHTS)
    try:
        return sizes.predict(
            ModelConfig(**manifest.model), manifest.vocabulary_size, freeze=manifest.freeze,
            averaged=AVERAGE in groups, source_vocabulary_size=manifest.source_vocabulary_size,
            slots=manifest.slots,
        ).n_bytes  # fmt: skip
    except (UserError, TypeError, ValueError):
        return None
