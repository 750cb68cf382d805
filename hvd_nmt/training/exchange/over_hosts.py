"""Sums over the hosts of a run: in groups, each host once over the network, as float16.

A ring over R ranks sends 2 (R - 1) / R times the numbers over the network of each host. Here the
ranks of a host sum first, then the first ranks of H hosts, which hand the sum to the others of
their host. Each host sends 2 (H - 1) / H times the numbers. Letters in names are as in `model`.
"""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from hvd_nmt.training import horovod
from hvd_nmt.training.horovod import RankGroup

GROUP_BYTES = 25 << 20
"""what travels as one, as in PyTorch (Li et al. 2020, PyTorch Distributed, 5.2): each sum costs a
delay, and the first can only begin when its last gradient is there"""
BLOCK = 1024
"""numbers that have a scale in common on their way as float16; it adds two to them"""

# The exponent of a float32 is stored as 8 bits, with 127 for 2^0.
_MANTISSA_BITS = 23
_LARGEST = 127 + 14
"""stored exponent of the numbers from 2^14 up to 2^15, where the largest of a block is brought"""
_MOST_SCALE = 253
"""stored exponent of the largest scale whose inverse is a normal number"""


@dataclasses.dataclass(frozen=True)
class HostGroups:
    """Which ranks are together on a host, and which speak for their hosts, as one rank sees it."""

    names: list[str]
    """of the hosts, in the order of their first ranks"""
    index: int
    """place of this rank's host among them"""
    local: RankGroup
    """ranks of this host"""
    across: RankGroup | None
    """first ranks of all hosts; None: this rank is none of them"""


def form_host_groups(host_of_rank: Sequence[str], rank: int) -> HostGroups:
    """Form the groups, in the same order on all ranks; a collective."""
    names = list(dict.fromkeys(host_of_rank))
    members = {name: [r for r, host in enumerate(host_of_rank) if host == name] for name in names}
    together = {name: horovod.group(members[name]) for name in names}
    across = horovod.group([ranks[0] for ranks in members.values()])
    host = host_of_rank[rank]
    speaks = rank in across.ranks
    return HostGroups(names, names.index(host), together[host], across if speaks else None)


def group_count(tensors: Sequence[tf.Tensor | tf.Variable]) -> int:
    """In how many groups of about `GROUP_BYTES` Horovod is to sum gradients of these shapes."""
    return min(len(tensors), -(-sum(map(_bytes, tensors)) // GROUP_BYTES))


def grouped(tensors: Sequence[tf.Tensor | tf.Variable]) -> list[list[tf.Tensor | tf.Variable]]:
    """Neighbours up to `GROUP_BYTES`: those of one layer become ready one after another."""
    groups: list[list[tf.Tensor]] = [[]]
    for tensor in tensors:
        if groups[-1] and sum(map(_bytes, [*groups[-1], tensor])) > GROUP_BYTES:
            groups.append([])
        groups[-1].append(tensor)
    return groups


def _bytes(tensor: tf.Tensor | tf.Variable) -> int:
    return int(tensor.shape.num_elements() * tensor.dtype.size)


def joined(tensors: Sequence[tf.Tensor | tf.Variable]) -> tf.Tensor:
    """Some tensors as one vector."""
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def like(flat_N: tf.Tensor, tensors: Sequence[tf.Tensor | tf.Variable]) -> list[tf.Tensor]:
    """A vector cut into the shapes of some tensors."""
    parts = tf.split(flat_N, [tensor.shape.num_elements() for tensor in tensors])
    return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def sum_over_hosts(x_N: tf.Tensor, hosts: HostGroups, name: str, *, narrow: bool) -> tf.Tensor:
    """Sum over hosts of what all ranks of a host have alike, float32; equal on all, to the bit.

    `name` is of the collectives, the same on all ranks; `narrow`: numbers travel as float16.
    """
    if hosts.across is not None:
        if narrow:
            x_N = _narrow_sum(hosts.across, x_N, name)
        else:
            (x_N,) = horovod.sums_in(hosts.across, [x_N], name)
    return horovod.of_first_in(hosts.local, x_N, f"{name}.common")


def _narrow_sum(group: RankGroup, x_N: tf.Tensor, name: str) -> tf.Tensor:
    """Sum over the ranks of a group of float32 numbers that travel as float16.

    Nothing is calculated in float16: each rank gets one part from all, adds them up in float32, in
    the order of ranks, and hands its sum to the others. That sends as many bytes as a ring. Gloo
    would add float16 by software, three times as slowly, and could overflow.
    """
    ranks, count = len(group.ranks), x_N.shape[0]
    padded_N = tf.pad(x_N, [[0, -count % (ranks * BLOCK)]])
    dealt = horovod.deal_in(group, encoded(padded_N), f"{name}.dealt")
    part_N = tf.reduce_sum(tf.reshape(decoded(dealt), [ranks, -1]), 0)
    return decoded(horovod.concatenated_in(group, encoded(part_N), f"{name}.sums"))[:count]


def encoded(x_N: tf.Tensor) -> tf.Tensor:
    """Numbers, float32 [N], N a multiple of `BLOCK`, as they travel: float16 [G, BLOCK + 2].

    float16 ends at 65,504, and below 6e-5 it loses digits: gradients, and the steps of weights, lie
    far outside. So each block of neighbours is scaled by a power of two that puts its largest
    number just below 2^15, and the inverse travels with it, as the bits of two more float16. A
    number arrives to 11 bits, if it is not 2^29 times smaller than one of its neighbours. NaN and
    Inf stay. The result is to be moved as it is, not to be calculated with.
    """
    x_GxW = tf.reshape(x_N, [-1, BLOCK])
    largest_Gx1 = tf.reduce_max(tf.abs(x_GxW), 1, keepdims=True)
    exponent = tf.bitwise.right_shift(tf.bitcast(largest_Gx1, tf.int32), _MANTISSA_BITS)
    scale = tf.clip_by_value(127 + _LARGEST - exponent, 1, _MOST_SCALE)
    numbers_GxW = tf.cast(x_GxW * _power_of_two(scale), tf.float16)
    inverse_Gx2 = tf.reshape(tf.bitcast(_power_of_two(254 - scale), tf.float16), [-1, 2])
    return tf.concat([numbers_GxW, inverse_Gx2], 1)


def decoded(payload: tf.Tensor) -> tf.Tensor:
    """What `encoded` was given, rounded to 11 bits: float32 [G * BLOCK]."""
    numbers_GxW, inverse_Gx2 = payload[:, :BLOCK], payload[:, BLOCK:]
    inverse_Gx1 = tf.reshape(tf.bitcast(inverse_Gx2, tf.float32), [-1, 1])
    return tf.reshape(tf.cast(numbers_GxW, tf.float32) * inverse_Gx1, [-1])


def _power_of_two(stored_exponent: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tf.bitwise.left_shift(stored_exponent, _MANTISSA_BITS), tf.float32)
