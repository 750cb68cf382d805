"""Sums over ranks that cross the network between hosts once.

A ring over R ranks sends 2 (R - 1) / R times the numbers over the network of each host. Here the
ranks of a host sum first, then the first ranks of H hosts, and hand the sum to the others of their
host: each host sends 2 (H - 1) / H times the numbers. N numbers, Q of them in a rank's part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from hvd_nmt.training import horovod, other_launchers
from hvd_nmt.training.exchange import wire
from hvd_nmt.training.horovod import Group


@dataclasses.dataclass(frozen=True)
class HostGroups:
    """Which ranks are together on a host, and which speak for their hosts, as one rank sees it."""

    names: list[str]
    """of the hosts, in the order of their first ranks"""
    index: int
    """place of this rank's host among them"""
    local: Group
    """ranks of this host"""
    across: Group | None
    """first ranks of all hosts; None: this rank is none of them"""


def meet(host_of_rank: Sequence[str], rank: int) -> HostGroups | None:
    """Form the groups, in the same order on all ranks; a collective.

    None where Horovod was not started so that ranks of a host can be a group: the launcher knows
    other hosts than those that the ranks are on.
    """
    names = list(dict.fromkeys(host_of_rank))
    members = {name: [r for r, host in enumerate(host_of_rank) if host == name] for name in names}
    if max(map(len, members.values())) > 1 and not other_launchers.ranks_can_group():
        return None
    together = {name: horovod.group(members[name]) for name in names}
    across = horovod.group([ranks[0] for ranks in members.values()])
    host = host_of_rank[rank]
    speaks = rank in across.ranks
    return HostGroups(names, names.index(host), together[host], across if speaks else None)


def sum_over_hosts(x_N: tf.Tensor, hosts: HostGroups, name: str, *, narrow: bool) -> tf.Tensor:
    """Sum over hosts of what all ranks of a host have alike, float32; arguments as for `sum_in`."""
    if hosts.across is not None:
        x_N = sum_in(hosts.across, x_N, name, narrow=narrow)
    return horovod.of_first_in(hosts.local, x_N, f"{name}.common")


def sum_in(group: Group, x_N: tf.Tensor, name: str, *, narrow: bool) -> tf.Tensor:
    """Sum of float32 over the ranks of a group; equal on all of them, to the bit.

    Nothing is calculated in float16: each rank gets one part from all, adds them up in float32, in
    the order of ranks, and hands its sum to the others. That sends as many bytes as a ring. Gloo
    would add float16 by software, three times as slowly, and could overflow.

    Args:
        name: of the collectives; the same on all ranks.
        narrow: whether numbers travel as float16, see `wire`.
    """
    if not narrow:
        return horovod.sum_in(group, x_N, name)
    ranks, count = len(group.ranks), x_N.shape[0]
    if ranks == 1:
        return x_N
    padded_N = tf.pad(x_N, [[0, -count % (ranks * wire.BLOCK)]])
    dealt = horovod.deal_in(group, wire.encoded(padded_N), f"{name}.dealt")
    sum_Q = tf.reduce_sum(tf.reshape(wire.decoded(dealt), [ranks, -1]), 0)
    sums = horovod.concatenated_in(group, wire.encoded(sum_Q), f"{name}.sums")
    return wire.decoded(sums)[:count]
