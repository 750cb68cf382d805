"""Lines of input, in chunks or as they come."""

import gzip
import os

import pytest

from hvd_nmt.translation import reader


def test_chunks_fit_into_memory():
    lines = ["a" * 10] * 25 + ["b" * 1000] * 3 + [""] * 5
    found = list(reader.chunks(lines, most_lines=10, most_characters=500))
    assert [line for chunk in found for line in chunk] == lines
    assert [len(chunk) for chunk in found] == [10, 10, 6, 1, 1, 5]
    assert list(reader.chunks([])) == []


def test_what_has_come_is_given_at_once():
    reads, writes = os.pipe()
    with open(reads, "rb") as stream:
        chunks = reader.from_stream(stream)
        os.write(writes, b"a\n")
        assert next(chunks) == ["a"]
        os.write(writes, b"b\nc\nhalf a ")
        found = next(chunks)
        found += [] if found == ["b", "c"] else next(chunks)
        assert found == ["b", "c"]
        os.write(writes, b"line")
        os.close(writes)
        assert next(chunks) == ["half a line"]
        assert list(chunks) == []


@pytest.mark.parametrize("data", [b"", b"\n", b"a", b"a\n", b"\xff\r\n\n\nb"])
def test_lines_are_counted_as_they_are_read(tmp_path, data):
    (tmp_path / "in").write_bytes(data)
    (tmp_path / "in.gz").write_bytes(gzip.compress(data))
    count = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    assert reader.count_lines(tmp_path / "in") == count
    assert reader.count_lines(tmp_path / "in.gz") == count
