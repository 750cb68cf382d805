"""Numbers survive their way as float16, whatever their size; and what is no number does."""

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.training.gradient_sums import BLOCK, decoded, encoded

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
