"""Hosts of any number of ranks sum once over the network, and numbers survive their way there."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.checkpoints.state import adam_state
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.training import exchange as exchanges
from hvd_nmt.training import horovod
from hvd_nmt.training.exchange import islands, over_hosts
from hvd_nmt.training.exchange.over_hosts import BLOCK, decoded, encoded
from hvd_nmt.training.horovod import RankGroup


@pytest.mark.parametrize("layout", ["aaabb", "aabbb", "abbbbcc", "abc"])
def test_the_first_ranks_of_the_hosts_sum_and_hand_the_sum_on(layout, monkeypatch):
    monkeypatch.setattr(horovod, "group", lambda ranks: RankGroup(tuple(ranks), None))
    firsts, handed = tuple(layout.index(host) for host in sorted(set(layout))), []
    monkeypatch.setattr(
        horovod, "sums_in", lambda group, tensors, name: [x * len(group.ranks) for x in tensors]
    )
    monkeypatch.setattr(
        horovod, "of_first_in", lambda group, x_N, name: handed.append(group.ranks) or x_N
    )
    for rank, host in enumerate(layout):
        hosts = over_hosts.form_host_groups(layout, rank)
        speaks = rank in firsts
        assert hosts.across == (RankGroup(firsts, None) if speaks else None)
        found_N = over_hosts.sum_over_hosts(tf.ones([3]), hosts, "sum", narrow=False)
        assert found_N.numpy().tolist() == [len(firsts) if speaks else 1.0] * 3
        assert handed[-1] == tuple(i for i, other in enumerate(layout) if other == host)
        assert hosts.names[hosts.index] == host


def test_the_outer_rate_grows_with_the_square_root_of_hosts():
    assert islands.outer_rate(2, "adam") == pytest.approx(0.8)
    assert islands.outer_rate(8, "muon") == pytest.approx(2.0)


def exchanged(monkeypatch, optimizer, sums):
    """An exchange of this host's way (1, 2, 3) of each weight with that of another; the weights."""
    monkeypatch.setattr(over_hosts, "GROUP_BYTES", 12)
    monkeypatch.setattr(islands, "sum_over_hosts", sums)
    both = over_hosts.HostGroups(["a", "b"], 0, RankGroup((0,), None), None)
    weights = [tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([3]))]
    exchange = exchanges.of(Exchange("islands", 4), both, optimizer)
    exchange.begin(weights, adam_state({"a": weights[0]}))
    for weight in weights:
        weight.assign([1.0, 2.0, 3.0])
    with contextlib.suppress(tf.errors.InvalidArgumentError):
        exchange.end_step(4, [4.0, 4.0])
    return [float(variable[0]) for variable in (*weights, *exchange.common(weights))]


def test_an_exchange_that_fails_in_its_last_group_moves_no_weight(monkeypatch):
    def sums(x_N, groups, name, narrow):
        return tf.debugging.check_numerics(x_N if name == "weights_0" else x_N / 0.0, "lost")

    assert exchanged(monkeypatch, "adam", sums) == [1, 1, 0, 0]


@pytest.mark.parametrize(("optimizer", "moved"), [("adam", 0.8), ("muon", 1.0)])
def test_common_weights_move_by_the_optimizer(monkeypatch, optimizer, moved):
    seen = exchanged(monkeypatch, optimizer, lambda x_N, *_, narrow: x_N)
    assert seen == [pytest.approx(moved)] * 4


NORMAL = np.random.default_rng(1).normal(size=3 * BLOCK).astype(np.float32)


def there_and_back(x):
    return decoded(encoded(tf.constant(x, tf.float32))).numpy()


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e-9, 1e30, 1e-30, 3.4e38 / 8])
def test_the_scale_does_not_matter(scale):
    x = NORMAL * np.float32(scale)
    large = np.abs(NORMAL) > 1e-3
    assert np.abs(there_and_back(x)[large] / x[large] - 1).max() < 2**-10.9


def test_blocks_of_very_different_size_do_not_disturb_each_other():
    scales = np.repeat(np.array([1e9, 1e-9, 1.0], np.float32), BLOCK)
    assert there_and_back(NORMAL * scales) == pytest.approx(NORMAL * scales, rel=1e-3, abs=1e-14)


def test_whole_numbers_zeros_and_powers_of_two_are_exact():
    x = np.zeros(BLOCK, np.float32)
    x[:9] = [1, -3, 2047, 0.5, 2**-10, 0, -0.25, 7, 1024]
    assert there_and_back(x).tolist() == x.tolist()
    x[0] = np.nextafter(2048, 0, dtype=np.float32)  # which is rounded up to the power
    assert there_and_back(x)[0] == 2048
    assert not there_and_back(np.zeros(BLOCK)).any()
    payload = encoded(tf.constant(NORMAL))  # half the bytes, and two numbers a block
    assert (payload.dtype, payload.shape) == (tf.float16, [3, BLOCK + 2])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_stay_what_they_are(value):
    x = NORMAL.copy()
    x[5] = value
    y = there_and_back(x)
    assert np.isnan(y[5]) if np.isnan(value) else y[5] == value
    assert np.isfinite(y[BLOCK:]).all()
