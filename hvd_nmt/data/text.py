"""What a line of text is: one policy for training, evaluation and translation.

- A line ends at byte 0x0A and nowhere else, so that every program here counts as `wc -l` does.
  Bytes after the last 0x0A are a line too.
- A byte order mark at the very start of the file is dropped; so is one CR at the end of a line.
- Text is UTF-8; UTF-16 is refused by its mark. A wrong byte becomes U+FFFD in translation, for N
  lines in must give N lines out. Training and evaluation stop at the first one and name its place,
  because there it means a wrong file. (`prepare --not-utf8 skip` removes such pairs.)
- Control characters (C0 with TAB and NUL, DEL, C1 with NEL), the separators U+2028 and U+2029 and
  byte order marks elsewhere become one space each. Other readers take them for ends of lines.
- Spaces stay as they are; SentencePiece collapses them.
- What is compressed with gzip, bzip2, xz or zstd is unpacked, by its content; but not on
  stdin. Archives, TMX and PDF, which begin as no text does, are refused by what they are.
"""

import bz2
import codecs
import gzip
import lzma
import re
import shlex
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from backports import zstd

from hvd_nmt.common.errors import DataError

_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
UNKNOWN = "ENCODING"
"""placeholder in a command, for what only the owner of the text knows"""
ENCODINGS = "that of the text, such as WINDOWS-1252, WINDOWS-1251 or GB18030"
HEAD_BYTES = 4_096
"""first bytes of a file, which show its kind"""
BLOCK_PAIRS = 20_000
BLOCK_BYTES = 16_000_000  # lines of a megabyte must not fill the memory


class Packing(NamedTuple):
    """A kind of compression."""

    mark: re.Pattern[bytes]
    """what begins a compressed file"""
    open: Callable[..., Any]
    """as `gzip.open`"""
    to_stdout: str
    """command that unpacks"""


PACKINGS = {
    ".gz": Packing(re.compile(rb"\x1f\x8b"), partial(gzip.open, compresslevel=6), "zcat"),
    ".bz2": Packing(re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"), bz2.open, "bzcat"),
    ".xz": Packing(re.compile(rb"\xfd7zXZ\0"), lzma.open, "xzcat"),
    ".zst": Packing(re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"), zstd.open, "zstdcat"),
}
"""kinds by the usual end of a file's name"""
_TMX = rb"(\xef\xbb\xbf|\xff\xfe|\xfe\xff)?[\s\0]*<\0?(\?\0?x\0?m\0?l|t\0?m\0?x|!.*?t\0?m\0?x)"
_READ_IT = "`python -m hvd_nmt.prepare --corpus {}` reads pairs in it"
_MOST_LAYERS = 2
"""layers of packing that are undone"""
_NO_TEXT = {
    "zip archive": (re.compile(rb"PK(\x03\x04|\x05\x06)"), _READ_IT),
    "TMX file": (re.compile(_TMX, re.DOTALL), _READ_IT),
    "tar archive": (re.compile(rb".{257}ustar(\0|  \0)", re.DOTALL), "unpack it with `tar -xf {}`"),
    "7z archive": (re.compile(rb"7z\xbc\xaf\x27\x1c"), "unpack it with `7z x {}`"),
    "PDF": (re.compile(rb"%PDF-"), "take its text out with `pdftotext {}`"),
    "Parquet table": (re.compile(rb"PAR1[\x15\0]"), "write its text to a file"),
}
"""what is no text: how it begins, and what to do"""


Row = tuple[bytes, bytes, str]
"""a line pair without line feeds, and why it is no training pair, "" if it may be one"""


class LineBlock(NamedTuple):
    """Some line pairs as they are in the files, without their line feeds."""

    lines: tuple[list[bytes], list[bytes]]
    """source and target lines"""
    first: int
    """number of its first line in the file, from 1"""
    rules: Sequence[str] = ()
    """why each is no training pair, "" if it may be one; (): all may"""

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
    return map(plain, decoded(raw_lines(source, name), 1, lenient, name))


def count_lines(path: Path) -> int:
    """How many lines `read_lines` gives, none decoded; raises as it does for the file."""
    return sum(1 for _ in raw_lines(path, str(path)))


def pair_blocks(source_path: str | Path, target_path: str | Path) -> Iterator[LineBlock]:
    """Yields the line pairs of two line-aligned files in blocks, for other processes to decode.

    DataError: a file cannot be read, is empty, or (known only at the end) has fewer lines.
    """
    names = str(source_path), str(target_path)
    return aligned([raw_lines(Path(name), name) for name in names], names)


def aligned(sides: Sequence[Iterable[bytes]], names: Sequence[str]) -> Iterator[LineBlock]:
    """The lines of source and target in blocks; raises as `pair_blocks`."""
    counts = [0, 0]

    def rows() -> Iterator[Row]:
        for source, target in zip_longest(*sides):
            counts[0] += source is not None
            counts[1] += target is not None
            if source is not None and target is not None:
                yield source.removesuffix(b"\n"), target.removesuffix(b"\n"), ""

    yield from in_blocks(rows())
    for name, count in zip(names, counts, strict=True):
        if not count:
            raise DataError(f"{name} is empty: it needs one sentence per line.")
    if counts[0] != counts[1]:
        raise DataError(
            f"{names[0]} has {counts[0]} lines, but {names[1]} has {counts[1]}: line i of "
            "one must be the translation of line i of the other."
        )


def in_blocks(rows: Iterable[Row]) -> Iterator[LineBlock]:
    """Line pairs in blocks of at most `BLOCK_PAIRS`, and of about `BLOCK_BYTES`."""
    block, first, n_bytes = list[Row](), 1, 0
    for row in rows:
        block.append(row)
        n_bytes += len(row[0]) + len(row[1])
        if len(block) == BLOCK_PAIRS or n_bytes > BLOCK_BYTES:
            yield _line_block(block, first)
            block, first, n_bytes = [], first + len(block), 0
    if block:
        yield _line_block(block, first)


def _line_block(rows: Sequence[Row], first: int) -> LineBlock:
    sources, targets, rules = map(list, zip(*rows, strict=True))
    return LineBlock((sources, targets), first, rules if any(rules) else ())


def plain(line: str) -> str:
    """A line with each control character, separator and byte order mark replaced by a space."""
    # isprintable is false for every character of _CONTROLS, and faster than the search.
    return line if line.isprintable() else _CONTROLS.sub(" ", line)


def raw_lines(source: str | Path | Iterable[bytes], name: str) -> Iterator[bytes]:
    """The lines as they are, with their ends, without the byte order mark; raises as above."""
    given: Any = opened(Path(source)) if isinstance(source, (str, Path)) else nullcontext(source)
    with _readable(name), given as stream:
        lines = iter(stream)
        head = stream.peek(HEAD_BYTES) if hasattr(stream, "peek") else b""
        first = next(lines, b"")
        _require_text(head or first, name)
        # Nothing is left of a file that holds a byte order mark and nothing else.
        yield from chain(filter(None, [first.removeprefix(codecs.BOM_UTF8)]), lines)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A file's bytes, unpacked if need be, as a stream with `peek`; DataError: as `read_lines`."""
    with _readable(str(path)), ExitStack() as stack:
        stream: Any = stack.enter_context(path.open("rb"))
        for _ in range(_MOST_LAYERS):
            if packing := _packing(stream.peek(HEAD_BYTES)):
                stream = stack.enter_context(packing.open(stream, "rb"))
        yield stream


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"Cannot read {name}: {reason}. Check the path and the file.") from None


def _require_text(head: bytes, name: str) -> None:
    for kind, (mark, remedy) in _NO_TEXT.items():
        if mark.match(head):
            raise DataError(f"{name} is a {kind}: {remedy.format(shlex.quote(name))}.")
    if head.startswith(_UTF16):
        raise DataError(
            f"{name} is UTF-16, not UTF-8: convert it with `{to_utf8('UTF-16', name)}`, and give "
            "new.txt."
        )
    if _packing(head):
        raise DataError(f"{name} is compressed: unpack it, or give a file.")


def is_a(kind: str, head: bytes) -> bool:
    """Whether a file that begins so is a "zip archive" or a "TMX file"."""
    return bool(_NO_TEXT[kind][0].match(head))


def _packing(head: bytes) -> Packing | None:
    return next((kind for kind in PACKINGS.values() if kind.mark.match(head)), None)


def to_utf8(encoding: str, name: str) -> str:
    """The command that converts a file, plain or compressed; FILE stands for standard input."""
    convert, path = f"iconv -f {encoding} -t UTF-8", Path(name)
    if not path.is_file():
        return f"{convert} FILE > new.txt"
    with path.open("rb") as stream:
        packing = _packing(stream.peek(HEAD_BYTES))
        if is_a("zip archive", stream.peek(HEAD_BYTES)):
            return f"unzip -p {shlex.quote(name)} FILE | {convert} > new.txt"
    if packing:
        return f"{packing.to_stdout} {shlex.quote(name)} | {convert} > new.txt"
    return f"{convert} {shlex.quote(name)} > new.txt"


def decoded(lines: Iterable[bytes], first: int, lenient: bool, name: str) -> Iterator[str]:
    """Lines without ends, numbered from `first` in errors of `name`; raises as `read_lines`."""
    for number, raw in enumerate(lines, start=first):
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield raw.decode("utf-8", "replace" if lenient else "strict")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}: byte 0x{raw[error.start]:02x} at column {error.start + 1} "
                f"is not UTF-8. Convert the file with `{to_utf8(UNKNOWN, name)}` and give "
                f"new.txt, or remove the line from both files. {UNKNOWN} is {ENCODINGS}."
            ) from None
