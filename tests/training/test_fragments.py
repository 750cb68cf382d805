"""Weights in parts of equal size: all of them, each once, read and written as vectors."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.training.exchange import fragments

SHAPES = [(900, 16), (16,), (16, 48), (7,), (33, 16)]
TOTAL = sum(int(np.prod(shape)) for shape in SHAPES)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 50])
def test_fragments_hold_every_row_once_and_are_of_equal_size(count):
    found = fragments.cut(SHAPES, count)
    rows = sorted(piece for fragment in found for piece in fragment)
    for number, shape in enumerate(SHAPES):
        of_weight = [(first, last) for weight, first, last in rows if weight == number]
        assert of_weight[0][0] == 0
        assert of_weight[-1][1] == shape[0]
        assert [last for _, last in of_weight[:-1]] == [first for first, _ in of_weight[1:]]
    sizes = [
        sum((p.last - p.first) * int(np.prod(SHAPES[p.weight][1:])) for p in fragment)
        for fragment in found
    ]
    assert len(found) == count
    assert np.abs(np.array(sizes) - TOTAL / count).max() <= 2 * 48  # rows of two neighbours


def test_more_fragments_than_rows_are_not_made():
    assert len(fragments.cut([(3, 1000)], 10)) == 3


def test_what_is_read_and_written_back_is_the_same():
    weights = [tf.Variable(np.random.default_rng(1).normal(size=shape)) for shape in SHAPES]
    before = [weight.numpy() for weight in weights]
    found = fragments.cut(SHAPES, 3)
    vectors = [fragments.read(weights, fragment) for fragment in found]
    for weight in weights:
        weight.assign(tf.zeros_like(weight))
    for fragment, vector in zip(found, vectors, strict=True):
        fragments.write(weights, fragment, vector)
    for weight, values in zip(weights, before, strict=True):
        assert np.array_equal(weight.numpy(), values)
