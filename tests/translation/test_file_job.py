"""Input as it comes; an output file that is complete, or that the same job finds again."""

import fcntl
import os
import sys

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.data.text import PACKINGS, read_lines
from hvd_nmt.translation import file_job
from hvd_nmt.translation.file_job import open_output


def test_what_has_come_is_given_at_once(monkeypatch):
    reads, writes = os.pipe()
    with open(reads) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        chunks = file_job.from_stdin()
        os.write(writes, b"\xef\xbb\xbf\n")
        assert next(chunks) == [""]
        os.write(writes, b"b\rb\n\x1f\x8bc\nhalf a ")
        assert next(chunks) == ["b b", " \ufffdc"]
        os.write(writes, b"line")
        os.close(writes)
        assert list(chunks) == [["half a line"]]


class Killed(BaseException):
    """What ends a process anywhere."""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def interrupted(path, *writes, of="a job"):
    """A job that is killed after these writes."""

    def job():
        with open_output(path, of) as out:
            for rows in writes:
                out.write(rows)
            raise Killed

    with pytest.raises(Killed):
        job()


def test_an_input_that_cannot_be_read_again_starts_afresh(tmp_path):
    path = tmp_path / "out"
    interrupted(path)
    assert names(tmp_path) == []  # a job that did nothing leaves nothing
    interrupted(path, ["a"], of=file_job.AFRESH)
    assert names(tmp_path) == []
    with open_output(path) as out:
        out.write(["b"])
    assert path.read_text() == "b\n"


@pytest.mark.parametrize("suffix", PACKINGS)
def test_an_output_is_packed_as_its_name_ends(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    interrupted(path, ["ä"])
    assert [name for name in names(tmp_path) if not name.endswith((".part", ".job"))] == []
    with open_output(path, "a job") as out:
        out.write(["b"])
    assert PACKINGS[suffix].mark.match(path.read_bytes())
    assert list(read_lines(path)) == ["ä", "b"]
    assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("other", ["another job", file_job.AFRESH])
def test_lines_of_another_job_are_neither_taken_nor_lost(tmp_path, other):
    path = tmp_path / "out"
    interrupted(path, ["a"])
    with pytest.raises(ConfigError, match="of another job"), open_output(path, other):
        pass
    with open_output(path, "a job") as out:
        assert out.lines_done == 1


def test_a_living_job_is_not_disturbed(tmp_path):
    with open(tmp_path / "out.part", "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with (
            pytest.raises(ConfigError, match="is being written by another process"),
            open_output(tmp_path / "out"),
        ):
            pass


def test_what_fails_while_lines_are_made_is_no_fault_of_the_output(tmp_path):
    def fail():
        with open_output(tmp_path / "out"):
            raise OSError(5, "Input/output error", "spm.model")

    with pytest.raises(OSError, match=r"spm\.model"):
        fail()
    assert names(tmp_path) == []
