"""Estimates with their intervals, and the statistics behind them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, correlation


@dataclass(frozen=True)
class Estimate:
    """A number with its interval."""

    value: float
    low: float
    high: float


def pearson(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    """Correlation of pairs with its 95 % interval by Fisher's transformation.

    None for fewer than 4, or where one side does not vary.
    """
    n = len(pairs)
    if n < 4 or any(min(side) == max(side) for side in zip(*pairs, strict=True)):
        return None
    r = max(-1.0, min(1.0, correlation(*zip(*pairs, strict=True))))
    z = math.atanh(max(-0.999999, min(0.999999, r)))
    half = 1.96 / math.sqrt(n - 3)
    return Estimate(r, math.tanh(z - half), math.tanh(z + half))


def student_t(probability: float, degrees: int) -> float:
    """Student's t below which a share of the distribution lies, such as 0.975.

    Exact for two degrees of freedom, to 0.2 % from three on.
    Source: Abramowitz and Stegun 1964, 26.7.5, the expansion in 1/degrees.
    """
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
