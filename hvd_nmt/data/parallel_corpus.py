"""Encoded sentence pairs, whatever the files behind them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np


@final
@dataclass(frozen=True, eq=False)
class Sentences:
    """One side of a corpus, encoded: flat ids and where each sentence begins.

    Attributes:
        ids: uint16 or int32 [tokens], all sentences in a row, each ending with eos (1), no bos.
        offsets: int64 [sentences + 1], sentence i is ids[offsets[i] : offsets[i + 1]].
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """The ids of one sentence, 0 <= index < len."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def part(self, pairs: range) -> Sentences:
        """Some sentences in a row."""
        return Sentences(self.ids, self.offsets[pairs.start : pairs.stop + 1])

    @cached_property
    def lengths(self) -> np.ndarray:
        """int32 [sentences], tokens of each sentence, eos counted."""
        return np.diff(self.offsets).astype(np.int32)


@final
@dataclass(frozen=True, eq=False)
class ParallelCorpus:
    """Sentence pairs: source i belongs to target i."""

    source: Sentences
    target: Sentences

    def __post_init__(self) -> None:
        if len(self.source) != len(self.target):
            raise ValueError(f"{len(self.source)} source and {len(self.target)} target sentences")

    def __len__(self) -> int:
        return len(self.source)

    def part(self, pairs: range) -> ParallelCorpus:
        """Some pairs in a row."""
        return ParallelCorpus(self.source.part(pairs), self.target.part(pairs))
