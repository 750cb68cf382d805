"""What a checkpoint contains: its files, its variables, what each byte is for, and how many."""

import collections
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.manifest import CheckpointManifest, read_manifest
from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import RunError, UserError
from hvd_nmt.config import ModelConfig

FLOAT_BYTES = 4
"""of a weight, its average, a moment of Adam or a gradient: float32, whatever the precision"""
_PURPOSES = {
    "{}.data-*": "the values of every variable, one after the other, as raw little-endian numbers",
    "{}.index": "a sorted table: for each variable its type, shape, place in the data file and CRC",
    "{}.meta": "the graph (a MetaGraphDef), so that TensorFlow alone can run the model",
    "{}.json": "our manifest: step, validation loss, sizes, and a SHA-256 of each file",
    names.POINTER: "TensorFlow's pointer to the newest checkpoint, a few lines of text",
}
"""of the files of a checkpoint; {} stands for its name"""
_PATTERNS = {
    "embedding": r"model/((source_)?embedding|positions|logits_bias)\b|embedding_and_softmax",
    "encoder attention": r"encoder/.*attention/",
    "encoder feed-forward": r"encoder/.*(feed_forward|ffn)/",
    "decoder self-attention": r"decoder/.*attention/",
    "cross-attention": r"decoder/.*(cross_attention|encdec_attention)/",
    "decoder feed-forward": r"decoder/.*(feed_forward|ffn)/",
    "layer norms": r"_norm/|layer_norm",
    "moving average": rf"^{names.AVERAGE}/",
    "Adam m": rf"^{names.OPTIMIZER}/m/|/Adam$",
    "Adam v": rf"^{names.OPTIMIZER}/v/|/Adam_1$",
    "optimizer scalars": rf"^{names.OPTIMIZER}/(_|iterations)|beta[12]_power$",
    "step and loss scale": rf"^({names.STEP}|global_step)\b|loss_scale",
    "object graph": rf"^{names.OBJECT_GRAPH}$",
}
"""of the names of a group's variables, ours and OpenSeq2Seq's; the last that fits decides"""
GROUPS = (*_PATTERNS, "other")
"""of variables, in the order in which they are listed"""
WEIGHTS = GROUPS[:7]
"""the groups that make the model"""
AVERAGE = "moving average"
"""the group of the weights' moving average, in a run with `training.ema_decay`"""


class File(NamedTuple):
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
        found = (group for group in reversed(_PATTERNS) if re.search(_PATTERNS[group], self.name))
        return next(found, "other")


@dataclass(frozen=True)
class VariableGroup:
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
    """optimizer steps done, as far as manifest or name say"""
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

    def groups(self) -> list[VariableGroup]:
        """Where each byte of the data file goes, in the order of `GROUPS`; only what there is."""
        found = []
        for name in GROUPS:
            members = [variable for variable in self.variables if variable.group == name]
            n_bytes = sum(variable.n_bytes for variable in members)
            count, share = sum(v.count for v in members), n_bytes / max(1, self.data_bytes)
            if members:
                found.append(VariableGroup(name, len(members), count, n_bytes, share))
        return found


def prefixes(run_dir: Path) -> list[Path]:
    """The prefixes of `model.ckpt-N`, or else of `best_models`, damaged ones too, newest last."""
    for pattern in (f"{names.NEWEST}*.index", f"{names.BEST_DIR}/*.index", "*.index"):
        found = [path.with_name(path.name.removesuffix(".index")) for path in run_dir.glob(pattern)]
        if found:
            return sorted(found, key=lambda prefix: (names.step_of(prefix) or 0, prefix.name))
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
    found = reader(prefix)
    dtypes, shapes = found.get_variable_to_dtype_map(), found.get_variable_to_shape_map()
    texts = [name for name, dtype in dtypes.items() if dtype.name == "string"]
    sizes = {name: math.prod(shapes[name]) * dtypes[name].size for name in shapes}
    sizes |= dict.fromkeys(texts, 0)
    if len(texts) == 1:  # the object graph: all that is left
        data = prefix.parent.glob(f"{escape(prefix.name)}.data-*")
        sizes[texts[0]] = sum(path.stat().st_size for path in data) - sum(sizes.values())
    return [(name, shapes[name], dtypes[name].name, sizes[name]) for name in sorted(shapes)]


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
    if "Adam v" not in groups:
        return None  # an average of checkpoints has no optimizer
    if manifest is None:  # OpenSeq2Seq: weights and two moments
        return 3 * sum(v.n_bytes for v in variables if v.group in WEIGHTS)
    try:
        return predict(
            ModelConfig(**manifest.model), manifest.vocabulary_size, freeze=manifest.freeze,
            averaged=AVERAGE in groups, source_vocabulary_size=manifest.source_vocabulary_size,
            slots=manifest.slots,
        ).n_bytes  # fmt: skip
    except (UserError, TypeError, ValueError):
        return None


class CheckpointSize(NamedTuple):
    """A checkpoint of a run."""

    trained: int
    """weights that are not frozen, which have gradients"""
    n_bytes: int
    """of weights, their average and slots; counters and names come on top"""


def predict(
    model: ModelConfig, vocabulary_size: int, *, freeze: str = "", averaged: bool = False,
    source_vocabulary_size: int = 0,
    slots: Mapping[str, int] | None = None,
) -> CheckpointSize:  # fmt: skip
    """The values that a checkpoint of a run holds; raises ConfigError if `freeze` names no weight.

    The sizes are rows of matrices, pieces rounded up to a multiple of 8; `source_vocabulary_size`
    is 0 where the source has none of its own. `averaged`: there is a moving average. `slots`: how
    many values the optimizer keeps; None: Adam's moments.
    """
    weights = weight_sizes(model, vocabulary_size, source_vocabulary_size)
    kept = names.frozen(list(weights), freeze)
    trained = sum(size for path, size in weights.items() if path not in kept)
    parameters, copies = sum(weights.values()), 2 if averaged else 1
    kept_values = sum(slots.values()) if slots else 2 * trained
    return CheckpointSize(trained, FLOAT_BYTES * (copies * parameters + kept_values))


def weight_sizes(model: ModelConfig, rows: int, source_rows: int = 0) -> dict[str, int]:
    """The number of values of each weight of `model.transformer.Transformer`, by its path."""
    width, hidden, biases = model.width, model.feed_forward_width, model.biases == "all"
    norm = {"scale": width, "offset": width}
    attention = {"qkv": 3 * width**2, "output_kernel": width**2}
    cross = {"query": width**2, "key_value": 2 * width**2, "output_kernel": width**2}
    if biases:
        attention |= {"qkv_bias": 3 * width, "output_bias": width}
        cross |= {"query_bias": width, "key_value_bias": 2 * width, "output_bias": width}
    feed_forward = {"inner": width * hidden, "inner_bias": hidden}
    feed_forward |= {"outer": hidden * width, "outer_bias": width}
    encoder = {"attention": attention, "feed_forward": feed_forward}
    decoder = encoder | {"cross_attention": cross}
    stacks = ("encoder", model.encoder_layers, encoder), ("decoder", model.decoder_layers, decoder)
    found = {"embedding": rows * width}
    if source_rows:
        found["source_embedding"] = source_rows * width
    if model.positions == "learned":
        found["positions"] = model.max_length * width
    if biases:
        found["logits_bias"] = rows
    for stack, layers, sub_layers in stacks:
        for layer in range(layers):
            for name, weights in sub_layers.items():
                for part, of_part in ((f"{name}_norm", norm), (name, weights)):
                    found |= {f"{stack}/{layer}/{part}/{w}": n for w, n in of_part.items()}
        if model.norm == "pre":
            found |= {f"{stack}_norm/{weight}": n for weight, n in norm.items()}
    return found
