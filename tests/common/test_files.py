"""A directory is complete or not there, whoever is killed and whoever comes at the same time."""

import errno
import multiprocessing
import os
import re
import signal
import sys

import pytest

from hvd_nmt.common import files
from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import exclusive, replacing, try_lock

fork = multiprocessing.get_context("fork")


def make(path, content):
    with exclusive(path), replacing(path) as partial:
        (partial / "file").write_text(content)


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def test_it_appears_complete_and_what_a_person_called_old_stays(tmp_path):
    others = ["data.lock", "data.old-2024", "data.partial-2"]
    for name in others:
        (tmp_path / "deep" / name).mkdir(parents=True)
    make(tmp_path / "deep" / "data", "1")
    make(tmp_path / "deep" / "data", "2")
    assert names(tmp_path / "deep") == ["data", *others]
    assert (tmp_path / "deep" / "data" / "file").read_text() == "2"


def test_a_link_leads_to_what_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "data")  # where nothing is yet
    for content in "12":
        make(tmp_path / "link", content)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "data" / "file").read_text() == "2"
    assert names(tmp_path / "disk") == ["data"]


def fail_inside(path, error):
    with exclusive(path), replacing(path) as partial:
        (partial / "file").write_text("new")
        raise error("stop")


def test_an_error_leaves_what_was_there(tmp_path):
    make(tmp_path / "data", "old")
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error):
            fail_inside(tmp_path / "data", error)
    assert names(tmp_path) == ["data"]
    assert (tmp_path / "data" / "file").read_text() == "old"


def test_a_full_disk_and_a_place_that_cannot_be_written_are_sentences_to_the_user(tmp_path):
    full = pytest.raises(DataError, match=r"Cannot write .*data \(No space left")
    with full, replacing(tmp_path / "data"):
        raise OSError(28, "No space left on device")
    (tmp_path / "file").write_text("")
    refused, data = pytest.raises(DataError, match="another --cache"), tmp_path / "file" / "data"
    with refused, exclusive(data, out="--cache"):
        pass


def make_until(path, content, changes):
    """Makes it, but is killed before it has opened, made, renamed or removed so much."""
    left = iter(range(changes))

    def hook(event, _):
        is_change = event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
        if is_change and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    make(path, content)


@pytest.mark.parametrize("before", [None, "old"])
def test_a_kill_at_any_change_leaves_the_old_or_the_new_and_nothing_else(tmp_path, before):
    found = []
    for changes in range(200):
        path = tmp_path / str(changes) / "data"
        path.parent.mkdir()
        if before:
            make(path, before)
        process = fork.Process(target=make_until, args=(path, "new", changes))
        process.start()
        process.join()
        with exclusive(path):
            found.append((path / "file").read_text() if path.exists() else None)
        assert names(path.parent) == ["data"] * path.exists()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert len(found) > 6
    kept = found.index("new")
    assert found == [before] * kept + ["new"] * (len(found) - kept)


def count_up(path, times):
    for _ in range(times):
        with exclusive(path):
            number = int(path.with_name("number").read_text())
            os.sched_yield()
            path.with_name("number").write_text(str(number + 1))


def test_one_at_a_time(tmp_path):
    (tmp_path / "number").write_text("0")
    processes = [fork.Process(target=count_up, args=(tmp_path / "data", 25)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "number").read_text() == "100"


def test_a_file_is_replaced_as_a_whole_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "facts.json"
    files.write_atomically(path, "größer\n")
    files.write_atomically(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    with pytest.raises(FileNotFoundError), files.replacing_file(path):
        pass  # nothing was written
    assert path.read_bytes() == b"\xff"
    assert names(tmp_path) == ["facts.json"]


def test_an_open_file_is_locked_once(tmp_path):
    with open(tmp_path / "lock", "a+b") as mine, open(tmp_path / "lock", "rb") as other:
        assert not files.is_locked(other)
        assert try_lock(mine)
        assert files.is_locked(other)
        assert not try_lock(other)
    with open(tmp_path / "lock", "rb") as other:
        assert try_lock(other)


def test_a_file_system_without_locks_is_warned_of_and_used(tmp_path, monkeypatch, capsys):
    def none(stream, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))  # as NFS without lockd

    monkeypatch.setattr(files.fcntl, "flock", none)
    make(tmp_path / "data", "data")
    with open(tmp_path / "lock", "a+b") as mine:
        assert try_lock(mine)
    assert (tmp_path / "data" / "file").read_text() == "data"
    said = re.findall(
        r"system of (\S+) has no locks \(No locks available\)", capsys.readouterr().err
    )
    assert said == [f"{tmp_path}/{name}" for name in (".data.lock", "lock")]
