"""How the gradients of a step are summed where Horovod does not do it alone."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from hvd_nmt.config.exchange import Exchange
from hvd_nmt.training import horovod
from hvd_nmt.training.exchange.host_sums import HostGroups, sum_over_hosts

GROUP_BYTES = 25 << 20
"""what travels as one, as in PyTorch (Li et al. 2020, PyTorch Distributed, 5.2): each sum costs a
delay, and the first can only begin when its last gradient is there"""


class GradientSums:
    """What the optimizer calls to sum gradients. A graph that was traced keeps what it found."""

    def __init__(self) -> None:
        self.exchange = Exchange()
        """how the hosts share what they learn"""
        self.hosts: HostGroups | None = None
        """of the run; None: gradients are summed as on one host"""

    def __call__(self, gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> list[tf.Tensor] | None:
        """The sums; None: Horovod is to sum them over all ranks."""
        if self.hosts is None:
            return None
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        sums: list[tf.Tensor] = []
        for number, group in enumerate(grouped(dense)):
            name = f"gradients_{number}"
            if self.exchange.islands:
                sums += horovod.sums_in(self.hosts.local, group, name)
            else:
                of_host_N = horovod.sum_in(self.hosts.local, joined(group), f"{name}.local")
                sums += like(sum_over_hosts(of_host_N, self.hosts, name, narrow=True), group)
        return sums


def group_count(tensors: Sequence[tf.Tensor | tf.Variable]) -> int:
    """In how many groups of about `GROUP_BYTES` Horovod is to sum gradients of these shapes."""
    bytes_ = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors)
    return min(len(tensors), -(-bytes_ // GROUP_BYTES))


def grouped(
    tensors: Sequence[tf.Tensor | tf.Variable],
) -> list[list[tf.Tensor | tf.Variable]]:
    """Neighbours up to `GROUP_BYTES`: those of one layer become ready one after another."""
    groups: list[list[tf.Tensor]] = [[]]
    bytes_ = 0
    for tensor in tensors:
        size = tensor.shape.num_elements() * tensor.dtype.size
        if groups[-1] and bytes_ + size > GROUP_BYTES:
            groups.append([])
            bytes_ = 0
        groups[-1].append(tensor)
        bytes_ += size
    return groups


def joined(tensors: Sequence[tf.Tensor | tf.Variable]) -> tf.Tensor:
    """Some tensors as one vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def like(flat_N: tf.Tensor, tensors: Sequence[tf.Tensor | tf.Variable]) -> list[tf.Tensor]:
    """A vector cut into the shapes of some tensors."""
    parts = tf.split(flat_N, [tensor.shape.num_elements() for tensor in tensors])
    return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
