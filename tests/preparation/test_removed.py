"""The file of removed pairs takes no other file's place, and is the same bytes every time."""

import gzip
import os

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.preparation import removed

PAIRS = b"a side is empty\t1\t\tx\nduplicate\t7\ta\tb\n"


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "out.work"
    folder.mkdir()
    (folder / removed.NAME).write_bytes(PAIRS)
    return folder


@pytest.mark.parametrize("pairs", [PAIRS, b""])
def test_a_name_with_gz_is_gzip_and_the_same_bytes_every_time(work, tmp_path, pairs):
    (work / removed.NAME).write_bytes(pairs)
    plain, one, other = (tmp_path / name for name in ("r.tsv", "r.tsv.gz", "other.gz"))
    removed.write(work, plain)
    assert plain.read_bytes() == pairs
    removed.write(work, one)
    os.utime(work / removed.NAME, (1, 1))
    removed.write(work, other)
    assert one.read_bytes() == other.read_bytes()
    assert gzip.decompress(one.read_bytes()) == pairs
    assert one.read_bytes()[4:8] == bytes(4)  # the time


@pytest.mark.parametrize("name", ["r.tsv", "r.tsv.gz"])
def test_only_the_beginning_of_the_same_file_is_written_over(work, tmp_path, name):
    path = tmp_path / name
    removed.write(work, path)
    whole = path.read_bytes()
    for kept in (whole, whole[:-5], b""):
        path.write_bytes(kept)
        removed.require_new(path, work)
        removed.write(work, path)
        assert path.read_bytes() == whole
    for other in (whole + b"x", b"x" + whole[1:], whole[:-1] + b"x"):
        path.write_bytes(other)
        for refusing in (
            lambda: removed.require_new(path, work),
            lambda: removed.write(work, path),
        ):
            with pytest.raises(ConfigError, match="is there already: choose another --removed, or"):
                refusing()
        assert path.read_bytes() == other


def test_before_any_pair_is_collected_every_file_is_anothers(tmp_path):
    path = tmp_path / "r.tsv"
    removed.require_new(path, tmp_path / "none.work")
    path.write_bytes(b"thesis")
    with pytest.raises(ConfigError, match="is there already"):
        removed.require_new(path, tmp_path / "none.work")
    with pytest.raises(ConfigError, match="is no file: give --removed the name of a new one"):
        removed.require_new(tmp_path, tmp_path / "none.work")


def test_an_input_is_known_behind_links(tmp_path):
    source = tmp_path / "s.en"
    source.write_bytes(b"text\n")
    soft, hard = tmp_path / "soft", tmp_path / "hard"
    soft.symlink_to(source)
    hard.hardlink_to(source)
    for path in (source, soft, hard, tmp_path / "x" / ".." / "s.en"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match="an input: choose another --removed"):
            removed.require_place(path, [tmp_path / "none", source], [])
    removed.require_place(tmp_path / "r.tsv", [source], [("--out", tmp_path / "out")])


@pytest.mark.parametrize("place", ["out", "out/r.tsv", "out/a/r.tsv", "link/r.tsv", "."])
def test_what_else_is_written_is_not_in_its_way(tmp_path, place):
    (tmp_path / "link").symlink_to(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"is in the way of .*out, which --out needs"):
        removed.require_place(tmp_path / place, [], [("--out", tmp_path / "out")])
