"""Hosts that train by themselves, and join their weights now and then: local steps.

Each host is an island: its ranks sum their gradients among themselves and move their weights. Every
`sync_every` steps the hosts send how far their weights have come from the common ones, the mean of
that, weighted by the tokens that each host has learned from, moves the common weights (as the
gradient of an outer optimizer: Douillard et al. 2023, DiLoCo), and all go on from there. With rate
1 and no momentum that is the mean of the hosts' weights, which falls behind: see `Exchange.rate`.

With streaming the weights travel in fragments, one in each step: it is sent when the step begins
and put in when it ends, as a correction, since the host's own weights have moved on meanwhile
(Douillard et al. 2025, Streaming DiLoCo). So the transfer hides behind the computing.

Between exchanges only `Islands.common` is equal everywhere. `join` makes equal on all hosts what a
checkpoint holds.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints.state import AdamState
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.training import horovod
from hvd_nmt.training.exchange import fragments, wire
from hvd_nmt.training.exchange.fragments import Fragment
from hvd_nmt.training.exchange.gradient_sums import GROUP_BYTES
from hvd_nmt.training.exchange.host_sums import HostGroups, sum_over_hosts

_BYTES_PER_VALUE = 4


class Islands:
    """The exchange of weights between hosts; every rank makes the same calls in the same steps.

    Args:
        weights: those that are trained, equal on all ranks now.
        adam: its moments become equal on all hosts in `join`.
        hosts: of the run, two at least.
        exchange: how often, and in which numbers.
    """

    def __init__(
        self,
        weights: Sequence[tf.Variable],
        adam: AdamState,
        hosts: HostGroups,
        exchange: Exchange,
    ) -> None:
        self.common = [tf.Variable(weight, trainable=False) for weight in weights]
        """the weights of all hosts, as they were joined last"""
        self.hosts, self.exchange = hosts, exchange
        self.velocity: list[tf.Variable] = []
        """outer momentum of each weight, if any; it starts anew in `join`: no checkpoint has it"""
        if exchange.outer_momentum:
            self.velocity = [tf.Variable(tf.zeros_like(w), trainable=False) for w in weights]
        self._weights, self._adam = weights, adam
        shapes = [weight.shape.as_list() for weight in weights]
        count = exchange.parts if exchange.streaming else _groups(shapes)
        self._fragments = fragments.cut(shapes, count)
        every = exchange.sync_every
        self._sent_at = {
            number * every // len(self._fragments): fragment
            for number, fragment in enumerate(self._fragments)
        }
        """streamed fragment by its place in the steps of an exchange"""
        self._joined = -1
        """step after which all was equal"""
        self._steps = 0
        """steps since the hosts were joined"""
        self._learned = _Learned(len(hosts.names))
        self._graphs: dict[tuple[str, Fragment], Any] = {}
        self._sent: dict[Fragment, _Learned] = {}
        """what the hosts had learned when a fragment was sent last"""
        self._rates: dict[Fragment, float] = {}
        """outer rate of what was sent last"""
        self._moves: dict[Fragment, int] = {}
        """times that a fragment was exchanged since its velocity was zero"""
        self._under_way: _Sent | None = None
        self._norms: dict[Fragment, np.ndarray] = {}

    def begin_step(self, step: int) -> None:
        """Send the fragment of this step, if they are streamed.

        Args:
            step: steps of the run that are done.
        """
        fragment = self._sent_at.get(step % self.exchange.sync_every)
        # In the first step after all have met there is nothing to send yet.
        if self.exchange.streaming and fragment is not None and self._steps:
            local_N, payload_N, counts = self._graph("offer", fragment)(self._share(fragment))
            transfer = _in_background(lambda: self._transfer(fragment, payload_N))
            self._under_way = _Sent(fragment, counts, local_N, transfer)

    def end_step(self, learned: Sequence[float], bad: Sequence[bool]) -> dict[str, float]:
        """Put in the fragment that was sent, if any; before `join` or `exchange_all`.

        Args:
            learned: target tokens of this step, by host.
            bad: whether a host's gradient was NaN or Inf in this step, so that what it has learned
                since the last exchange is left out of the next one.

        Returns:
            Seconds that this took: `exchange_s` exposed and `transfer_s` under way.
        """
        self._steps += 1
        self._learned = self._learned.more(learned, bad)
        if self._under_way is None:
            return {}
        started_s = time.perf_counter()
        sent, self._under_way = self._under_way, None
        sums_N, transfer_s = sent.transfer.result()
        self._put_in("correct", sent.fragment, sums_N, sent.local_N, sent.counts)
        return {"exchange_s": time.perf_counter() - started_s, "transfer_s": transfer_s}

    def exchange_all(self) -> dict[str, float]:
        """Exchange all weights at once: then they are the common ones on all hosts."""
        if not self._steps:
            return {}
        started_s, transfer_s = time.perf_counter(), 0.0
        for fragment in self._fragments:
            _, payload_N, _ = self._graph("offer", fragment)(self._share(fragment))
            sums_N, seconds = self._transfer(fragment, payload_N)
            self._put_in("replace", fragment, sums_N)
            transfer_s += seconds
        self._steps = 0
        self._sent.clear()
        self._learned = _Learned(len(self.hosts.names))
        return {"exchange_s": time.perf_counter() - started_s, "transfer_s": transfer_s}

    def join(self, step: int) -> dict[str, float]:
        """Make all that a checkpoint holds equal on all hosts: weights, moments, counters.

        Args:
            step: steps of the run that are done; a second time after the same does nothing.
        """
        if self._joined == step:
            return {}
        self._joined = step
        logs = self.exchange_all()
        started_s = time.perf_counter()
        for fragment in self._fragments:
            self._graph("mean", fragment)()
        for velocity in self.velocity:
            velocity.assign(tf.zeros_like(velocity))
        self._moves.clear()
        counters = [self._adam.iterations]
        if self._adam.loss_scale is not None:
            counters += tf.train.TrackableView.children(self._adam.loss_scale).values()
        # The fewest updates and the lowest scale: a host that skipped a step had its reason.
        values = horovod.gather([float(counter.numpy()) for counter in counters])
        for counter, least in zip(counters, np.min(values, 0), strict=True):
            counter.assign(tf.cast(least, counter.dtype))
        logs["exchange_s"] = logs.get("exchange_s", 0.0) + time.perf_counter() - started_s
        return logs

    @property
    def delta_norm(self) -> float:
        """Length of the last move of the common weights that the hosts proposed together."""
        return float(np.sqrt(sum(moved for moved, _ in self._norms.values())))

    @property
    def divergence(self) -> float:
        """How far the hosts were from each other before the last exchange.

        The root of their mean squared distance from their mean.
        """
        return float(np.sqrt(max(0.0, sum(apart - moved for moved, apart in self._norms.values()))))

    def _share(self, fragment: Fragment) -> tf.Tensor:
        """This host's part of what was learned since the fragment was exchanged last."""
        since = self._learned.since(self._sent.get(fragment))
        self._sent[fragment] = self._learned
        self._rates[fragment] = self.exchange.rate(since.hosts)
        return tf.constant(since.share(self.hosts.index), tf.float32)

    def _transfer(self, fragment: Fragment, payload_N: tf.Tensor) -> tuple[tf.Tensor, float]:
        started_s = time.perf_counter()
        sums_N = self._graph("add_up", fragment)(payload_N)
        return sums_N, time.perf_counter() - started_s

    def _put_in(self, kind: str, fragment: Fragment, *arguments: tf.Tensor) -> None:
        moves = self._moves[fragment] = self._moves.get(fragment, 0) + 1
        # As far as after many exchanges, and not less while the velocity grows: as Adam corrects.
        momentum = self.exchange.outer_momentum
        momentum /= 1 - momentum**moves
        outer_2 = tf.constant([self._rates[fragment], momentum], tf.float32)
        self._norms[fragment] = self._graph(kind, fragment)(outer_2, *arguments).numpy()

    def _graph(self, kind: str, fragment: Fragment) -> Any:
        """The graph that does one thing with one fragment, traced when it is first used."""
        if (kind, fragment) not in self._graphs:
            body = functools.partial(getattr(self, f"_{kind}"), fragment)
            self._graphs[kind, fragment] = tf.function(body, autograph=False)
        return self._graphs[kind, fragment]

    def _offer(
        self, fragment: Fragment, share: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """This host's weights now, what it sends, and whether that counts.

        It sends its share of the way of the weights, and the square of that way; nothing if weights
        are NaN or Inf, whatever its gradients were.
        """
        local_N = fragments.read(self._weights, fragment)
        way_N = local_N - fragments.read(self.common, fragment)
        counts = (share > 0) & tf.math.is_finite(tf.reduce_sum(way_N * way_N))
        way_N = tf.where(counts, way_N, tf.zeros_like(way_N))
        square = share * tf.reduce_sum(way_N * way_N)
        # Apart, for its size would take digits from its neighbours.
        padded_N = tf.pad(way_N * share, [[0, -way_N.shape[0] % wire.BLOCK]])
        return local_N, tf.concat([padded_N, square[None]], 0), counts

    def _add_up(self, fragment: Fragment, payload_N: tf.Tensor) -> tf.Tensor:
        narrow = self.exchange.wire == "float16"
        return sum_over_hosts(payload_N, self.hosts, f"w_{_name(fragment)}", narrow=narrow)

    def _correct(
        self, fragment: Fragment, outer_2: tf.Tensor, sums_N: tf.Tensor, local_N: tf.Tensor,
        counts: tf.Tensor,
    ) -> tf.Tensor:  # fmt: skip
        """Move the common weights; this host's keep what they learned since they were sent."""
        common_N, norms = self._move(fragment, outer_2, sums_N)
        now_N = fragments.read(self._weights, fragment)
        own_N = tf.where(counts, now_N + (common_N - local_N), common_N)
        fragments.write(self._weights, fragment, own_N)
        return norms

    def _replace(self, fragment: Fragment, outer_2: tf.Tensor, sums_N: tf.Tensor) -> tf.Tensor:
        """Move the common weights, and take them."""
        common_N, norms = self._move(fragment, outer_2, sums_N)
        fragments.write(self._weights, fragment, common_N)
        return norms

    def _move(
        self, fragment: Fragment, outer_2: tf.Tensor, sums_N: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Nesterov's step, as of Sutskever et al. 2013: v' = m v + d, w' = w + r (d + m v').

        Args:
            fragment: of the weights.
            outer_2: rate r, and what m is in the second equation.
            sums_N: mean way d, and the mean square of the hosts' ways.
        """
        common_N = fragments.read(self.common, fragment)
        way_N, square = sums_N[: common_N.shape[0]], sums_N[-1]
        norms = tf.stack([tf.reduce_sum(way_N * way_N), square])
        rate, momentum = tf.unstack(outer_2)
        step_N = way_N
        if self.velocity:
            earlier_N = fragments.read(self.velocity, fragment)
            velocity_N = self.exchange.outer_momentum * earlier_N + way_N
            fragments.write(self.velocity, fragment, velocity_N)
            step_N = way_N + momentum * velocity_N
        common_N += rate * step_N
        fragments.write(self.common, fragment, common_N)
        return common_N, norms

    def _mean(self, fragment: Fragment) -> None:
        """Give Adam's moments their means over the hosts."""
        for kind, moments in ("m", self._adam.m), ("v", self._adam.v):
            variables = list(moments.values())
            own_N = fragments.read(variables, fragment) / len(self.hosts.names)
            own_N = tf.where(tf.math.is_finite(own_N), own_N, tf.zeros_like(own_N))
            name = f"{kind}_{_name(fragment)}"
            fragments.write(
                variables, fragment, sum_over_hosts(own_N, self.hosts, name, narrow=False)
            )


def _name(fragment: Fragment) -> str:
    return f"{fragment[0].weight}_{fragment[0].first}"


class _Sent(NamedTuple):
    """A fragment under way."""

    fragment: Fragment
    counts: tf.Tensor
    """whether this host has a part in it"""
    local_N: tf.Tensor
    """this host's weights when it was sent"""
    transfer: Future[tuple[tf.Tensor, float]]
    """what all hosts sent, added up, and the seconds that it took"""


class _Learned:
    """What each host has learned from up to some step, and when it last went wrong."""

    def __init__(self, hosts: int) -> None:
        self._tokens_H = np.zeros(hosts)
        self._bad_H = np.zeros(hosts, int)
        """steps in which the host's gradient was NaN or Inf"""

    def more(self, tokens: Sequence[float], bad: Sequence[bool]) -> _Learned:
        """And one more step."""
        sum_ = _Learned(len(tokens))
        sum_._tokens_H = self._tokens_H + np.asarray(tokens)
        sum_._bad_H = self._bad_H + np.asarray(bad, int)
        return sum_

    def since(self, before: _Learned | None) -> _Learned:
        """What came after."""
        if before is None:
            return self
        rest = _Learned(len(self._tokens_H))
        rest._tokens_H = self._tokens_H - before._tokens_H
        rest._bad_H = self._bad_H - before._bad_H
        return rest

    def share(self, host: int) -> float:
        """The part of one host among those that went right; 0: it is left out."""
        return float(self._shares_H[host])

    @property
    def hosts(self) -> float:
        """Number of hosts with equal shares whose mean would have as little noise; 1 at least."""
        return 1 / max(float(np.sum(self._shares_H**2)), 1e-9) if self._shares_H.any() else 1.0

    @property
    def _shares_H(self) -> np.ndarray:
        good_H = np.where(self._bad_H == 0, self._tokens_H, 0.0)
        return np.asarray(good_H / max(float(good_H.sum()), 1e-9))


def _groups(shapes: Sequence[Sequence[int]]) -> int:
    """Number of fragments when all are exchanged at once: as large as groups of gradients."""
    values = sum(int(np.prod(shape)) for shape in shapes)
    return max(1, -(-values * _BYTES_PER_VALUE // GROUP_BYTES))


def _in_background(work: Callable[[], Any]) -> Future[Any]:
    """Its result, later. A daemon: a collective that never ends must not keep the process."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="exchange", daemon=True).start()
    return future
