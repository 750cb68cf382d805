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


def test_what_cannot_be_compared_is_said(tmp_path):
    for options, code, said in (
        (["no-such-commit"], 1, "no-such-commit is no directory and no commit:"),
        ([os.fspath(tmp_path)], 1, f"{tmp_path} holds no hvd_nmt: give a checkout or a commit."),
        ([os.fspath(ROOT), "--rounds", "0"], 2, "give --rounds 1 or more"),
    ):
        done = guard(*options)
        assert done.returncode == code
        assert said in done.stderr
