"""One file with both sides: TSV, TMX, or a zip archive with one of them, or with the two sides.

Its content decides its kind. It is read as a stream, plain or compressed.
"""

import csv
import shlex
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from lxml import etree

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.units import count
from hvd_nmt.data import language, text
from hvd_nmt.data.text import LineBlock, Row, is_a, opened, raw_lines

FEW_COLUMNS = "too few columns"
NO_SEGMENT = "no segment of a language"
ANOTHER_SEGMENT = "another segment of a language"

_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_NATIVE = ("{*}bpt", "{*}ept", "{*}it", "{*}ph", "{*}ut")
"""elements of TMX that hold formatting, no text"""
_TABLE_LINES, _FEWEST_LINES = 1_000, 10
"""first lines by which a table is known, and the fewest of a shorter file"""


@dataclass(frozen=True)
class Columns:
    """How a TSV file is read; columns count from 1."""

    source: int = 0
    """column of the source; 0: the first of two"""
    target: int = 0
    """column of the target; 0: the second of two"""
    min_scores: Mapping[int, float] = field(default_factory=dict)
    """column -> least score of a training pair"""
    quoting: Literal["none", "csv"] = "none"
    """csv: a field in double quotes may hold TAB, line breaks and doubled quotes"""

    def __post_init__(self) -> None:
        given = self.source, self.target, *self.min_scores
        if bool(self.source) != bool(self.target) or min(0, *given) < 0 or 0 in self.min_scores:
            raise ConfigError("columns: give those of source and target, from 1.")


def blocks(path: Path, languages: tuple[str, str], columns: Columns) -> Iterator[LineBlock]:
    """The pairs of a file; DataError: it has none, or cannot be read."""
    block = None
    with opened(path) as stream:
        for block in _of_stream(stream, str(path), languages, columns):
            yield block
    if block is None:
        raise DataError(f"{path} is empty: it needs pairs of sentences.")


def require_one_side(path: Path) -> None:
    """See that a file is not what `rows` reads, as far as that is certain; else DataError."""
    tabs = [line.count(b"\t") for line in islice(raw_lines(path, str(path)), _TABLE_LINES)]
    if len(tabs) >= _FEWEST_LINES and len({*tabs}) == 1 and tabs[0]:
        raise DataError(
            f"{path} is a table of {tabs[0] + 1} columns, not one side: give it as "
            f"`--corpus {shlex.quote(str(path))}`, or as `file` in corpora.yaml."
        )


@cache
def of_language(wanted: str, codes: tuple[str, ...]) -> set[str]:
    """The codes of a language: equal but for case, else those of its regions, and such as eng."""
    wanted = wanted.lower().replace("_", "-")
    equal = {code for code in codes if code.lower().replace("_", "-") == wanted}
    if equal or "-" in wanted:
        return equal
    return {code for code in codes if language.base(code) == language.base(wanted)}


def _of_stream(
    stream: Any, name: str, languages: tuple[str, str], columns: Columns
) -> Iterator[LineBlock]:
    head = stream.peek(text.HEAD_BYTES)
    if is_a("zip archive", head):
        return _of_zip(stream, name, languages, columns)
    if is_a("TMX file", head):
        return text.in_blocks(_of_tmx(stream, name, languages))
    return text.in_blocks(_of_table(raw_lines(stream, name), name, columns))


def _of_table(lines: Iterator[bytes], name: str, columns: Columns) -> Iterator[Row]:
    source, target = columns.source or 1, columns.target or 2
    most = max(source, target, *columns.min_scores)
    unquoted = (line.removesuffix(b"\n").removesuffix(b"\r").split(b"\t") for line in lines)
    table = _quoted(lines, name) if columns.quoting == "csv" else unquoted
    for number, row in enumerate(table):
        if not number and not columns.source and len(row) != 2:
            raise DataError(
                f"{name} has {count(len(row), 'column')}, not those of source and target: give two "
                "files, or corpora.yaml with `columns: {source: 1, target: 2}`."
            )
        if len(row) < most:
            yield b"\t".join(row), b"", FEW_COLUMNS
        else:
            yield row[source - 1], row[target - 1], _rule(row, columns.min_scores)


def _quoted(lines: Iterator[bytes], name: str) -> Iterator[list[bytes]]:
    # Each byte is a character for a while: wrong UTF-8 is reported where all text is decoded.
    reader = csv.reader((line.decode("latin-1") for line in lines), delimiter="\t", strict=True)
    try:
        for row in reader:
            yield [_in_one_line(cell).encode("latin-1") for cell in row]
    except csv.Error as error:
        raise DataError(
            f"{name}, line {reader.line_num}: {error}: correct its quotes, or remove "
            "`quoting: csv`."
        ) from None


def _in_one_line(cell: str) -> str:
    """Text whose line breaks are blanks."""
    if "\n" not in cell:
        return cell
    return " ".join(filter(None, (line.strip(" \t\r") for line in cell.split("\n"))))


def _rule(row: Sequence[bytes], min_scores: Mapping[int, float]) -> str:
    for column, least in min_scores.items():
        try:
            if not float(row[column - 1]) >= least:
                return f"column {column} below {least:g}"
        except ValueError:
            return f"column {column} is no number"
    return ""


def _of_zip(
    stream: Any, name: str, languages: tuple[str, str], columns: Columns
) -> Iterator[LineBlock]:
    try:
        with zipfile.ZipFile(stream) as archive:
            files = [
                file
                for file in archive.namelist()
                if not file.endswith("/") and not file.startswith("__MACOSX/")
            ]
            ends = tuple(file.rpartition(".")[2] for file in files)
            sides = [
                [file for file, end in zip(files, ends, strict=True) if end in known]
                for known in (of_language(code, ends) for code in languages)
            ]
            whole = [file for file in files if file.lower().endswith((".tmx", ".tsv"))]
            if [*map(len, sides)] == [1, 1]:
                (source,), (target,) = sides
                names = f"{name}: {source}", f"{name}: {target}"
                with archive.open(source) as one, archive.open(target) as other:
                    lines = [raw_lines(one, names[0]), raw_lines(other, names[1])]
                    yield from text.aligned(lines, names)
            elif len(whole) == 1:
                with archive.open(whole[0]) as member:
                    yield from _of_stream(member, f"{name}: {whole[0]}", languages, columns)
            else:
                raise DataError(
                    f"{name} must have one file that ends in .{languages[0]} and one in "
                    f".{languages[1]}, or one .tmx or .tsv, but has {', '.join(files[:9])}."
                )
    # Encrypted ones, and names that are damaged, are the other errors.
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, UnicodeError) as error:
        raise DataError(f"Cannot read {name}: {error}. Check the file.") from None


def _of_tmx(stream: Any, name: str, languages: tuple[str, str]) -> Iterator[Row]:
    """The pairs of TMX; the first of several segments of a language makes the pair, as is usual."""
    known, has_pairs = set[str](), False
    try:
        # Entities, which can grow without end, are left as they are.
        for _, unit in etree.iterparse(
            stream, tag="{*}tu", resolve_entities=False, no_network=True
        ):
            variants = [*unit.iterchildren("{*}tuv")]
            codes = tuple(one.get(_LANGUAGE) or one.get("lang", "") for one in variants)
            known.update(codes)
            sources, targets = (
                [_text(v, name) for v, code in zip(variants, codes, strict=True) if code in side]
                for side in (of_language(wanted, codes) for wanted in languages)
            )
            if sources and targets:
                has_pairs = True
                yield sources[0], targets[0], ""
                yield from ((other, targets[0], ANOTHER_SEGMENT) for other in sources[1:])
                yield from ((sources[0], other, ANOTHER_SEGMENT) for other in targets[1:])
            else:
                yield b" ".join(sources), b" ".join(targets), NO_SEGMENT
            unit.clear()
            while unit.getprevious() is not None:
                del unit.getparent()[0]
    except etree.XMLSyntaxError as error:
        reason = (error.msg or "").partition(", line")[0]
        raise DataError(f"{name}, line {error.lineno}: {reason}: correct the XML there.") from None
    if known and not has_pairs:
        raise DataError(
            f"{name} has no entry in both {' and '.join(languages)}: its languages are "
            f"{', '.join(sorted(known))}."
        )


def _text(variant: Any, name: str) -> bytes:
    segment = next(variant.iterchildren("{*}seg"), None)
    if segment is None:
        return b""
    content = segment.text or ""
    if len(segment):
        for entity in segment.iter(etree.Entity):
            raise DataError(f"{name} has the entity {entity.text}: write its text instead.")
        etree.strip_elements(segment, *_NATIVE, with_tail=False)
        content = "".join(segment.itertext())
    return _in_one_line(content.strip(" \t\n")).encode()
