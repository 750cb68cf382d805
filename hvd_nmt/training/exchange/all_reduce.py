"""The plain exchange: Horovod's DistributedOptimizer sums float32 gradients over all ranks."""

from collections.abc import Callable, Sequence

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.training import horovod
from hvd_nmt.training.exchange.base import GradientExchange
from hvd_nmt.training.exchange.over_hosts import group_count


class AllReduce(GradientExchange):
    """All ranks sum in each step, by `DistributedOptimizer`."""

    _sum: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]

    def wrapped(
        self, optimizer: keras.optimizers.Optimizer, weights: Sequence[tf.Variable]
    ) -> keras.optimizers.Optimizer:
        """Horovod's optimizer around this one."""
        made = horovod.distributed_optimizer(optimizer, group_count(weights))
        self._sum = horovod.sums_of(made, weights)
        return made

    def sum(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `GradientExchange`."""
        return self._sum(gradients)
