"""Hosts of any number of ranks sum once over the network, and all ranks get the sum."""

import pytest
import tensorflow as tf

from hvd_nmt.training import gradient_sums, horovod, islands
from hvd_nmt.training.horovod import Group


@pytest.mark.parametrize("layout", ["aaabb", "aabbb", "abbbbcc", "abc"])
def test_the_first_ranks_of_the_hosts_sum_and_hand_the_sum_on(layout, monkeypatch):
    monkeypatch.setattr(horovod, "group", lambda ranks: Group(tuple(ranks), None))
    firsts, handed = tuple(layout.index(host) for host in sorted(set(layout))), []
    monkeypatch.setattr(
        horovod, "sums_in", lambda group, tensors, name: [x * len(group.ranks) for x in tensors]
    )
    monkeypatch.setattr(
        horovod, "of_first_in", lambda group, x_N, name: handed.append(group.ranks) or x_N
    )
    for rank, host in enumerate(layout):
        hosts = gradient_sums.meet(layout, rank)
        speaks = rank in firsts
        assert hosts.across == (Group(firsts, None) if speaks else None)
        found_N = gradient_sums.sum_over_hosts(tf.ones([3]), hosts, "sum", narrow=False)
        assert found_N.numpy().tolist() == [len(firsts) if speaks else 1.0] * 3
        assert handed[-1] == tuple(i for i, other in enumerate(layout) if other == host)
        assert hosts.names[hosts.index] == host


def test_the_outer_rate_grows_with_the_square_root_of_hosts():
    assert islands.outer_rate(2) == pytest.approx(0.8)
    assert islands.outer_rate(8) == pytest.approx(1.6)
