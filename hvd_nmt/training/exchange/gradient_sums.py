"""How the gradients of a step are summed: over all ranks, or within the host only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow as tf

from hvd_nmt.config.exchange import Exchange
from hvd_nmt.training import horovod
from hvd_nmt.training.exchange.host_sums import HostGroups, sum_in, sum_over_hosts

GROUP_BYTES = 25 << 20
"""gradients that are summed as one, as in PyTorch (Li et al. 2020, PyTorch Distributed, 5.2): each
sum costs a delay, and the first can only begin when its last gradient is there"""


class GradientSums:
    """What the optimizer calls to sum gradients. A graph that was traced keeps what it found.

    Args:
        fixed_groups: whether the same gradients have the same sum, to the bit, each time.
    """

    def __init__(self, fixed_groups: bool = False) -> None:
        self._fixed_groups = fixed_groups
        self._exchange = Exchange()
        self._hosts: HostGroups | None = None

    def use(self, exchange: Exchange, hosts: HostGroups | None) -> None:
        """Sum so from now on.

        Args:
            exchange: how the hosts share what they learn.
            hosts: of the run; None: there is one host.
        """
        self._exchange, self._hosts = exchange, hosts

    def __call__(self, gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> list[tf.Tensor] | None:
        """The sums; None: Horovod is to sum what is ready together, over all ranks."""
        exchange, hosts = self._exchange, self._hosts
        by_hosts = exchange.islands or exchange.hierarchical or exchange.wire == "float16"
        if not (self._fixed_groups or (by_hosts and hosts is not None)):
            return None
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        sums: list[tf.Tensor] = []
        for number, some in enumerate(_groups(dense)):
            name = f"gradients_{number}"
            if hosts is None or not by_hosts:
                sums += horovod.sums_in(horovod.everybody(), some, name)
            elif exchange.islands:
                sums += horovod.sums_in(hosts.local, some, name)
            else:
                flat_N = tf.concat([tf.reshape(gradient, [-1]) for gradient in some], 0)
                sums += _like(self._sum_across(flat_N, hosts, name), some)
        return sums

    def _sum_across(self, flat_N: tf.Tensor, hosts: HostGroups, name: str) -> tf.Tensor:
        narrow = self._exchange.wire == "float16"
        if not self._exchange.hierarchical:
            return sum_in(horovod.everybody(), flat_N, name, narrow=narrow)
        of_host_N = horovod.sum_in(hosts.local, flat_N, f"{name}.local")
        return sum_over_hosts(of_host_N, hosts, name, narrow=narrow)


def _like(flat_N: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """A vector cut into the shapes of some tensors."""
    parts = tf.split(flat_N, [tensor.shape.num_elements() for tensor in tensors])
    return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _groups(tensors: Sequence[tf.Tensor]) -> Iterator[list[tf.Tensor]]:
    """Neighbours up to `GROUP_BYTES`: those of one layer become ready one after another."""
    group: list[tf.Tensor] = []
    bytes_ = 0
    for tensor in tensors:
        size = tensor.shape.num_elements() * tensor.dtype.size
        if group and bytes_ + size > GROUP_BYTES:
            yield group
            group, bytes_ = [], 0
        group.append(tensor)
        bytes_ += size
    yield group
