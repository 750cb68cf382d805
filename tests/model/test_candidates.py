"""The choice among next tokens; its rules are tested together with the search."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.model.candidates import drawn, top_k
from hvd_nmt.model.decoding import Decoding


@pytest.mark.parametrize("vocabulary_size", [8000, 32768, 97])
@pytest.mark.parametrize("k", [1, 8])
def test_top_k_equals_tensorflow(vocabulary_size, k):
    x = tf.random.stateless_normal([20, vocabulary_size], seed=[1, k])
    values, indices = top_k(x, k)
    expected_values, expected_indices = tf.math.top_k(x, k)
    np.testing.assert_array_equal(values, expected_values)
    np.testing.assert_array_equal(indices, expected_indices)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0, 1, 1, 2, 3, 3]),
        ({"top_k": 2}, [3, 3, 3, 3, 1, 1]),  # 0.4 and 0.3, renormalised: 3 below 4/7
        # 0.4, 0.3 and 0.2, which passes 0.75; of 0.9 in all: 3 below 0.44, 1 below 0.78
        ({"top_p": 0.75}, [3, 3, 3, 1, 1, 2]),
        ({"top_p": 0.4}, [3] * 6),
        ({"temperature": 0.5}, [1, 1, 2, 3, 3, 3]),  # of squares: 0.01, 0.09, 0.04, 0.16 of 0.3
        ({"top_k": 3, "top_p": 0.5}, [3, 3, 3, 3, 1, 1]),
    ],
)
def test_a_draw_is_a_place_in_the_cumulative_probability(options, expected):
    p_V = np.array([0.1, 0.3, 0.2, 0.4], np.float32)
    draw_N = np.array([0.05, 0.15, 0.35, 0.55, 0.65, 0.99], np.float32)
    logits_NxV = np.log(np.repeat(p_V[None], 6, 0))
    found_N = drawn(tf.constant(logits_NxV), tf.constant(draw_N), Decoding(sample=True, **options))
    assert found_N.numpy().tolist() == expected


def test_what_is_not_allowed_is_never_drawn():
    logits_NxV = np.full((100, 4), -np.inf, np.float32)
    logits_NxV[:, [1, 3]] = 0.5
    draw_N = np.linspace(0, 1 - 1e-7, 100, dtype=np.float32)
    draw_N[-1] = np.nextafter(np.float32(1), np.float32(0))
    found = drawn(tf.constant(logits_NxV), tf.constant(draw_N), Decoding(sample=True)).numpy()
    assert set(found.tolist()) == {1, 3}
