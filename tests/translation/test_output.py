"""An output file that is complete, or that the same job finds again."""

import fcntl
import gzip

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.translation import output


class Killed(BaseException):
    """What ends a process anywhere."""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def interrupted(path, *writes, of="a job"):
    """A job that is killed after these writes."""

    def job():
        with output.open_output(path, of) as out:
            for rows in writes:
                out.write(rows)
            raise Killed

    with pytest.raises(Killed):
        job()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_it_goes_on_behind_the_last_whole_line(tmp_path, suffix):
    path, part = tmp_path / f"out{suffix}", tmp_path / f"out{suffix}.part"
    path.write_text("older\n")
    interrupted(path, ["a", "b"], ["c"])
    with part.open("ab") as stream:
        stream.write("hälf a line".encode())
    assert path.read_text() == "older\n"
    with output.open_output(path, "a job") as out:
        assert out.lines_done == 3
        out.write(["d"])
        assert path.read_text() == "older\n"
    data = path.read_bytes()
    assert (gzip.decompress(data) if suffix else data) == b"a\nb\nc\nd\n"
    assert names(tmp_path) == [path.name]


def test_an_input_that_cannot_be_read_again_starts_afresh(tmp_path):
    path = tmp_path / "out"
    interrupted(path)
    assert names(tmp_path) == []  # a job that did nothing leaves nothing
    interrupted(path, ["a"], of=output.AFRESH)
    assert names(tmp_path) == []
    with output.open_output(path) as out:
        assert out.lines_done == 0
        out.write(["b"])
    assert path.read_text() == "b\n"


@pytest.mark.parametrize("other", ["another job", output.AFRESH])
def test_lines_of_another_job_are_neither_taken_nor_lost(tmp_path, other):
    path = tmp_path / "out"
    interrupted(path, ["a"])
    with pytest.raises(ConfigError, match="of another job"), output.open_output(path, other):
        pass
    with output.open_output(path, "a job") as out:
        assert out.lines_done == 1


def test_a_living_job_is_not_disturbed(tmp_path):
    with open(tmp_path / "out.part", "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with (
            pytest.raises(ConfigError, match="is being written by another process"),
            output.open_output(tmp_path / "out"),
        ):
            pass
