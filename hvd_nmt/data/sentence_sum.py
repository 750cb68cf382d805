"""How many sentences, and which: a count and a digest that add up, whatever order they come in.

The digest of some sentences is the sum, modulo 2^64, of a 64-bit mix of each one's index in the
corpus. So the sum over the ranks of a step, over the steps of an epoch and over the starts of a run
is that of the whole corpus if each sentence came exactly once, and another one if any is missing or
doubled (two sets of the same sum are as likely as two equal random numbers of 64 bits).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_nmt.data.mixing import mixed

LIMB_BITS = 8
LIMBS = 64 // LIMB_BITS
LENGTH = 1 + LIMBS
"""numbers of a vector: the count, and the limbs of the digest, the lowest first"""
_MODULUS = 1 << 64


@dataclass(frozen=True)
class SentenceSum:
    """A number of sentences with their digest."""

    count: int = 0
    """sentences, each as often as it came"""
    digest: int = 0
    """0 <= digest < 2^64"""

    def plus(self, other: SentenceSum) -> SentenceSum:
        """These and others together."""
        return SentenceSum(self.count + other.count, (self.digest + other.digest) % _MODULUS)

    def record(self) -> list[Any]:
        """As it stands in metrics.jsonl: JSON has no integers of 64 bits that all readers keep."""
        return [self.count, f"{self.digest:016x}"]

    @classmethod
    def recorded(cls, record: Sequence[Any]) -> SentenceSum:
        """What `record` has written."""
        count, digest = record
        return cls(int(count), int(digest, 16))


def of(indices: np.ndarray) -> SentenceSum:
    """The sum of some sentences.

    Args:
        indices: int64, their places in the corpus.
    """
    return SentenceSum(len(indices), int(mixed(indices.astype(np.uint64)).sum(dtype=np.uint64)))


def vector(sentences: SentenceSum) -> np.ndarray:
    """Numbers whose sum over ranks tells the sum of their sentences: float32 [LENGTH].

    float32 holds whole numbers to 2^24, so the limbs are exact on up to 65,536 ranks, and so is the
    count while a step has fewer than 16 million sentences.
    """
    mask = (1 << LIMB_BITS) - 1
    limbs = [sentences.digest >> LIMB_BITS * place & mask for place in range(LIMBS)]
    return np.array([sentences.count, *limbs], np.float32)


def from_vector(values: Sequence[float]) -> SentenceSum:
    """The sentences of all ranks, from the sum of their vectors."""
    count, *limbs = (int(value) for value in values)
    digest = sum(limb << LIMB_BITS * place for place, limb in enumerate(limbs))
    return SentenceSum(count, digest % _MODULUS)
