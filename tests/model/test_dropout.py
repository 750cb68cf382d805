"""Dropout masks: the right share, the right expectation, and a function of the seed alone."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.model.dropout import SITES_PER_STEP, Dropout, no_dropout, step_seed

ONES = tf.ones([997, 101])


def seed_of(seed=1, step=0, rank=0):
    return step_seed(seed, tf.constant(step, tf.int64), rank)


def mask(seed_2, sites=0, shape=(64, 33), rate=0.5):
    """The mask of the site after `sites` others."""
    drop = Dropout(seed_2)
    for _ in range(sites):
        drop(tf.ones([3]), rate)
    return drop(tf.ones(shape), rate).numpy() != 0


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.999])
def test_the_share_dropped_is_the_rate_and_the_expectation_is_kept(rate):
    y = Dropout(seed_of())(ONES, rate).numpy()
    count, exact = y.size, round(rate * 65536) / 65536
    assert abs(exact - rate) < 2**-17
    bound = 5 * (exact * (1 - exact) / count) ** 0.5  # five standard deviations
    assert abs(np.mean(y == 0) - exact) < bound
    np.testing.assert_allclose(np.unique(y), [0, 1 / (1 - exact)], rtol=1e-6)
    assert abs(y.mean() - 1) < bound / (1 - exact)


def test_every_unit_of_a_word_of_four_is_dropped_alike_and_alone():
    dropped = (Dropout(seed_of())(tf.ones([200_000]), 0.3).numpy() == 0).reshape(-1, 4)
    np.testing.assert_allclose(dropped.mean(0), 0.3, atol=5 * (0.21 / 50_000) ** 0.5)
    assert np.abs(np.corrcoef(dropped.T) - np.eye(4)).max() < 5 / 50_000**0.5
    neighbours = np.corrcoef(dropped[:-1].ravel(), dropped[1:].ravel())[0, 1]
    assert abs(neighbours) < 5 / 200_000**0.5


@pytest.mark.parametrize(
    ("other", "sites"),
    [({"seed": 2}, 0), ({"step": 1}, 0), ({"step": 1_000_000}, 0), ({"rank": 1}, 0), ({}, 1),
     ({"step": 1}, 1)],
)  # fmt: skip
def test_another_seed_step_rank_or_site_gives_an_independent_mask(other, sites):
    found = mask(seed_of(**other), sites=sites)
    assert abs(np.mean(mask(seed_of()) == found) - 0.5) < 5 * 0.5 / found.size**0.5


def test_seeds_of_any_size_are_int32():
    for seed in (0, 2**31, 10**12):
        for step in (0, 2**31, 2**40):
            found = seed_of(seed, step, rank=7)
            assert found.dtype == tf.int32
            assert np.all(found.numpy() >= 0)
            # Room for every site of the step.
            assert int(found[1]) + SITES_PER_STEP - 1 < 2**31


def test_rate_0_is_the_identity_and_takes_no_site():
    drop = Dropout(seed_of())
    assert drop(ONES, 0.0) is ONES
    np.testing.assert_array_equal(drop(tf.ones([64, 33]), 0.5).numpy() != 0, mask(seed_of()))
    assert no_dropout(ONES, 0.5) is ONES


@pytest.mark.both_tensorflows
@pytest.mark.parametrize("shape", [(7, 5), (7, 3, 11), (7, 2, 3, 3), (7 * 4, 9)])
@pytest.mark.parametrize("edges", [(0, 3, 7), (0, 1, 2, 5, 7)])
def test_slices_of_a_batch_get_the_rows_of_its_mask(shape, edges):
    """So the number of micro-batches does not change what is dropped. 28 rows are 7 of four."""
    x = tf.ones(shape)
    parts = []
    for first, end in itertools.pairwise(edges):
        drop = Dropout(
            seed_of(), (tf.constant(first, tf.int64), tf.constant(end - first, tf.int64))
        )
        each = shape[0] // 7
        parts.append(drop(x[first * each : end * each], 0.5))
    np.testing.assert_array_equal(tf.concat(parts, 0), Dropout(seed_of())(x, 0.5))


# x: dropped.
GOLDEN = ["..xx.x.xx..x.x..", "xxxxxx....xxx.x.", ".....xx.xxx.x...", "xx...x...x..xxxx"]


def test_the_first_mask_is_the_same_on_every_machine():
    # Golden: a change of these bits makes runs of older versions impossible to resume bit by bit.
    kept = Dropout(seed_of(seed=1, step=2, rank=3))(tf.ones([4, 16]), 0.5).numpy() != 0
    assert ["".join("x."[int(unit)] for unit in row) for row in kept] == GOLDEN


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_gradient_passes_the_same_mask(dtype):
    x = tf.cast(tf.random.stateless_normal([8, 50], [1, 2]), dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = Dropout(seed_of())(x, 0.5)
    gradient = tape.gradient(y, x)
    assert y.dtype == gradient.dtype == dtype
    np.testing.assert_array_equal(gradient.numpy() != 0, mask(seed_of(), shape=(8, 50)))
    np.testing.assert_array_equal(y.numpy(), (x * gradient).numpy())
