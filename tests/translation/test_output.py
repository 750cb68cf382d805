"""An output file that is complete, or that the same job finds again."""

import fcntl
import gzip
import os

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.translation import output

JOB = {"input": "a5", "beam_size": 4}


class Killed(BaseException):
    """What ends a process anywhere."""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def interrupted(path, *writes, resumable=True):
    """A job that is killed after these writes, or during them."""

    def job():
        with output.open_output(path, JOB, resumable=resumable) as out:
            for write in writes:
                out.write(*write)
            raise Killed

    with pytest.raises(Killed):
        job()


def test_it_is_there_when_it_is_complete_and_an_older_one_until_then(tmp_path):
    path = tmp_path / "out"
    path.write_text("older\n")
    with output.open_output(path, JOB) as out:
        out.write(["a", "b"], 2)
        assert path.read_text() == "older\n"
        out.write(["c"], 1)
    assert path.read_text() == "a\nb\nc\n"
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("moment", ["data", "journal", "noted"])
def test_it_goes_on_wherever_it_was_killed(tmp_path, monkeypatch, suffix, moment):
    path = tmp_path / f"out{suffix}"
    count = 0

    def kill_at_second(function):
        def killing(*arguments):
            nonlocal count
            count += 1
            if count == 2:
                raise Killed
            return function(*arguments)

        return killing

    where = {"data": (output.Output, "_note"), "journal": (os, "replace")}.get(moment)
    with monkeypatch.context() as patch:
        if where:
            patch.setattr(*where, kill_at_second(getattr(*where)))
        interrupted(path, (["a", "b"], 1), (["c"], 1))
    assert not path.exists()
    with output.open_output(path, JOB) as out:
        assert out.lines_done == (2 if moment == "noted" else 1)
        if moment != "noted":
            out.write(["c"], 1)
        out.write(["d"], 1)
    data = path.read_bytes()
    assert (gzip.decompress(data) if suffix else data) == b"a\nb\nc\nd\n"
    assert names(tmp_path) == [path.name]


def refused(path, message, job=JOB, resumable=True):
    with (
        pytest.raises(ConfigError, match=message),
        output.open_output(path, job, resumable=resumable),
    ):
        pass


def test_another_job_says_what_is_different_and_leaves_it(tmp_path):
    path, part = tmp_path / "out", tmp_path / "out.part"
    interrupted(path, (["a"], 1))
    for resumable in (True, False):
        refused(path, r"with another beam_size \(4, now 5\)", JOB | {"beam_size": 5}, resumable)
    assert part.read_text() == "a\n"
    part.unlink()
    with output.open_output(path, JOB | {"beam_size": 5}) as out:
        assert out.lines_done == 0


def test_an_input_that_cannot_be_read_again_starts_afresh(tmp_path):
    path = tmp_path / "out"
    interrupted(path)
    assert names(tmp_path) == []  # a job that did nothing leaves nothing
    interrupted(path, (["a"], 1), resumable=False)
    with output.open_output(path, JOB, resumable=False) as out:
        assert out.lines_done == 0
        out.write(["b"], 1)
    assert path.read_text() == "b\n"


@pytest.mark.parametrize("text", ["{", '{"lines":1,"bytes":9,"job":{}}'])
def test_a_journal_that_says_nothing_starts_afresh(tmp_path, text):
    path = tmp_path / "out"
    interrupted(path, (["a"], 1))
    (tmp_path / "out.part.json").write_text(text)
    with output.open_output(path, JOB) as out:
        assert out.lines_done == 0
    assert path.read_bytes() == b""


def test_a_living_job_is_not_disturbed(tmp_path):
    with open(tmp_path / "out.part", "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        refused(tmp_path / "out", "is being written by another process")
