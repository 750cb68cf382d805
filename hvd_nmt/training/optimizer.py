"""The optimizer of a run, Adam or Muon, and what wraps it."""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.checkpoints.state import OptimizerState
from hvd_nmt.config import TrainingConfig
from hvd_nmt.model import device
from hvd_nmt.training.adam import Adam, descend
from hvd_nmt.training.exchange.base import GradientExchange
from hvd_nmt.training.muon import Muon


def build(
    config: TrainingConfig, precision: str, variables: list[tf.Variable], exchange: GradientExchange
) -> keras.optimizers.Optimizer:
    """The optimizer that `compile` gets, with all its slots.

    The exchange wraps it, and the loss scale wraps that: scaled gradients are summed, so an Inf of
    one rank reaches all, and all skip the same step. `precision` float16 adds a dynamic loss scale.
    """
    constants = {
        "learning_rate": 0.0,  # set before each step, see `callbacks.LearningRate`
        "beta_1": config.adam_beta1, "beta_2": config.adam_beta2, "epsilon": config.adam_epsilon,
        "jit_compile": False, "decoupled_decay": config.weight_decay,
    }  # fmt: skip
    if config.optimizer == "muon":
        # GPUs that are given float16 have no fast bfloat16, and float16 would overflow.
        dtype = "bfloat16" if precision == "bfloat16" else "float32"
        optimizer = Muon(**constants, rate_factor=config.muon_rate_factor, compute_dtype=dtype)
    else:
        optimizer = Adam(**constants)
    optimizer = exchange.wrapped(optimizer, variables)
    if precision == "float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    optimizer.build(variables)
    return optimizer


def loss_scale(optimizer: keras.optimizers.Optimizer) -> tf.Tensor | None:
    """What the loss is multiplied by, float32 scalar; None: nothing."""
    if not isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer):
        return None
    return tf.convert_to_tensor(optimizer.loss_scale)


def update(
    optimizer: keras.optimizers.Optimizer,
    gradients: Sequence[tf.Tensor],
    weights: Sequence[tf.Variable],
    norm: tf.Tensor,
    clip_norm: float = 0.0,
) -> None:
    """Move the weights, unless a summed gradient is NaN or Inf: then all ranks skip alike.

    In float16 a skipped step halves the loss scale, and many without make it twice as large.

    Args:
        gradients: summed with the loss scale if there is one, equal on all ranks.
        norm: the global norm of the gradients without the loss scale, float32 scalar, to the bit
            the same on all ranks where it changes weights.
        clip_norm: largest norm to which they are scaled down together; 0: any.
    """
    finite = tf.math.is_finite(norm)
    factor = None
    if clip_norm:  # as in tf.clip_by_global_norm
        factor = clip_norm * tf.minimum(1.0 / norm, 1.0 / clip_norm)
    adam = optimizer
    if isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer):
        adam = optimizer.inner_optimizer
        factor = (1.0 if factor is None else factor) / optimizer.loss_scale
        with tf.control_dependencies([factor]):
            _move_loss_scale(_loss_scale(optimizer), finite)
    if device.is_gpu():  # which need not be waited for, to learn whether the step counts
        factor = tf.where(finite, 1.0 if factor is None else factor, 0.0)
        adam.apply_gradients(zip(_times(gradients, factor), weights, strict=True), applies=finite)
        return

    def apply() -> tf.Tensor:
        adam.apply_gradients(zip(_times(gradients, factor), weights, strict=True))
        return tf.constant(True)

    tf.cond(finite, apply, lambda: tf.constant(False))


def _times(gradients: Sequence[tf.Tensor], factor: tf.Tensor | None) -> list[tf.Tensor]:
    """The gradients times a number; a factor of 0 makes 0 of everything, of NaN too."""
    if factor is None:
        return list(gradients)
    return [tf.math.multiply_no_nan(gradient, factor) for gradient in gradients]


def _loss_scale(optimizer: keras.optimizers.Optimizer) -> Any:
    """Keras' variables of a dynamic loss scale, with its constants; None without one."""
    return tf.train.TrackableView.children(optimizer).get("loss_scale")


def _move_loss_scale(scale: Any, finite: tf.Tensor) -> None:
    """What Keras' `update` does, from one number of all gradients, and with no branches."""
    now, good_steps = scale.current_loss_scale, scale.counter
    grows = finite & (good_steps + 1 >= scale.growth_steps)
    grown = now * scale.multiplier
    grown = tf.where(grows & tf.math.is_finite(grown), grown, now)
    moved = tf.where(finite, grown, tf.maximum(now / scale.multiplier, 1.0))
    counted = tf.where(finite & ~grows, good_steps + 1, tf.zeros_like(good_steps))
    now.assign(moved)
    good_steps.assign(counted)


def state(optimizer: keras.optimizers.Optimizer, weights: Sequence[str]) -> OptimizerState:
    """Its variables as a checkpoint holds them; `weights` are paths in the order of `build`."""
    scale = _loss_scale(optimizer)
    inner = optimizer if scale is None else optimizer.inner_optimizer
    slots = {
        name: {weights[index]: variable for index, variable in slot.items()}
        for name, slot in inner.slots.items()
    }
    return OptimizerState(inner.iterations, slots, scale)


def move_average(
    means: Iterable[tf.Variable], weights: Iterable[tf.Variable], decay: float, step: tf.Tensor
) -> None:
    """mean += r (weight - mean) with r = 1 - min(decay, (1 + t) / (10 + t)) at step t.

    The second term lets the average forget the first, random weights soon. Each rank computes it
    from equal weights, so it is equal everywhere without being sent. t is an int64 scalar, from 1.

    Source: `num_updates` of tf.train.ExponentialMovingAverage.
    """
    rate = tf.maximum(1 - decay, 9 / (10 + tf.cast(step, tf.float32)))
    for mean, weight in zip(means, weights, strict=True):
        descend(mean, rate, mean - weight)
