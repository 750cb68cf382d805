"""Mistakes of a person become one sentence and an exit code; defects stay loud."""

import errno
import os
import shlex
import socket
import subprocess
import sys

import pytest

from hvd_nmt.common import errors


@pytest.mark.parametrize(("code", "kind"), errors.BY_EXIT_CODE.items())
def test_each_error_is_one_sentence_with_its_code(code, kind, capsys):
    with errors.reported("hvd_nmt.train") as outcome:
        raise kind("The file x is empty: give another.")
    assert capsys.readouterr() == ("", "hvd_nmt.train: The file x is empty: give another.\n")
    assert outcome.exit_code == kind.exit_code == code


def test_another_rank_says_only_what_is_its_own_and_where(capsys, monkeypatch):
    monkeypatch.setattr(errors, "_FIRST_SPEAKS_S", 0.0)
    own, shared = errors.ClusterError("no GPU"), errors.ClusterError("no GPU").of_all_ranks()
    for error, said in (
        (own, f"x: On {socket.gethostname()}: no GPU\n"),
        (shared, ""),
        (errors.DivergedError("NaN"), ""),
        (errors.Preempted("saved"), ""),
    ):
        with errors.reported("x", speak=False) as outcome:
            raise error
        assert outcome.exit_code == error.exit_code
        assert capsys.readouterr().err == said


def test_ctrl_c_is_130_and_success_0(capsys):
    with errors.reported("x") as outcome:
        pass
    assert outcome.exit_code == 0
    with errors.reported("x") as outcome:
        raise KeyboardInterrupt
    assert outcome.exit_code == 130
    assert capsys.readouterr().err == "x: interrupted.\n"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("name", ["folder/file", None])
def test_what_the_machine_forbids_is_a_sentence(number, name, capsys):
    with errors.reported("x") as outcome:
        raise OSError(number, os.strerror(number), name)
    assert outcome.exit_code == 2
    where = f"{name}: " if name else ""
    said = f"x: {where}{os.strerror(number)}: fix that, or give another path.\n"
    assert capsys.readouterr().err == said


def test_a_defect_is_not_swallowed():
    for defect in (ValueError, OSError):
        with pytest.raises(defect), errors.reported("x"):
            raise defect("internal")


def test_a_reader_that_has_enough_is_no_error():
    code = (
        "import sys; from hvd_nmt.common import errors\n"
        "with errors.reported('x') as outcome:\n"
        "    for _ in range(100_000): print('a line')\n"
        "sys.exit(outcome.exit_code)"
    )
    pipe = f"set -o pipefail; {shlex.quote(sys.executable)} -c {shlex.quote(code)} | head -n 1"
    done = subprocess.run(["bash", "-c", pipe], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a line\n", b"")


WORK = """
import sys
from hvd_nmt.common.errors import outliving_readers
with outliving_readers("x"):
    for _ in range(100_000): print("a line", flush=True)
    print("an error", file=sys.stderr)
open("done", "w").close()
"""


WITHOUT = b"x continues without stdout while it cannot be written "


@pytest.mark.parametrize(
    ("pipe", "out", "err"),
    [
        ("| head -n 1", b"a line\n", WITHOUT + b"(Broken pipe)"),
        ("2>&1 | head -n 1", b"a line\n", b""),
        ("> /dev/full", b"", WITHOUT + b"(No space left on device)"),
        (">&-", b"", b"an error\n"),
    ],
)
def test_work_goes_on_and_ends_well(tmp_path, pipe, out, err):
    command = f"set -o pipefail; {shlex.join([sys.executable, '-c', WORK])} {pipe}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, out), done.stderr
    assert done.stderr.startswith(err)
    assert done.stderr.count(b"\n") == (2 if b"stdout" in err else err.count(b"\n"))
    assert (tmp_path / "done").exists()


ROOM = """
import resource
from hvd_nmt.common.errors import outliving_readers
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
with outliving_readers("x"):
    for size, text in ((6, "first"), (6, "lost"), (hard, "second")):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        print(text)
"""


def test_a_log_goes_on_when_its_disk_has_room_again(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        done = subprocess.run([sys.executable, "-c", ROOM], stdout=log, stderr=subprocess.PIPE)
    assert (done.returncode, (tmp_path / "log").read_text()) == (0, "first\nsecond\n")
    assert done.stderr == WITHOUT + b"(File too large).\n"
