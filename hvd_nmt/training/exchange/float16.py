"""float32 gradients that travel between hosts as float16."""

from collections.abc import Sequence

import tensorflow as tf

from hvd_nmt.training import horovod
from hvd_nmt.training.exchange.base import GradientExchange
from hvd_nmt.training.exchange.over_hosts import (
    HostGroups,
    grouped,
    joined,
    like,
    sum_over_hosts,
)


class Float16(GradientExchange):
    """All ranks sum in each step: those of a host first, then the hosts, in half the bytes."""

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
