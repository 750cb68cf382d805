"""One policy for lines: 0x0A only, BOM and CR once, strict or lenient UTF-8, equal counts."""

import bz2
import gzip
import io
import lzma

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_nmt.common.errors import DataError
from hvd_nmt.data import text
from hvd_nmt.data.text import pair_blocks, read_lines

# Everything that some reader takes for a line end, and the bytes that break decoders.
NASTY = [bytes([byte]) for byte in b"\n\r\x0b\x0c\x1c\x1d\x1e\x00\t\x7f\xff\xc3 "]
NASTY += [b"\r\n", b"word", b"\xed\xa0\x80", b"\xc0\xaf", b"\xef\xbb\xbf"]
NASTY += ["\x85\u2028\u2029\u00a0\u3000\ufeff\ufffdäß😀".encode()]


def files(tmp_path, source, target):
    """The paths of two files of these bytes."""
    (tmp_path / "a.en").write_bytes(source)
    (tmp_path / "a.de").write_bytes(target)
    return tmp_path / "a.en", tmp_path / "a.de"


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        ("a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\rj\nlast".encode(),
         ["a b c d e f g h i j", "last"]),
        (b"a\nb", ["a", "b"]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\n\r\n", ["a", "b", ""]),
        (b"a\r\r\n", ["a "]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", " b"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfa", [" a"]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n", [""]),
        (b"a\x00b\tc\n", ["a b c"]),
        ("a\u00a0b\u3000c\n".encode(), ["a\u00a0b\u3000c"]),
    ],
)  # fmt: skip
def test_the_policy(raw, lines):
    assert list(read_lines(io.BytesIO(raw))) == lines


def test_wrong_bytes_stop_strict_reading_with_file_line_and_remedy(tmp_path):
    path = tmp_path / "train.en"
    path.write_bytes(b"good\nGr\xfc\xdfe\n")
    with pytest.raises(DataError, match=r"train\.en, line 2: byte 0xfc at column 3 .*iconv"):
        list(read_lines(path))
    for raw in (b"\xed\xa0\x80", b"\xc0\xaf", b"\xf8\x88\x80\x80\x80", b"\xc3"):
        with pytest.raises(DataError, match="the input, line 1"):
            list(read_lines(io.BytesIO(raw)))
        assert len(list(read_lines(io.BytesIO(raw), lenient=True))) == 1


@pytest.mark.parametrize(
    ("pack", "suffix"),
    [(gzip.compress, "gz"), (bz2.compress, "bz2"), (lzma.compress, "XZ"), (zstd.compress, "txt")],
)
def test_compressed_files_are_read_whole_or_refused(tmp_path, pack, suffix):
    path, packed = tmp_path / f"a.en.{suffix}", pack("\ufeffä\r\nb".encode())
    path.write_bytes(packed)
    assert list(read_lines(path)) == ["ä", "b"]
    path.write_bytes(pack(b""))
    assert list(read_lines(path)) == []
    for torn in (packed[:-4], packed[:20] + b"\0\0\0\0" + packed[24:]):
        path.write_bytes(torn)
        with pytest.raises(DataError, match=rf"a\.en\.{suffix}: \w"):
            list(read_lines(path))
    with pytest.raises(DataError, match="is compressed: unpack it, or give a file"):
        list(read_lines(io.BytesIO(packed), lenient=True))


@pytest.mark.parametrize("encoding", ["UTF-16LE", "UTF-16BE", "UTF-32LE"])
def test_utf_16_is_told_by_its_mark(tmp_path, encoding):
    source, target = files(tmp_path, b"one\n", "\ufeffein Satz\n".encode(encoding))
    for read in (
        lambda: read_lines(target), lambda: read_lines(target, lenient=True),
        lambda: pair_blocks(source, target), lambda: pair_blocks(target, source),
    ):  # fmt: skip
        with pytest.raises(DataError, match=r"a\.de is UTF-16, not UTF-8: .* `iconv -f UTF-16 "):
            list(read())


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(NASTY)).map(b"".join))
def test_lenient_reading_gives_one_line_per_lf(raw):
    lines = list(read_lines(io.BytesIO(raw), lenient=True))
    body = raw.removeprefix(b"\xef\xbb\xbf")
    assert len(lines) == body.count(b"\n") + (not body.endswith(b"\n") and body != b"")
    # What is written from here has the same lines for every other reader.
    for line in lines:
        assert len(line.splitlines()) <= 1
        assert all(character.isprintable() or character >= "\xa0" for character in line)


def test_pairs_of_unequal_missing_and_empty_files(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_PAIRS", 2)
    blocks = list(pair_blocks(*files(tmp_path, b"a\n\nc", b"x\r\ny\r\nz\r\n")))
    assert blocks == [(([b"a", b""], [b"x\r", b"y\r"]), 1, ()), (([b"c"], [b"z\r"]), 3, ())]
    for counts in ((3, 5), (5, 3), (1, 1000)):
        says = r"a\.en has {} lines, but .*a\.de has {}:".format(*counts)
        with pytest.raises(DataError, match=says):
            list(pair_blocks(*files(tmp_path, b"x\n" * counts[0], b"y\n" * counts[1])))
    with pytest.raises(DataError, match=r"a\.de is empty"):
        list(pair_blocks(*files(tmp_path, b"x\n", b"")))
    with pytest.raises(DataError, match=r"none\.en: No such file"):
        list(read_lines(tmp_path / "none.en"))
