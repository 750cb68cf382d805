"""Sums over ranks that cross the network between hosts once.

A ring over all ranks sends 2 (R - 1) / R times the numbers over the network of each host. Here the
ranks of a host sum first, among themselves; then the numbers are cut in as many parts as the
largest host has ranks, and each part is summed over one rank of every host, so that all ranks of a
host share in the sending; then the ranks of a host put the parts together. Each host so sends
2 (H - 1) / H times the numbers, with H hosts.

N numbers, P parts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from hvd_nmt.training import horovod, other_launchers
from hvd_nmt.training.exchange import wire
from hvd_nmt.training.horovod import Group


@dataclasses.dataclass(frozen=True)
class HostGroups:
    """Which ranks are together on a host, and which are joined across hosts, as one rank sees it.

    Made by `meet`, a collective.
    """

    names: list[str]
    """of the hosts, in the order of their first ranks"""
    index: int
    """place of this rank's host among them"""
    local: Group
    """ranks of this host"""
    parts: int
    """number of parts, the most ranks that a host has"""
    across: dict[int, Group]
    """part -> ranks of different hosts that sum it; those of this rank"""
    order: list[int]
    """places of the parts 0, 1, ... where this host's ranks put theirs one after the other"""

    @property
    def ranks(self) -> int:
        """Number of ranks on this host."""
        return len(self.local.ranks)


def meet(host_of_rank: Sequence[str], rank: int) -> HostGroups | None:
    """Form the groups, in the same order on all ranks.

    Args:
        host_of_rank: by rank.
        rank: number of this one.

    Returns:
        None where Horovod was not started so that ranks of a host can be a group: the launcher
        knows other hosts than those that the ranks are on.
    """
    names = list(dict.fromkeys(host_of_rank))
    members = {name: [r for r, host in enumerate(host_of_rank) if host == name] for name in names}
    parts = max(map(len, members.values()))
    if parts > 1 and not other_launchers.ranks_can_group():
        return None
    together = {name: horovod.group(members[name]) for name in names}
    across = [
        horovod.group([ranks[part % len(ranks)] for ranks in members.values()])
        for part in range(parts)
    ]
    host = host_of_rank[rank]
    local = members[host]
    placed = [part for first in range(len(local)) for part in range(first, parts, len(local))]
    return HostGroups(
        names, names.index(host), together[host], parts,
        {part: group for part, group in enumerate(across) if rank in group.ranks},
        [int(place) for place in np.argsort(placed)],
    )  # fmt: skip


def sum_over_hosts(x_N: tf.Tensor, hosts: HostGroups, name: str, *, narrow: bool) -> tf.Tensor:
    """Sum over hosts of what all ranks of a host have alike.

    Args:
        x_N: float32.
        hosts: of the run.
        name: of the collectives; the same on all ranks.
        narrow: whether numbers travel as float16, see `wire`.
    """
    if len(hosts.names) == 1:
        return x_N
    count = x_N.shape[0]
    x_PxQ = tf.reshape(_padded(x_N, hosts.parts), [hosts.parts, -1])
    own = [
        sum_in(group, x_PxQ[part], f"{name}.{part}", narrow=narrow)
        for part, group in hosts.across.items()
    ]
    joined = horovod.concatenated_in(hosts.local, tf.stack(own), f"{name}.joined")
    if hosts.ranks > 1:
        joined = tf.gather(joined, hosts.order)
    return tf.reshape(joined, [-1])[:count]


def sum_in(group: Group, x_N: tf.Tensor, name: str, *, narrow: bool) -> tf.Tensor:
    """Sum over the ranks of a group; equal on all of them, to the bit.

    Nothing is calculated in float16: each rank gets one part from all, adds them up in float32, in
    the order of ranks, and hands its sum to the others. That sends as many bytes as a ring. Gloo
    would add float16 by software, three times as slowly, and could overflow.

    Args:
        group: the ranks.
        x_N: float32.
        name: of the collectives; the same on all ranks.
        narrow: whether numbers travel as float16.
    """
    if not narrow:
        return horovod.sum_in(group, x_N, name)
    ranks, count = len(group.ranks), x_N.shape[0]
    if ranks == 1:
        return x_N
    dealt = horovod.deal_in(group, wire.encoded(_padded(x_N, ranks * wire.BLOCK)), f"{name}.dealt")
    sum_Q = tf.reduce_sum(tf.reshape(wire.decoded(dealt), [ranks, -1]), 0)
    sums = horovod.concatenated_in(group, wire.encoded(sum_Q), f"{name}.sums")
    return wire.decoded(sums)[:count]


def _padded(x_N: tf.Tensor, multiple: int) -> tf.Tensor:
    """With zeros at its end, so that the length is a multiple."""
    return tf.pad(x_N, [[0, -x_N.shape[0] % multiple]])
