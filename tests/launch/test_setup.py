"""launch/setup.sh: what is missing is said in one sentence, with the line that mends it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "launch" / "setup.sh"
TOOLS = ("bash", "cut", "dirname", "env", "find", "grep", "mkdir", "realpath", "sed", "sha256sum")


def program(path, script):
    """Writes a program of the shell; its path."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def run(tmp_path):
    """Runs setup.sh with a PATH that holds only basic tools and the given programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for tool in TOOLS:
        (programs / tool).symlink_to(shutil.which(tool))

    def run_setup(*names, directory="venv", **variables):
        for name in names:
            program(programs / name, f'echo "{name} $*" >>"{tmp_path}/called"')
        environment = {"PATH": str(programs), "HOME": str(tmp_path), "GPU": "0", **variables}
        return subprocess.run(
            [SETUP, tmp_path / directory], env=environment, capture_output=True, text=True
        )

    return run_setup


def says_one_sentence(done, sentence):
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_no_compiler_and_no_apt_get(run, tmp_path):
    done = run("make", PYTHON="python3.11")
    says_one_sentence(done, "lacks g++; run: sudo apt-get install -y --no-install-recommends g++")
    assert not (tmp_path / "venv").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may install system packages")
def test_root_on_debian_gets_the_missing_packages(run, tmp_path):
    run("apt-get", PYTHON="no-python")
    assert (tmp_path / "called").read_text().splitlines() == [
        "apt-get update -qq",
        "apt-get install -y --no-install-recommends g++ make -qq",
    ]


def test_the_wrong_python_is_named(run, tmp_path):
    other = program(tmp_path / "python3.9", "echo 3.9")
    done = run("g++", "make", PYTHON=other)
    says_one_sentence(done, f"PYTHON={other} is Python 3.9, but")
    assert "needs Python 3.11" in done.stderr


def test_a_python_that_is_not_there(run):
    done = run("g++", "make", PYTHON="python-of-mars")
    says_one_sentence(done, "PYTHON=python-of-mars is no Python with the venv module")


def test_a_directory_with_other_things_is_left_alone(run, tmp_path):
    fake = program(tmp_path / "python3.11", "echo 3.11")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    done = run("g++", "make", directory="home", PYTHON=fake)
    says_one_sentence(done, "exists and is no virtual environment")
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_nvcc_is_needed_for_nccl(run):
    if Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("nvcc is in its standard place here")
    says_one_sentence(run("g++", "make", GPU="1"), "GPU=1 needs nvcc")
