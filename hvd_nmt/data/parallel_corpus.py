"""Encoded sentence pairs in memory, and their files, see `hvd_nmt.data.corpus`."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
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

    def part(self, pairs: range) -> "Sentences":
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

    def part(self, pairs: range) -> "ParallelCorpus":
        """Some pairs in a row."""
        return ParallelCorpus(self.source.part(pairs), self.target.part(pairs))


@final
class SentencesWriter:
    """Writes `<stem>.ids.npy` and `<stem>.offsets.npy` without holding the ids in memory.

    `vocabulary_size` decides the type of the ids.
    """

    def __init__(self, stem: Path, vocabulary_size: int) -> None:
        self._offsets_path = Path(f"{stem}.offsets.npy")
        self._dtype = np.dtype(np.uint16 if vocabulary_size <= 2**16 else np.int32)
        self._lengths: list[np.ndarray] = [np.zeros(1, np.int64)]
        self.tokens = 0
        self._stream = open(f"{stem}.ids.npy", "wb")  # noqa: SIM115 - closed in __exit__
        self._header_bytes = self._write_header()

    def append(self, ids: np.ndarray, lengths: np.ndarray) -> None:
        """Appends some sentences: all their ids with eos in a row, and the tokens of each."""
        self._stream.write(ids.astype(self._dtype, copy=False).tobytes())
        self._lengths.append(lengths.astype(np.int64))
        self.tokens += len(ids)

    def __enter__(self) -> "SentencesWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._stream.seek(0)
            # NumPy keeps room in the header for the length to grow, for just this use.
            if self._write_header() != self._header_bytes:
                raise RuntimeError(f"the header of {self._stream.name} has grown")
            np.save(self._offsets_path, np.cumsum(np.concatenate(self._lengths)))
        self._stream.close()

    def _write_header(self) -> int:
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self.tokens,)}
        np.lib.format.write_array_header_1_0(self._stream, header)
        return self._stream.tell()
