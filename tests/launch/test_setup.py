"""launch/setup.sh: what is missing is said in one sentence, with the line that mends it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[2] / "launch" / "setup.sh"
TOOLS = (
    "bash",
    "cat",
    "cp",
    "cut",
    "dirname",
    "env",
    "find",
    "flock",
    "grep",
    "gzip",
    "mkdir",
    "mktemp",
    "mv",
    "nproc",
    "realpath",
    "rm",
    "sed",
    "sha256sum",
    "sleep",
    "tail",
    "tar",
    "touch",
    "uname",
    "wc",
)
FAKE_PYTHON = """
case "$*" in
    *"version_info"*) echo VERSION ;;
    *"import hvd_nmt"*) echo "Horovod can use: gloo" ;;
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"
        echo "command = x -m venv $3" >"$3/pyvenv.cfg" ;;
    *" download "*) while [ "$1" != -d ]; do shift; done
        h=horovod-0.28.1; cd "$2"; mkdir -p $h/horovod/tensorflow
        printf 'one.cc\\nxla_mpi_ops.cc\\n' >$h/horovod/tensorflow/CMakeLists.txt
        echo 'GpuStreamHandle AsGpuStreamValue(Stream* stream);' >$h/horovod/tensorflow/mpi_ops.cc
        tar -czf $h.tar.gz $h ;;
    *" wheel "*) while [ "$1" != -w ]; do shift; done
        cat "$3/horovod/tensorflow/CMakeLists.txt" >>"$HOME/built"
        cat "$3/horovod/tensorflow/mpi_ops.cc" >"$HOME/mpi_ops.cc"
        sleep 1; mkdir "$2"; touch "$2/horovod.whl" ;;
    *" install "*) echo "$*" >>"$HOME/installed"; OFFLINE ;;
esac
"""
"""an interpreter that makes environments of itself, with a pip that takes a second to build"""


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

    def run_setup(*names, directory="venv", start=subprocess.run, **variables):
        for name in names:
            program(programs / name, f'echo "{name} $*" >>"{tmp_path}/called"')
        environment = {"PATH": str(programs), "HOME": str(tmp_path), "GPU": "0", **variables}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return start([SETUP, tmp_path / directory], env=environment, **pipes)

    return run_setup


@pytest.fixture
def python(tmp_path):
    """Makes the fake interpreter of a version; its path."""

    def make(version="3.11", offline="true"):
        script = FAKE_PYTHON.replace("VERSION", version).replace("OFFLINE", offline)
        return program(tmp_path / f"python{version}", script)

    return make


def says_one_sentence(done, sentence):
    assert done.returncode == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_no_compiler_and_no_apt_get(run, python, tmp_path):
    done = run("make", PYTHON=python())
    says_one_sentence(done, "lacks g++; run: sudo apt-get install -y --no-install-recommends g++")
    assert not (tmp_path / "venv").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may install system packages")
def test_root_on_debian_gets_the_missing_packages(run, tmp_path):
    program(tmp_path / "bin" / "python3", "echo 3.10")
    done = run("apt-get")
    assert "no Python 3.11, 3.12 or 3.13 with the venv module found" in done.stderr
    assert (tmp_path / "called").read_text().splitlines() == [
        "apt-get update -qq",
        "apt-get install -y --no-install-recommends python3 python3-venv -qq",
    ]


def test_the_wrong_python_is_named(run, tmp_path):
    other = program(tmp_path / "python3.9", "echo 3.9")
    done = run("g++", "make", PYTHON=other)
    says_one_sentence(done, f"PYTHON={other} is Python 3.9, but")
    assert "needs Python 3.11, 3.12 or 3.13" in done.stderr


def test_python_3_13_is_too_new_for_tensorflow_2_18(run, python):
    done = run("g++", "make", PYTHON=python("3.13"), TF="2.18")
    says_one_sentence(done, "TensorFlow 2.18 with Horovod 0.28.1 needs Python 3.11 or 3.12")


def test_a_tensorflow_that_was_not_tried(run):
    says_one_sentence(run(TF="2.30"), "TF is '2.30', expected 2.21 or, for V100 GPUs, 2.18")


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


def test_an_old_compiler(run, python, tmp_path):
    program(tmp_path / "bin" / "g++", 'case "$*" in *-std=c++17*) exit 1 ;; esac')
    done = run("make", PYTHON=python())
    says_one_sentence(done, "does not know C++17, which TensorFlow needs; install g++ 9 or newer")


def test_an_environment_of_another_python_is_left_alone(run, python, tmp_path):
    assert run("g++", "make", PYTHON=python("3.12")).returncode == 0
    done = run("g++", "make", PYTHON=python("3.11"))
    says_one_sentence(
        done, "has Python 3.12, not 3.11; remove it, or name another: make install VENV="
    )
    assert (tmp_path / "venv" / "bin" / "python").exists()


def test_an_environment_keeps_its_tensorflow(run, python, tmp_path):
    run("g++", "make", PYTHON=python(), TF="2.18")
    (tmp_path / "installed").unlink()
    assert run("g++", "make").stderr == ""  # nothing to do
    run("g++", "make", EXTRAS="dev")
    assert "constraints/tf2.18.txt" in (tmp_path / "installed").read_text()
    run("g++", "make", TF="2.21")
    assert "constraints/tf2.21.txt" in (tmp_path / "installed").read_text()


def test_no_internet(run, python):
    offline = 'echo "NewConnectionError: Failed to establish a new connection"; exit 1'
    done = run("g++", "make", PYTHON=python(offline=offline))
    assert done.returncode == 1
    assert "the package index cannot be reached; with internet run make wheels" in done.stderr


def test_a_folder_of_wheels_that_has_none(run, tmp_path):
    done = run("g++", "make", HVD_NMT_WHEELS=str(tmp_path))
    says_one_sentence(done, f"HVD_NMT_WHEELS={tmp_path} holds no wheels; fill it with make wheels")


def test_horovod_is_built_with_two_lines_changed(run, python, tmp_path):
    assert run("g++", "make", PYTHON=python()).returncode == 0
    assert (tmp_path / "built").read_text() == "one.cc\n"
    assert "stream->platform_specific_handle().stream" in (tmp_path / "mpi_ops.cc").read_text()
    (wheel,) = (tmp_path / ".cache" / "hvd_nmt" / "wheels").glob("*/*.whl")
    assert wheel.parent.name.startswith("horovod-0.28.1-tf2.21.0-cp311-")


def test_a_home_that_cannot_be_written(run, python, tmp_path):
    (tmp_path / "file").touch()
    done = run("g++", "make", PYTHON=python(), XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.returncode == 0
    assert "cannot be written, so Horovod's wheel stays in" in done.stderr
    assert list((tmp_path / "venv").glob("wheels/horovod-*/*.whl"))


@pytest.mark.parametrize("second", ["venv", "other"])
def test_two_installations_at_once_build_one_wheel(run, python, tmp_path, second):
    names = ("g++", "make")
    options = {"start": subprocess.Popen, "PYTHON": python()}
    running = [run(*names, directory=name, **options) for name in ("venv", second)]
    said = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert sum("Waiting for another launch/setup.sh to finish." in text for text in said) == 1
    assert (tmp_path / "built").read_text() == "one.cc\n"
