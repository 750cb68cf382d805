"""What a line of text is: one policy for training, evaluation and translation.

- A line ends at byte 0x0A and nowhere else, so that every program here counts as `wc -l` does.
  Bytes after the last 0x0A are a line too.
- A byte order mark at the very start of the file is dropped; so is one CR at the end of a line.
- Text is UTF-8; UTF-16 is refused by its mark. A wrong byte becomes U+FFFD in translation, for N
  lines in must give N lines out. Training and evaluation stop at the first one and name its place,
  because there it means a wrong file. (`prepare --not-utf8 skip` leaves such pairs out.)
- Control characters (C0 with TAB and NUL, DEL, C1 with NEL), the separators U+2028 and U+2029 and
  byte order marks elsewhere become one space each: other readers take them for ends of lines.
- Spaces stay as they are; SentencePiece collapses them.
- A file named .gz, .bz2 or .xz is unpacked; what is compressed and not named so is refused.
"""

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from hvd_nmt.common.errors import DataError

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_UNPACK = {".gz": "zcat", ".bz2": "bzcat", ".xz": "xzcat"}
_PACKED = (b"\x1f\x8b", b"BZh91AY&SY", b"\xfd7zXZ\x00")
_BLOCK_PAIRS = 20_000
_BLOCK_BYTES = 16_000_000  # lines of a megabyte must not fill the memory


class Block(NamedTuple):
    """Some line pairs as they are in the files, without their line feeds."""

    lines: tuple[list[bytes], list[bytes]]
    """of source and target"""
    first: int
    """number of its first line in the file, from 1"""

    @property
    def pairs(self) -> int:
        return len(self.lines[0])


def read_lines(
    source: str | Path | Iterable[bytes], lenient: bool = False, name: str | None = None
) -> Iterator[str]:
    """Yields the lines of a file or of an iterable of raw lines, without their ends.

    Args:
        source: a path, or lines such as `sys.stdin.buffer`, which is not closed.
        lenient: replace wrong bytes by U+FFFD instead of raising.
        name: what to call the source in messages; by default its path.

    DataError: the file cannot be read, is UTF-16, or (unless lenient) is not UTF-8.
    """
    name = name or (str(source) if isinstance(source, (str, Path)) else "the input")
    return map(plain, decoded(_raw_lines(source, name), 1, lenient, name))


def count_lines(path: Path) -> int:
    """How many lines `read_lines` gives, none decoded; raises as it does for the file."""
    return sum(1 for _ in _raw_lines(path, str(path)))


def pair_blocks(source_path: str | Path, target_path: str | Path) -> Iterator[Block]:
    """Yields the line pairs of two line-aligned files in blocks, for other processes to decode.

    DataError: a file cannot be read, is empty, or (known only at the end) has fewer lines.
    """
    paths = source_path, target_path
    lines: tuple[list[bytes], list[bytes]] = [], []
    counts, first, n_bytes = [0, 0], 1, 0
    for source, target in zip_longest(*(_raw_lines(path, str(path)) for path in paths)):
        counts[0] += source is not None
        counts[1] += target is not None
        if source is not None and target is not None:
            lines[0].append(source.removesuffix(b"\n"))
            lines[1].append(target.removesuffix(b"\n"))
            n_bytes += len(source) + len(target)
        if len(lines[0]) == _BLOCK_PAIRS or n_bytes > _BLOCK_BYTES:
            yield Block(lines, first)
            lines, first, n_bytes = ([], []), min(counts) + 1, 0
    if lines[0]:
        yield Block(lines, first)
    for path, count in zip(paths, counts, strict=True):
        if not count:
            raise DataError(f"{path} is empty: it needs one sentence per line.")
    if counts[0] != counts[1]:
        raise DataError(
            f"{source_path} has {counts[0]} lines, but {target_path} has {counts[1]}: line i of "
            "one must be the translation of line i of the other."
        )


def plain(line: str) -> str:
    """A line with each control character, separator and byte order mark replaced by a space."""
    # isprintable is false for every character of _CONTROLS, and faster than the search.
    return line if line.isprintable() else _CONTROLS.sub(" ", line)


def _raw_lines(source: str | Path | Iterable[bytes], name: str) -> Iterator[bytes]:
    """The lines as they are, with their ends, without the byte order mark."""
    opened: Any = nullcontext(source)
    try:
        if isinstance(source, (str, Path)):
            opened = _OPENERS.get(Path(source).suffix.lower(), open)(source, "rb")
        with opened as stream:
            lines = iter(stream)
            first = next(lines, b"")
            if first.startswith(_UTF16):
                raise DataError(
                    f"{name} is UTF-16, not UTF-8: convert it with `{to_utf8('UTF-16', name)}`, "
                    "and give new.txt."
                )
            if first.startswith(_PACKED):
                raise DataError(f"{name} is compressed: unpack it, or give a .gz, .bz2 or .xz.")
            # Nothing is left of a file that holds a byte order mark and nothing else.
            yield from chain(filter(None, [first.removeprefix(codecs.BOM_UTF8)]), lines)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"Cannot read {name}: {reason}. Check the path and the file.") from None


def to_utf8(encoding: str, name: str) -> str:
    """The command that converts a file, plain or compressed; FILE stands for standard input."""
    convert = f"iconv -f {encoding} -t UTF-8"
    if unpack := _UNPACK.get(Path(name).suffix.lower()):
        return f"{unpack} {name} | {convert} > new.txt"
    return f"{convert} {name if Path(name).is_file() else 'FILE'} > new.txt"


def decoded(lines: Iterable[bytes], first: int, lenient: bool, name: str) -> Iterator[str]:
    """Lines without ends, numbered from `first` in errors of `name`; raises as `read_lines`."""
    for number, raw in enumerate(lines, start=first):
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield raw.decode("utf-8", "replace" if lenient else "strict")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}: byte 0x{raw[error.start]:02x} at column {error.start + 1} "
                f"is not UTF-8. Convert the file with `{to_utf8('LATIN1', name)}` and give "
                "new.txt, or remove the line from both files."
            ) from None
