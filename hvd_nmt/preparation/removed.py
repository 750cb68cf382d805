"""The training pairs that cleaning removes, kept in the prepared directory: `removed.tsv.gz`.

One pair a line: rule, line number from 1, source, target, TAB between; duplicates and sentences of
other parts come last. The text is as read, but wrong bytes are U+FFFD and controls are spaces.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hvd_nmt.data.text import plain

_STEM, _ENDING = "removed", "tsv.gz"

RemovedPair = tuple[int, str, tuple[str, str]]
"""line number, rule, (source, target)"""


def name(corpus: str | None = None) -> str:
    """Name of the file, of the only corpus or of one of several."""
    return ".".join(filter(None, (_STEM, corpus, _ENDING)))


def is_name(file: str) -> bool:
    """Whether a file is called so."""
    return file.startswith(f"{_STEM}.") and file.endswith(f".{_ENDING}")


@contextmanager
def writing(path: Path | None) -> Iterator[Callable[[Iterable[RemovedPair]], None]]:
    """Yields a function that writes pairs to the file; without a path it passes them over."""
    if path is None:
        yield lambda pairs: None
        return
    with (
        open(path, "wb") as stream,
        # Without a name and a time, which gzip would put into the bytes.
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, compresslevel=6, mtime=0) as packed,
    ):
        yield lambda pairs: packed.writelines(_line(*pair).encode() for pair in pairs)


def _line(number: int, rule: str, pair: tuple[str, str]) -> str:
    return "\t".join((rule, str(number), *map(plain, pair))) + "\n"
