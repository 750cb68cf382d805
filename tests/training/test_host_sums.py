"""Parts that ranks of a host have summed with other hosts come together in their order."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.training import horovod, other_launchers
from hvd_nmt.training.exchange import host_sums
from hvd_nmt.training.horovod import Group


@pytest.mark.parametrize("layout", ["aaabb", "aabbb", "abbbbcc"])
def test_a_vector_comes_together_as_it_was_cut(layout, monkeypatch):
    """Each host has the same vector, so any sum over hosts of a part is that part."""
    monkeypatch.setattr(horovod, "group", lambda ranks: Group(tuple(ranks), None))
    monkeypatch.setattr(other_launchers, "ranks_can_group", lambda: True)
    monkeypatch.setattr(host_sums, "sum_in", lambda group, x_N, name, narrow: x_N)
    by_rank = [host_sums.meet(layout, rank) for rank in range(len(layout))]
    x_N = tf.range(10.0)
    x_PxQ = np.pad(x_N, (0, -10 % by_rank[0].parts)).reshape(by_rank[0].parts, -1)

    def concatenated_in(group, own_RxQ, name):
        parts = [part for rank in group.ranks for part in by_rank[rank].across]
        np.testing.assert_array_equal(own_RxQ, x_PxQ[list(by_rank[number].across)])
        return tf.constant(x_PxQ[parts])

    monkeypatch.setattr(horovod, "concatenated_in", concatenated_in)
    for number, hosts in enumerate(by_rank):
        y_N = host_sums.sum_over_hosts(x_N, hosts, "sum", narrow=False)
        np.testing.assert_array_equal(y_N, x_N)
        assert hosts.ranks == layout.count(layout[number])
