"""Adam, and what wraps it."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.checkpoints.state import AdamState
from hvd_nmt.config import TrainingConfig
from hvd_nmt.training import horovod
from hvd_nmt.training.exchange.gradient_sums import GradientSums


def build(
    config: TrainingConfig,
    precision: str,
    variables: list[tf.Variable],
    sums: GradientSums | None = None,
) -> keras.optimizers.Optimizer:
    """The optimizer that `compile` gets, with all its slots.

    Horovod wraps Adam and the loss scale wraps Horovod: scaled gradients are summed, so an Inf of
    one rank reaches all, and all skip the same step.

    Args:
        config: Adam's constants.
        precision: float16 adds a dynamic loss scale.
        variables: the weights to be trained.
        sums: of gradients over ranks; None: as on one host.
    """
    optimizer = horovod.distributed_optimizer(
        Adam(
            learning_rate=0.0,  # set before each step, see `callbacks.LearningRate`
            beta_1=config.adam_beta1,
            beta_2=config.adam_beta2,
            epsilon=config.adam_epsilon,
            jit_compile=False,
        ),
        sums or GradientSums(config.fixed_groups),
    )
    if precision == "float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    optimizer.build(variables)
    return optimizer


def clipped(
    gradients: Sequence[tuple[tf.Tensor, tf.Variable]], clip_norm: float, norm: tf.Tensor
) -> list[tuple[tf.Tensor, tf.Variable]]:
    """Gradients scaled down together to a global norm.

    Args:
        gradients: with their weights, equal on all ranks.
        clip_norm: largest norm; 0: any.
        norm: theirs, float32 scalar, to the bit the same on all ranks.
    """
    if not clip_norm:
        return list(gradients)
    values, weights = zip(*gradients, strict=True)
    scaled, _ = tf.clip_by_global_norm(values, clip_norm, use_norm=norm)
    return list(zip(scaled, weights, strict=True))


def state(optimizer: keras.optimizers.Optimizer, weights: Sequence[str]) -> AdamState:
    """Adam's variables as a checkpoint holds them, without what wraps it.

    Args:
        optimizer: of `build`.
        weights: paths of the weights that it trains, in the order that `build` got them.
    """
    scale = tf.train.TrackableView.children(optimizer).get("loss_scale")
    adam = optimizer if scale is None else optimizer.inner_optimizer
    m, v = (dict(zip(weights, each, strict=True)) for each in (adam._momentums, adam._velocities))
    return AdamState(adam.iterations, m, v, scale)


class Adam(keras.optimizers.Adam):
    """Adam (Kingma and Ba 2015) with TensorFlow's fused kernel: one pass over each weight.

    tf_keras' own takes about ten passes. Gradients are dense here, see `horovod`.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Update one weight and its two moments in place."""
        index = self._index_dict[self._var_key(variable)]
        steps = tf.cast(self.iterations + 1, variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].handle,
            v=self._velocities[index].handle,
            beta1_power=tf.pow(tf.cast(self.beta_1, variable.dtype), steps),
            beta2_power=tf.pow(tf.cast(self.beta_2, variable.dtype), steps),
            lr=tf.cast(self.learning_rate, variable.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )
