"""What a run saves, as objects that TensorFlow tracks; their attributes are the keys.

    model/PATH              weights
    ema/PATH                their moving average, with `training.ema_decay`
    optimizer/SLOT/PATH     what the optimizer keeps of weights that are trained: Adam's moments m
                            and v; of the matrices that Muon moves, m alone
    optimizer/iterations    updates that it has made
    optimizer/loss_scale/   in float16: current_loss_scale, and good_steps since it changed
    step                    optimizer steps done

PATH is that of the weight in the model, such as encoder/0/attention/qkv. What no run resumes from,
such as a mean of checkpoints, has weights and step alone.
"""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from hvd_nmt.checkpoints import names
from hvd_nmt.model.transformer import Transformer


@dataclasses.dataclass(frozen=True, eq=False)
class OptimizerState:
    """The variables of an optimizer."""

    iterations: tf.Variable
    """updates made, int64"""
    slots: Mapping[str, Mapping[str, tf.Variable]]
    """variables kept of weights, by slot and path; of Adam the moments m and v"""
    loss_scale: Any = None
    """object with the children current_loss_scale and good_steps, in float16; None in others"""

    def sizes(self) -> dict[str, int]:
        """The number of values in each slot."""
        counts = {
            name: [variable.shape.num_elements() for variable in slot.values()]
            for name, slot in self.slots.items()
        }
        return {name: sum(values) for name, values in counts.items()}


def run_state(
    model: Transformer, step: tf.Variable | int, optimizer: OptimizerState | None = None,
    average: Transformer | None = None,
) -> tf.train.Checkpoint:  # fmt: skip
    """What a checkpoint holds; no `optimizer` where no run resumes, no `average` without one."""
    parts: dict[str, Any] = {names.WEIGHTS: model}
    if average is not None:
        parts[names.AVERAGE] = average
    if optimizer is not None:
        slots = {name: _nested(slot) for name, slot in optimizer.slots.items()}
        if optimizer.loss_scale is not None:
            slots[names.LOSS_SCALE] = optimizer.loss_scale
        parts[names.OPTIMIZER] = tf.train.Checkpoint(iterations=optimizer.iterations, **slots)
    if isinstance(step, int):
        step = tf.Variable(step, dtype=tf.int64, name="step")
    return tf.train.Checkpoint(**parts, **{names.STEP: step})


def adam_state(weights: Mapping[str, tf.Variable], iterations: int = 0) -> OptimizerState:
    """Adam of weights by their paths, without an optimizer: moments of 0 at `iterations`."""
    slots = {
        name: {path: tf.Variable(tf.zeros_like(weight)) for path, weight in weights.items()}
        for name in ("m", "v")
    }
    return OptimizerState(tf.Variable(iterations, dtype=tf.int64), slots)


def weights_by_path(model: Transformer) -> dict[str, tf.Variable]:
    """The weights of a model by their paths, in the order of `trainable_variables`."""
    paths = {id(weight): key.removesuffix(names.VALUE) for key, weight in keyed_variables(model)}
    return {paths[id(weight)]: weight for weight in model.trainable_variables}


def weights_to_train(model: Transformer, freeze: str) -> dict[str, tf.Variable]:
    """The weights that are not frozen, by path, in the order of `trainable_variables`."""
    weights = weights_by_path(model)
    kept = names.frozen(list(weights), freeze) if freeze else ()
    return {path: weight for path, weight in weights.items() if path not in kept}


def keyed_variables(root: tf.train.Checkpoint | Transformer) -> Iterator[tuple[str, tf.Variable]]:
    """The variables that this saves, with their keys, the shortest paths; equal on all ranks."""
    view = tf.train.TrackableView(root)
    waiting: collections.deque[tuple[str, object]] = collections.deque([("", root)])
    seen = {id(root)}
    while waiting:
        path, parent = waiting.popleft()
        for name, child in view.children(parent).items():
            if id(child) in seen:
                continue
            seen.add(id(child))
            # Slashes in a name would look like a path: TensorFlow escapes them.
            key = path + name.replace(".", "..").replace("/", ".S")
            if isinstance(child, tf.Variable):
                yield key + names.VALUE, child
            else:
                waiting.append((key + "/", child))


def _nested(variables: Mapping[str, tf.Variable]) -> dict[str, Any]:
    """Variables nested by the parts of their paths, so that the keys are those of the weights."""
    root: dict[str, Any] = {}
    for path, variable in variables.items():
        *folders, name = path.split("/")
        place = root
        for folder in folders:
            place = place.setdefault(folder, {})
        place[name] = variable
    return root
