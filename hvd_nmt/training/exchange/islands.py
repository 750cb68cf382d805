"""Hosts that train by themselves, and join their weights now and then: local steps.

Every `sync_every` steps the hosts send how far their weights have come from the common ones. The
mean of that, weighted by the tokens that each host has learned from, moves the common weights (as
the gradient of an outer optimizer: Douillard et al. 2023, DiLoCo), and all continue from there.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints.state import OptimizerState
from hvd_nmt.common.heartbeat import EXCHANGE
from hvd_nmt.training import horovod
from hvd_nmt.training.exchange.base import LOWEST_LOSS_SCALE, GradientExchange, Replicas
from hvd_nmt.training.exchange.over_hosts import HostGroups, grouped, joined, like, sum_over_hosts
from hvd_nmt.training.micro_batches import Batch

WAY_OF_TWO_HOSTS = {"adam": 1.6, "muon": 2.0}
"""how far the common weights of two hosts move in the long run, in hosts' mean progress. With Adam
1.6 and 2.0 came within 1 % of the loss of plain training on Multi30k, not so 1.0 and 1.4. The
embedded corpus wants 1.0, and 2.0 spoils it: docs/guide/slow-link.md"""
MOMENTUM = 0.5
"""Nesterov's, of the common weights over exchanges: they move 1 / (1 - m) times as far"""


def outer_rate(hosts: float, optimizer: str) -> float:
    """What the mean progress of so many hosts is multiplied by.

    Fewer count if some learn from far more tokens than others. Adam divides a gradient by its size.
    That of one host has fewer sentences, so more noise: where noise prevails, its step goes 1 /
    sqrt(hosts) as far along the true gradient as a step of all hosts would, and so does the mean of
    the hosts' steps. Source: the square root rule of Malladi et al. 2022, arXiv 2205.10287.
    """
    return WAY_OF_TWO_HOSTS[optimizer] * math.sqrt(hosts / 2) * (1 - MOMENTUM)


class Islands(GradientExchange):
    """Each host sums alone; the weights of two hosts at least are joined every `sync_every` steps.

    The field calls it local SGD, and with an outer optimizer DiLoCo.
    """

    def __init__(self, groups: HostGroups, sync_every: int, optimizer: str) -> None:
        self.groups, self.hosts, self.together = groups, len(groups.names), groups.local.ranks
        self._sync_every, self._optimizer_kind = sync_every, optimizer
        self._exchanges = 0
        """since the velocity was zero: no checkpoint has it, so it begins again in `join`"""
        self._joined = -1
        """step after which all was equal"""
        self._tokens_Y = np.zeros(self.hosts)
        """that each host has learned from since the last exchange"""

    def begin(self, weights: Sequence[tf.Variable], optimizer: OptimizerState) -> None:
        """Trace the graphs of an exchange, so that none waits for it."""
        self._optimizer = optimizer
        self._common = [tf.Variable(weight, trainable=False) for weight in weights]
        """the weights of all hosts, as they were joined last"""
        self._velocity = [tf.Variable(tf.zeros_like(w), trainable=False) for w in weights]
        share, outer_2 = tf.TensorSpec([], tf.float32), tf.TensorSpec([2], tf.float32)
        self._moves = [
            (
                _graph(self._mean_way, number, group[:2], given=[share]),
                _graph(self._move, group, given=[tf.TensorSpec([None], tf.float32), outer_2]),
            )
            for number, group in enumerate(
                zip(*map(grouped, (weights, self._common, self._velocity)), strict=True)
            )
        ]
        """two graphs for each group of weights"""
        self._means = [
            _graph(self._mean, f"{name}_{number}", group)
            for name, slot in optimizer.slots.items()
            for number, group in enumerate(grouped([*slot.values()]))
        ]
        """one graph for each group of a slot"""

    def sum(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Summed over the ranks of this host."""
        sums: list[tf.Tensor] = []
        for number, group in enumerate(grouped(gradients)):
            sums += horovod.sums_in(self.groups.local, group, f"gradients_{number}")
        return sums

    def summed_tokens(self, batch: Batch) -> tf.Tensor:
        """Those of this host."""
        return batch["tokens"][2]

    def tokens_by_host(self, batch: Batch, *, speaks: bool) -> tf.Tensor:
        """Those of this host, in its place."""
        place_Y = tf.one_hot(self.groups.index, self.hosts)
        return place_Y * self.summed_tokens(batch) * tf.constant(float(speaks))

    def agreed(self, norm: tf.Tensor) -> tf.Tensor:
        """That of the first rank of this host."""
        return horovod.of_first_in(self.groups.local, norm, "gradient_norm")

    def is_not_finite(self, loss: tf.Tensor, norm: tf.Tensor, loss_scale: tf.Tensor) -> tf.Tensor:
        """By the norm, which other hosts do not see; an overflow lowers the scale by itself."""
        return ~tf.math.is_finite(norm) & (loss_scale <= LOWEST_LOSS_SCALE)

    def is_left_out(self, norm: float, loss_scale: float, not_finite: Sequence[float]) -> bool:
        """Whether any host left the step out."""
        return any(not_finite)

    def common(self, weights: Sequence[tf.Variable]) -> Sequence[tf.Variable]:
        """The weights of all hosts, as they were joined last."""
        return self._common

    def replicas(self, variables: Sequence[tf.Variable]) -> list[Replicas]:
        """What the ranks of a host have alike, and what all have."""
        return [Replicas(variables, within_hosts=True), Replicas(self._common)]

    def end_step(self, step: int, tokens_by_host: Sequence[float]) -> float | None:
        """Note the tokens, and exchange weights where due; the seconds that this took."""
        self._tokens_Y += tokens_by_host
        if step % self._sync_every:
            return 0.0
        started_s = time.perf_counter()
        self.exchange()
        return time.perf_counter() - started_s

    def exchange(self) -> None:
        """Make all weights the common ones on all hosts."""
        if not self._tokens_Y.any():
            return
        share_Y = self._tokens_Y / self._tokens_Y.sum()
        # As many hosts with equal shares have a mean with as little noise.
        hosts = 1 / np.sum(share_Y**2)
        self._exchanges += 1
        # As far as after many exchanges, and not less while the velocity grows: as Adam corrects.
        momentum = MOMENTUM / (1 - MOMENTUM**self._exchanges)
        outer_2 = tf.constant([outer_rate(hosts, self._optimizer_kind), momentum], tf.float32)
        share = tf.constant(share_Y[self.groups.index], tf.float32)
        with horovod.heartbeat.section(EXCHANGE, waits=True):
            # Nothing moves before all have come: if a host is lost meanwhile, no weight has.
            means = [(move, mean_way(share)) for mean_way, move in self._moves]
            for move, mean_N in means:
                move(mean_N, outer_2).numpy()  # fetched: a GPU works behind our back
        self._tokens_Y[:] = 0

    def join(self, step: int) -> None:
        """Make all that a checkpoint holds equal on all hosts, unless done after this step."""
        if self._joined == step:
            return
        self._joined = step
        self.exchange()
        with horovod.heartbeat.section(EXCHANGE, waits=True):
            for mean in self._means:
                mean()
        for velocity in self._velocity:
            velocity.assign(tf.zeros_like(velocity))
        self._exchanges = 0
        counters = [self._optimizer.iterations]
        if self._optimizer.loss_scale is not None:
            counters += tf.train.TrackableView.children(self._optimizer.loss_scale).values()
        # The fewest updates and the lowest scale: a host that skipped a step had its reason.
        values = horovod.gather([float(counter.numpy()) for counter in counters])
        for counter, least in zip(counters, np.min(values, 0), strict=True):
            counter.assign(tf.cast(least, counter.dtype))

    def _mean_way(self, number: int, group: tuple[Any, ...], share: tf.Tensor) -> tf.Tensor:
        """The mean way d of all hosts from the common weights of a group, by their shares."""
        weights, common = group
        way_N = joined(weights) - joined(common)
        # Nothing of weights that are NaN or Inf: that host takes the weights of the others.
        is_finite = tf.math.is_finite(tf.reduce_sum(way_N * way_N))
        way_N = tf.where(is_finite, way_N, tf.zeros_like(way_N))
        return sum_over_hosts(way_N * share, self.groups, f"weights_{number}", narrow=True)

    def _move(self, group: tuple[Any, ...], mean_N: tf.Tensor, outer_2: tf.Tensor) -> tf.Tensor:
        """Move the common weights of a group by the mean way, and take them.

        Nesterov's step, as of Sutskever et al. 2013: v' = m v + d, w' = w + r (d + m' v').
        `outer_2` holds the rate r, and m'. Returns a weight.
        """
        weights, common, velocity = group
        rate, momentum = tf.unstack(outer_2)
        velocity_N = MOMENTUM * joined(velocity) + mean_N
        common_N = joined(common) + rate * (mean_N + momentum * velocity_N)
        _assign(velocity, velocity_N)
        _assign(common, common_N)
        _assign(weights, common_N)
        return common_N[0]

    def _mean(self, name: str, moments: Sequence[tf.Variable]) -> None:
        own_N = joined(moments) / self.hosts
        own_N = tf.where(tf.math.is_finite(own_N), own_N, tf.zeros_like(own_N))
        _assign(moments, sum_over_hosts(own_N, self.groups, f"moments_{name}", narrow=False))


def _graph(
    function: Callable[..., Any], *values: Any, given: Sequence[tf.TensorSpec] = ()
) -> Callable[..., Any]:
    """A function of its first values as a graph of the others, which are `given`; traced."""
    graph = tf.function(
        functools.partial(function, *values), input_signature=given, autograph=False
    )
    graph.get_concrete_function()
    return graph


def _assign(variables: Sequence[tf.Variable], values_N: tf.Tensor) -> None:
    for variable, value in zip(variables, like(values_N, variables), strict=True):
        variable.assign(value)
