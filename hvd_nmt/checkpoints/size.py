"""How many bytes a checkpoint of ours has, from the configuration alone.

The data file is every value of every variable, one after the other, and last the object graph:
TensorFlow's description of the Python objects, which it needs to find the variables again. It is a
TrackableObjectGraph, one node for each object in the order of a breadth-first walk, with the names
of its children and, for a variable, the key of its tensor. So its size follows from names alone.

Source: tensorflow/core/protobuf/trackable_object_graph.proto, python/checkpoint/save_util.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.names import VALUE
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import ModelConfig
from hvd_nmt.config import freeze as parts

_FLOAT_BYTES = 4
_COUNTER_BYTES = 8
_CHECKSUM_BYTES = 4


@dataclass(frozen=True)
class Prediction:
    """The bytes of a data file, by what they are for."""

    parameters: int
    """weights of the model"""
    weight_bytes: int
    """the weights, float32"""
    adam_bytes: int
    """Adam's m and v of the weights that are trained, float32 each"""
    average_bytes: int
    """the moving average of the weights, float32; 0 without one"""
    scalar_bytes: int
    """step and Adam's counter, 8 each; with float16 the loss scale, 4, and the steps since it
    changed, 8"""
    object_graph_bytes: int
    """the object graph with its length and a checksum"""

    @property
    def trained(self) -> int:
        """Weights that are not frozen, which have moments and gradients."""
        return self.adam_bytes // (2 * _FLOAT_BYTES)

    @property
    def n_bytes(self) -> int:
        """All of the data file."""
        values = self.weight_bytes + self.adam_bytes + self.average_bytes + self.scalar_bytes
        return values + self.object_graph_bytes


def predict(
    model: ModelConfig,
    vocabulary_size: int,
    precision: str = "float32",
    *,
    freeze: str = "",
    averaged: bool = False,
    source_vocabulary_size: int = 0,
) -> Prediction:
    """The data file of a checkpoint of a run.

    Args:
        model: sizes of the model.
        vocabulary_size: rows of the shared matrix: pieces rounded up to a multiple of 8.
        precision: of the arithmetic. Weights and moments are float32 in all of them; float16 adds
            the loss scale.
        freeze: `training.freeze`: weights that are not trained have no moments.
        averaged: whether there is a moving average (`training.ema_decay`).
        source_vocabulary_size: rows of the source's own matrix; 0: it has none.

    Raises:
        ConfigError: precision is not one that a run can end up with, or `freeze` names no weight.
    """
    if precision not in ("float32", "bfloat16", "float16"):
        raise ConfigError(
            f"The size of a checkpoint in precision {precision!r} cannot be predicted: give "
            "float32, bfloat16 or float16."
        )
    rows = vocabulary_size, source_vocabulary_size
    transformer = _transformer(model, *rows)
    trained = _trained(transformer, freeze)
    saved = {
        names.WEIGHTS: transformer,
        names.OPTIMIZER: _optimizer(trained, precision == "float16"),
        names.STEP: _variable("step", n_bytes=_COUNTER_BYTES),
    }
    if averaged:
        saved = {names.AVERAGE: _transformer(model, *rows), **saved}
    paths = _paths(_Object(saved))
    graph_bytes = _graph_bytes(paths)
    weight_bytes = sum(weight.n_bytes for weight in _weights(transformer))
    adam_bytes = 2 * sum(weight.n_bytes for weight in trained.values())
    average_bytes = weight_bytes if averaged else 0
    every_bytes = sum(thing.n_bytes for thing in paths)
    return Prediction(
        parameters=sum(weight.values for weight in _weights(transformer)),
        weight_bytes=weight_bytes,
        adam_bytes=adam_bytes,
        average_bytes=average_bytes,
        scalar_bytes=every_bytes - weight_bytes - adam_bytes - average_bytes,
        object_graph_bytes=_varint_bytes(graph_bytes) + _CHECKSUM_BYTES + graph_bytes,
    )


def recipe_bytes(parameters: int) -> int:
    """Bytes of the data file of an OpenSeq2Seq checkpoint in float32.

    Weights, Adam's m and v, 4 bytes each; the powers of beta 1 and beta 2, 4 each; the step, 8.
    TensorFlow 1 saves no object graph. transformer-base, 60,880,896 parameters: 730,570,768.
    """
    return 3 * parameters * _FLOAT_BYTES + 2 * _FLOAT_BYTES + _COUNTER_BYTES


@dataclass(eq=False)
class _Object:
    """A Python object that TensorFlow tracks."""

    children: dict[str, _Object] = field(default_factory=dict)
    variable: str = ""
    """name of the variable that it is; "" if it is none"""
    values: int = 0
    n_bytes: int = 0


def _variable(name: str, values: int = 1, n_bytes: int = 0) -> _Object:
    return _Object(variable=name, values=values, n_bytes=n_bytes or values * _FLOAT_BYTES)


def _transformer(config: ModelConfig, vocabulary_size: int, source_rows: int) -> _Object:
    """The attributes of `model.transformer.Transformer`, in the order they are set."""
    width, hidden = config.width, config.feed_forward_width
    norm = {"scale": [width], "offset": [width]}
    attention = {"qkv": [width, 3 * width], "output_kernel": [width, width]}
    cross_attention = {
        "query": [width, width], "key_value": [width, 2 * width], "output_kernel": [width, width],
    }  # fmt: skip
    feed_forward = {
        "inner": [width, hidden], "inner_bias": [hidden],
        "outer": [hidden, width], "outer_bias": [width],
    }  # fmt: skip
    if config.biases == "all":
        attention |= {"qkv_bias": [3 * width], "output_bias": [width]}
        cross_attention |= {"query_bias": [width], "key_value_bias": [2 * width]}
        cross_attention |= {"output_bias": [width]}
    first = {"attention_norm": norm, "attention": attention}
    middle = {"cross_attention_norm": norm, "cross_attention": cross_attention}
    last = {"feed_forward_norm": norm, "feed_forward": feed_forward}
    positions = config.positions == "learned"
    return _tree(
        {
            "embedding": [vocabulary_size, width],
            **({"source_embedding": [source_rows, width]} if source_rows else {}),
            **({"positions": [config.max_length, width]} if positions else {}),
            "encoder": {str(i): first | last for i in range(config.encoder_layers)},
            **({"encoder_norm": norm} if config.norm == "pre" else {}),
            "decoder": {str(i): first | middle | last for i in range(config.decoder_layers)},
            **({"decoder_norm": norm} if config.norm == "pre" else {}),
            **({"logits_bias": [vocabulary_size]} if config.biases == "all" else {}),
        }
    )


def _tree(attributes: dict) -> _Object:
    return _Object(
        {
            name: _tree(inner) if isinstance(inner, dict) else _variable(name, math.prod(inner))
            for name, inner in attributes.items()
        }
    )


def _weights(layer: _Object) -> Iterator[_Object]:
    """In Keras' order of `trainable_variables` of a model: of its layers, then its own."""
    children = layer.children.values()
    for inner in children:
        if not inner.variable:
            yield from _weights(inner)
    yield from (inner for inner in children if inner.variable)


def _trained(transformer: _Object, freeze: str) -> dict[str, _Object]:
    """The weights that are not frozen, by their paths."""
    paths = _paths(transformer)
    weights = {paths[weight]: weight for weight in _weights(transformer)}
    frozen = parts.frozen(list(weights), freeze)
    return {path: weight for path, weight in weights.items() if path not in frozen}


def _optimizer(trained: dict[str, _Object], loss_scale: bool) -> _Object:
    """Adam and its loss scale as `checkpoints.state` lays them out."""
    m, v = (
        _nested({path: _variable(f"{kind}/{w.variable}", w.values) for path, w in trained.items()})
        for kind in "mv"
    )
    counters = {"iterations": _variable("iteration", n_bytes=_COUNTER_BYTES)}
    if loss_scale:
        steps = _variable("good_steps", n_bytes=_COUNTER_BYTES)
        scale = {"current_loss_scale": _variable("current_loss_scale"), "good_steps": steps}
        counters["loss_scale"] = _Object(scale)
    return _Object({**counters, "m": m, "v": v})


def _nested(variables: dict[str, _Object]) -> _Object:
    """Objects by the parts of their paths."""
    root = _Object()
    for path, variable in variables.items():
        *folders, name = path.split("/")
        place = root
        for folder in folders:
            place = place.children.setdefault(folder, _Object())
        place.children[name] = variable
    return root


def _paths(root: _Object) -> dict[_Object, str]:
    """The shortest path to each object, in the order of a breadth-first walk."""
    paths, waiting = {root: ""}, [root]
    for parent in waiting:  # grows while it is read
        for name, child in parent.children.items():
            if child not in paths:
                paths[child] = f"{paths[parent]}/{name}".lstrip("/")
                waiting.append(child)
    return paths


def _graph_bytes(paths: dict[_Object, str]) -> int:
    numbers = {thing: number for number, thing in enumerate(paths)}
    return sum(_field_bytes(_node_bytes(thing, path, numbers)) for thing, path in paths.items())


def _node_bytes(thing: _Object, path: str, numbers: dict[_Object, int]) -> int:
    """One TrackableObject: children, attributes, and whether a variable is in or below it."""
    children = sum(
        _field_bytes(1 + _varint_bytes(numbers[child]) + _field_bytes(len(name)))
        for name, child in thing.children.items()
    )
    attribute = 0
    if thing.variable:
        names = ("VARIABLE_VALUE", thing.variable, path + VALUE)
        attribute = _field_bytes(sum(_field_bytes(len(name)) for name in names))
    return children + attribute + _field_bytes(2 if thing.variable or thing.children else 0)


def _field_bytes(size: int) -> int:
    """Bytes of a field that holds `size` bytes: its number, the size, and they themselves."""
    return 1 + _varint_bytes(size) + size


def _varint_bytes(number: int) -> int:
    """7 bits a byte."""
    return max(1, (number.bit_length() + 6) // 7)
