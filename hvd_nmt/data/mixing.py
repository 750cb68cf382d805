"""Numbers as random-looking numbers, the same everywhere."""

import numpy as np

STRIDE = np.uint64(0x9E3779B97F4A7C15)
"""2^64 / golden ratio, odd"""


def mixed(x: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64: a bijection in which each bit depends on all.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".

    Args:
        x: uint64.
    """
    x = x + STRIDE
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
