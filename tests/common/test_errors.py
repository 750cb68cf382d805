"""Mistakes of a person become one sentence and an exit code; defects stay loud."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_nmt.common import errors

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", errors.BY_EXIT_CODE.values())
def test_each_error_is_one_sentence_with_its_code(kind, capsys):
    with errors.reported("hvd_nmt.train") as outcome:
        raise kind("The file x is empty: give another.")
    said = capsys.readouterr()
    assert said.err == "hvd_nmt.train: The file x is empty: give another.\n"
    assert said.out == ""
    assert outcome.exit_code == kind.exit_code
    assert errors.BY_EXIT_CODE[kind.exit_code] is kind


def test_success_is_0():
    with errors.reported("x") as outcome:
        pass
    assert outcome.exit_code == 0


def test_a_silent_rank_has_the_same_code(capsys):
    with errors.reported("x", speak=False) as outcome:
        raise errors.ClusterError("two hosts are missing")
    assert outcome.exit_code == errors.ClusterError.exit_code
    assert capsys.readouterr().err == ""


def test_ctrl_c_is_130(capsys):
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
    said = f"x: {where}{os.strerror(number)}: mend that, or name another place.\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("defect", [ValueError, OSError, KeyError, AssertionError])
def test_a_defect_is_not_swallowed(defect):
    with pytest.raises(defect), errors.reported("x"):
        raise defect("internal")


def test_every_class_has_its_own_code_and_a_row_in_the_documented_table():
    rows = re.findall(r"^\| (\d+)\s+\| `(\w+)`\s*\|", errors.__doc__, re.MULTILINE)
    assert {int(code): name for code, name in rows} == {
        kind.exit_code: kind.__name__ for kind in errors.UserError.__subclasses__()
    }
    assert len(rows) == len(errors.BY_EXIT_CODE) == len(errors.UserError.__subclasses__())
    # 1 is a traceback's, 126 and above are the shell's.
    assert all(1 < code < 126 for code in errors.BY_EXIT_CODE)


def test_the_documents_list_the_same_codes():
    pattern = re.compile(r"^\| (\d+)\s*\|", re.MULTILINE)
    document = ROOT / "docs" / "exit-codes.md"
    assert pattern.findall(document.read_text()) == pattern.findall(errors.__doc__)


def test_a_wrong_configuration_is_a_value_error_too():
    assert issubclass(errors.ConfigError, ValueError)


def test_a_reader_that_has_enough_is_no_error():
    code = """
import sys
from hvd_nmt.common import errors
with errors.reported("x") as outcome:
    for _ in range(100_000):
        print("a line")
sys.exit(outcome.exit_code)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"a line\n"
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (0, b"")
