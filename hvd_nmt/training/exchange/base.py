"""The one object for what travels between ranks in training."""

import abc
import math
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.checkpoints.state import OptimizerState
from hvd_nmt.training import horovod
from hvd_nmt.training.micro_batches import Batch

LOWEST_LOSS_SCALE = 1.0
"""float16: the gradient itself overflows there, unscaled; Keras goes no lower"""


class Replicas(NamedTuple):
    """Variables that must be equal on some ranks."""

    variables: Sequence[tf.Variable]
    within_hosts: bool = False
    """whether hosts may differ from each other"""


class GradientExchange(abc.ABC):
    """What travels between ranks; the model, saving, evaluation and the checks hold one.

    Nobody asks which kind it is. Every rank makes the same calls in the same steps. What is said
    here is so where all ranks sum in each step. Another way of summing needs `sum` alone:

        class BFloat16Sums(GradientExchange):
            def sum(self, gradients):
                halves = [tf.cast(gradient, tf.bfloat16) for gradient in gradients]
                sums = horovod.sums_in(self._everybody, halves, "gradients")
                return [tf.cast(total, tf.float32) for total in sums]
    """

    hosts = 0
    """number of those whose tokens `tokens_by_host` counts"""
    together: Sequence[int] | None = None
    """ranks that sum with this one in each step; None: all"""

    @abc.abstractmethod
    def sum(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """This rank's gradients of all weights, in their order, summed over ranks; in a graph."""

    def wrapped(
        self, optimizer: keras.optimizers.Optimizer, weights: Sequence[tf.Variable]
    ) -> keras.optimizers.Optimizer:
        """The optimizer of these weights that `compile` gets."""
        return optimizer

    def begin(self, weights: Sequence[tf.Variable], optimizer: OptimizerState) -> None:
        """Take the weights and the state of the optimizer that all ranks begin with."""
        return

    def summed_tokens(self, batch: Batch) -> tf.Tensor:
        """Target tokens of all sentences whose gradients are summed: what a loss is divided by."""
        return batch["tokens"][1]

    def tokens_by_host(self, batch: Batch, *, speaks: bool) -> tf.Tensor:
        """What this rank adds to the tokens of each host, float32 [hosts]; one of a host speaks."""
        return tf.zeros([0])

    def agreed(self, norm: tf.Tensor) -> tf.Tensor:
        """One rank's norm of the summed gradients on all that sum together."""
        return horovod.of_first_rank(norm, "gradient_norm")

    def is_not_finite(self, loss: tf.Tensor, norm: tf.Tensor, loss_scale: tf.Tensor) -> tf.Tensor:
        """Whether this rank has to say of a step that it was not finite, a bool scalar."""
        return ~tf.math.is_finite(loss)

    def is_left_out(self, norm: float, loss_scale: float, not_finite: Sequence[float]) -> bool:
        """Whether NaN or Inf kept a step from changing weights, alike on all ranks.

        An overflow of float16 is neither. `not_finite` is what the ranks said, by rank.
        """
        finite = math.isfinite(norm) and not any(not_finite)
        return not finite and loss_scale <= LOWEST_LOSS_SCALE

    def common(self, weights: Sequence[tf.Variable]) -> Sequence[tf.Variable]:
        """What is equal on all ranks in each step and stands for the weights of this one."""
        return weights

    def replicas(self, variables: Sequence[tf.Variable]) -> list[Replicas]:
        """What the ranks are to compare, where these would be equal if all summed in each step."""
        return [Replicas(variables)]

    def end_step(self, step: int, tokens_by_host: Sequence[float]) -> float | None:
        """Do what follows a step, with the tokens each host learned from; seconds it took."""
        return None

    def join(self, step: int) -> None:
        """Make all that a checkpoint holds equal on all ranks, after this step."""
        return
