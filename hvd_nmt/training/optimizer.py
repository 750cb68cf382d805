"""Adam, and what wraps it."""

import types
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.checkpoints.state import AdamState
from hvd_nmt.config import TrainingConfig
from hvd_nmt.model import device
from hvd_nmt.training import horovod
from hvd_nmt.training.gradient_sums import GradientSums, group_count


def build(
    config: TrainingConfig,
    precision: str,
    variables: list[tf.Variable],
    sums: GradientSums | None = None,
) -> keras.optimizers.Optimizer:
    """The optimizer that `compile` gets, with all its slots.

    Horovod wraps Adam and the loss scale wraps Horovod: scaled gradients are summed, so an Inf of
    one rank reaches all, and all skip the same step. `precision` float16 adds a dynamic loss scale;
    `sums` None: Horovod sums.
    """
    optimizer = horovod.distributed_optimizer(
        Adam(
            learning_rate=0.0,  # set before each step, see `callbacks.LearningRate`
            beta_1=config.adam_beta1,
            beta_2=config.adam_beta2,
            epsilon=config.adam_epsilon,
            jit_compile=False,
            decoupled_decay=config.weight_decay,
        ),
        group_count(variables),
        sums,
    )
    if precision == "float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    optimizer.build(variables)
    return optimizer


def loss_scale(optimizer: keras.optimizers.Optimizer) -> tf.Tensor | None:
    """What the loss is multiplied by, float32 scalar; None: nothing."""
    if not isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer):
        return None
    return tf.convert_to_tensor(optimizer.loss_scale)


def summed_gradients(
    optimizer: keras.optimizers.Optimizer,
    gradients: Sequence[tf.Tensor],
    weights: Sequence[tf.Variable],
) -> list[tf.Tensor]:
    """This rank's own gradients, with the loss scale if there is one, summed over ranks."""
    if isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    made = types.SimpleNamespace(gradient=lambda loss, weights: gradients)  # in place of a tape
    pairs = optimizer.compute_gradients(None, weights, made)
    return [gradient for gradient, _ in pairs]


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
        gradients: of `summed_gradients`, equal on all ranks.
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


def state(optimizer: keras.optimizers.Optimizer, weights: Sequence[str]) -> AdamState:
    """Adam's variables as a checkpoint holds them; `weights` are paths in the order of `build`."""
    scale = _loss_scale(optimizer)
    adam = optimizer if scale is None else optimizer.inner_optimizer
    m, v = (dict(zip(weights, each, strict=True)) for each in (adam._momentums, adam._velocities))
    return AdamState(adam.iterations, m, v, scale)


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
        # One pass in place; `assign` would make two more tensors of the weight's size.
        tf.raw_ops.ResourceApplyGradientDescent(var=mean.handle, alpha=rate, delta=mean - weight)


class Adam(keras.optimizers.Adam):
    """Adam (Kingma and Ba 2015) with TensorFlow's fused kernel: one pass over each weight.

    tf_keras' own takes about ten passes. Gradients are dense here, see `horovod`. In each step a
    matrix loses `decoupled_decay` of itself times the learning rate, as in AdamW (Loshchilov and
    Hutter 2019); norms and biases, which are vectors, do not.
    """

    def __init__(self, *constants: float, decoupled_decay: float = 0.0, **options: Any) -> None:
        super().__init__(*constants, **options)
        self._decoupled_decay = decoupled_decay

    def get_config(self) -> dict[str, Any]:
        """What makes another like this, which is how Horovod wraps it."""
        return super().get_config() | {"decoupled_decay": self._decoupled_decay}

    def apply_gradients(
        self, gradients: Iterable[tuple[tf.Tensor, tf.Variable]], *,
        applies: tf.Tensor | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """As in Keras, with what all weights have in common computed once.

        Where `applies`, a bool scalar, is False nothing is changed, if the gradients are 0.
        """
        steps = tf.cast(self.iterations + 1, tf.float32)
        beta_1, beta_2 = (tf.constant(b, tf.float32) for b in (self.beta_1, self.beta_2))
        rate = tf.convert_to_tensor(self.learning_rate)
        self._of_all_weights = {
            "beta1_power": tf.pow(beta_1, steps), "beta2_power": tf.pow(beta_2, steps),
            "lr": rate, "beta1": beta_1, "beta2": beta_2,
        }  # fmt: skip
        if applies is not None:
            neutral = {"lr": 0.0, "beta1": 1.0, "beta2": 1.0}
            self._of_all_weights |= {
                name: tf.where(applies, self._of_all_weights[name], value)
                for name, value in neutral.items()
            }
        done = super().apply_gradients(gradients, **options)
        if applies is not None:
            self.iterations.assign_sub(tf.cast(~applies, tf.int64))
        return done

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Update one weight and its two moments in place."""
        index = self._index_dict[self._var_key(variable)]
        if self._decoupled_decay and variable.shape.rank > 1:
            share = self._of_all_weights["lr"] * self._decoupled_decay
            # One pass in place.
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=share, delta=variable
            )
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].handle,
            v=self._velocities[index].handle,
            **self._of_all_weights,
            epsilon=self.epsilon,
            grad=gradient,
        )
