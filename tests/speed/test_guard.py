"""The command that compares the speed of two trees; what it measures here means nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUARD = [sys.executable, os.fspath(ROOT / "tests" / "speed" / "guard.py")]


def guard(*options):
    return subprocess.run([*GUARD, *options], capture_output=True, text=True, timeout=600)


@pytest.mark.long
def test_a_tree_that_is_too_slow_ends_with_1():
    fast, slow = (
        guard(os.fspath(ROOT), "--only", "input", "--rounds", "1", "--least", least)
        for least in ("0.0001", "1000")
    )
    assert fast.returncode == 0, fast.stderr
    assert slow.returncode == 1, slow.stderr
    for done in (fast, slow):
        heading, row = done.stdout.splitlines()
        assert heading.startswith("working tree : ")
        assert row.startswith("input ")
    assert slow.stdout.rstrip().endswith("SLOWER")


def test_a_base_that_is_nothing_is_said():
    done = guard("no-such-commit")
    assert done.returncode == 1
    assert done.stderr.startswith("no-such-commit is no directory and no commit:")


def test_a_folder_without_the_package_is_not_compared_with_itself(tmp_path):
    done = guard(os.fspath(tmp_path))
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path} holds no hvd_nmt: give a checkout or a commit.\n"


def test_a_comparison_of_nothing_is_refused():
    for options in (["--rounds", "0"], ["--only", "nothing"]):
        assert guard(os.fspath(ROOT), *options).returncode == 2
