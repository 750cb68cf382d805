"""Encoded sentences written to a prepared data directory, see `hvd_nmt.data.corpus`."""

from __future__ import annotations

from pathlib import Path
from typing import final

import numpy as np


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

    def __enter__(self) -> SentencesWriter:
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
