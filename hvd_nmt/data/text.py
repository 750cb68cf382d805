"""What a line of text is: one policy for training, evaluation and translation.

- A line ends at byte 0x0A and nowhere else, so that every program here counts as `wc -l` does.
  Bytes after the last 0x0A are a line too.
- A byte order mark at the very start of the file is dropped; so is one CR at the end of a line.
- Text is UTF-8. Reading is strict for training and evaluation, where a wrong byte means a wrong
  file; it is lenient for translation, where N lines in must give N lines out: there a wrong byte
  becomes U+FFFD.
- Control characters (C0 with TAB and NUL, DEL, C1 with NEL) and the separators U+2028 and U+2029
  become one space each. They mean nothing to a translator, SentencePiece skips training lines that
  hold NUL, and each of them is a line end to some other reader of the files written from here.
- Spaces stay as they are; SentencePiece collapses them.
- A name that ends in `.gz` is a gzip file.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import IO

from hvd_nmt.errors import DataError

_BOM = b"\xef\xbb\xbf"
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def read_lines(
    source: str | Path | IO[bytes], lenient: bool = False, name: str | None = None
) -> Iterator[str]:
    """Yields the lines of a file or of an open binary stream, without their ends.

    Args:
        source: a path (decompressed if it ends in .gz), or a binary stream such as
            `sys.stdin.buffer`, which is not closed.
        lenient: replace wrong bytes by U+FFFD instead of raising.
        name: what to call the source in messages; by default its path.

    Raises:
        DataError: the file cannot be read, or (unless lenient) is not UTF-8.
    """
    if not isinstance(source, (str, Path)):
        yield from _lines(source, lenient, name or "the input")
        return
    path = Path(source)
    name = name or str(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as stream:
            yield from _lines(stream, lenient, name)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{name} is not a whole gzip file ({error}): fetch it again.") from None
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}.") from None


def read_pairs(source_path: str | Path, target_path: str | Path) -> Iterator[tuple[str, str]]:
    """Yields the line pairs of two line-aligned files.

    Raises:
        DataError: a file cannot be read, is empty, is not UTF-8, or the files have different
            numbers of lines. The last is known only at the end: use nothing before that.
    """
    counts = [0, 0]
    for pair in zip_longest(read_lines(source_path), read_lines(target_path)):
        for side, line in enumerate(pair):
            counts[side] += line is not None
        if None not in pair:
            yield pair
    for path, count in zip((source_path, target_path), counts, strict=True):
        if not count:
            raise DataError(f"{path} is empty: it needs one sentence per line.")
    if counts[0] != counts[1]:
        raise DataError(
            f"{source_path} has {counts[0]} lines, but {target_path} has {counts[1]}: line i of "
            "one must be the translation of line i of the other."
        )


def is_blank(line: str) -> bool:
    """Whether a line holds nothing to translate: only white space, or nothing at all."""
    return not line or line.isspace()


def _lines(stream: Iterable[bytes], lenient: bool, name: str) -> Iterator[str]:
    for number, raw in enumerate(stream, start=1):
        if number == 1:
            raw = raw.removeprefix(_BOM)
            if not raw:  # a file that holds a byte order mark and nothing else
                return
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            line = raw.decode("utf-8", "replace" if lenient else "strict")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}: byte 0x{raw[error.start]:02x} at column {error.start + 1} "
                "is not UTF-8: convert the file first, for example with "
                "`iconv -f LATIN1 -t UTF-8`, or remove the line from both files."
            ) from None
        # isprintable is false for every character of _CONTROLS, and faster than the search.
        yield line if line.isprintable() else _CONTROLS.sub(" ", line)
