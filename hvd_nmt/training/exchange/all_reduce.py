"""All ranks sum gradients in each step: by Horovod's DistributedOptimizer, or as float16."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.training import horovod
from hvd_nmt.training.exchange import over_hosts
from hvd_nmt.training.exchange.base import GradientExchange
from hvd_nmt.training.exchange.over_hosts import HostGroups, grouped, joined, like, sum_over_hosts


class AllReduce(GradientExchange):
    """The plain exchange, of float32: `DistributedOptimizer`."""

    def wrapped(
        self, optimizer: keras.optimizers.Optimizer, weights: Sequence[tf.Variable]
    ) -> keras.optimizers.Optimizer:
        """Horovod's optimizer around this one."""
        made = horovod.distributed_optimizer(optimizer, over_hosts.group_count(weights))
        self._sum = horovod.sums_of(made, weights)
        return made

    def sum(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `GradientExchange`."""
        return self._sum(gradients)


class Float16(GradientExchange):
    """The ranks of a host sum first, then the hosts: float32 gradients, which travel as float16."""

    def __init__(self, groups: HostGroups) -> None:
        self._groups = groups

    def sum(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """See `GradientExchange`."""
        sums: list[tf.Tensor] = []
        for number, group in enumerate(grouped(gradients)):
            name = f"gradients_{number}"
            of_host = horovod.sums_in(self._groups.local, [joined(group)], f"{name}.local")
            sums += like(sum_over_hosts(of_host[0], self._groups, name, narrow=True), group)
        return sums
