"""launch/setup.sh: what is missing is said in one sentence, with the line that mends it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import toy
from launched import program

SETUP = Path(__file__).resolve().parents[2] / "launch" / "setup.sh"
TOOLS = """
bash cat cp cut dirname env find flock grep gzip mkdir mktemp mv nproc realpath rm sed sha256sum
sleep tail tar timeout touch uname wc
"""
FAKE_PYTHON = """
case "$*" in
    *"version_info"*) echo VERSION ;;
    *"import hvd_nmt"*) echo "Horovod can use: gloo" ;;
    "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"
        echo "command = x -m venv $3" >"$3/pyvenv.cfg" ;;
    *" download "*) while [ "$1" != -d ]; do shift; done
        h=horovod-0.28.1; cd "$2"; mkdir -p $h/horovod/tensorflow $h/third_party/gloo/gloo
        echo two.cc >$h/third_party/gloo/gloo/CMakeLists.txt
        l=CheckLanguage; a='add_subdirectory(third_party/gloo)'
        printf "    $a\\ninclude($l)\\nx\\nmacro(ADD_CUDA)\\n" >$h/CMakeLists.txt
        printf 'one.cc\\nxla_mpi_ops.cc\\n' >$h/horovod/tensorflow/CMakeLists.txt
        echo 'GpuStreamHandle AsGpuStreamValue(Stream* stream);' >$h/horovod/tensorflow/mpi_ops.cc
        tar -czf $h.tar.gz $h ;;
    *" wheel "*) while [ "$1" != -w ]; do shift; done
        cd "$3"; cat C*.txt */*/C*.txt */*/*/C*.txt | grep -v reduce_local >>"$HOME/built"; cd - >&2
        cat "$3/horovod/tensorflow/mpi_ops.cc" >"$HOME/mpi_ops.cc"
        while [ -e "$HOME/slow" ]; do sleep 0.1; done; mkdir "$2"; touch "$2/horovod.whl" ;;
    *" install "*) echo "$*" >>"$HOME/installed"; OFFLINE ;;
esac
"""
"""an interpreter that makes environments of itself; its pip builds as long as there is ~/slow"""
PATCHED = """    add_subdirectory(third_party/gloo EXCLUDE_FROM_ALL)\nmacro(ADD_CUDA)
set(CMAKE_UNITY_BUILD ON)\none.cc\nset(CMAKE_UNITY_BUILD ON)\ntwo.cc\n"""
"""the lists of sources as they are built"""


def script(path, text):
    """Makes a program of the shell; its path."""
    return program(path, f"#!/bin/sh\n{text}\n")


@pytest.fixture
def run(tmp_path):
    """Runs setup.sh with a PATH that holds only basic tools and the given programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for tool in TOOLS.split():
        (programs / tool).symlink_to(shutil.which(tool))

    def run_setup(*names, directory="venv", start=subprocess.run, **variables):
        for name in names:
            script(programs / name, f'echo "{name} $*" >>"{tmp_path}/called"')
        environment = {"PATH": str(programs), "HOME": str(tmp_path), "GPU": "0", **variables}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return start([SETUP, tmp_path / directory], env=environment, **pipes)

    return run_setup


@pytest.fixture
def python(tmp_path):
    """Makes the fake interpreter of a version; its path."""

    def make(version="3.11", offline="true"):
        text = FAKE_PYTHON.replace("VERSION", version).replace("OFFLINE", offline)
        return script(tmp_path / f"python{version}", text)

    return make


def says_one_sentence(done, sentence):
    assert sentence in done.stderr
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr


def test_no_compiler_and_no_apt_get(run, python, tmp_path):
    done = run("make", PYTHON=python())
    says_one_sentence(done, "lacks g++; run: sudo apt-get install -y --no-install-recommends g++")
    assert not (tmp_path / "venv").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may install system packages")
def test_root_on_debian_gets_the_missing_packages(run, tmp_path):
    script(tmp_path / "bin" / "python3", "echo 3.10")
    assert "no Python 3.11, 3.12 or 3.13 with the venv module found" in run("apt-get").stderr
    assert (tmp_path / "called").read_text().splitlines() == [
        "apt-get update -qq",
        "apt-get install -y --no-install-recommends python3 python3-venv -qq",
    ]


@pytest.mark.parametrize(
    ("tensorflow", "version", "sentence"),
    [
        ("2.21", "3.9", "is Python 3.9. TensorFlow 2.21 with Horovod 0.28.1 needs Python 3.11"),
        ("2.18", "3.13", "TensorFlow 2.18 with Horovod 0.28.1 needs Python 3.11 or 3.12"),
        ("2.30", "3.11", "TF is '2.30', expected 2.21 or, for V100 GPUs, 2.18"),
    ],
)
def test_versions_that_do_not_go_together(run, python, tensorflow, version, sentence):
    says_one_sentence(run("g++", "make", PYTHON=python(version), TF=tensorflow), sentence)


def test_a_directory_with_other_things_is_left_alone(run, tmp_path):
    fake = script(tmp_path / "python3.11", "echo 3.11")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    done = run("g++", "make", directory="home", PYTHON=fake)
    says_one_sentence(done, "exists and is no virtual environment")
    assert (tmp_path / "home" / "thesis.tex").exists()


def test_an_old_compiler(run, python, tmp_path):
    script(tmp_path / "bin" / "g++", 'case "$*" in *-std=c++17*) exit 1 ;; esac')
    done = run("make", PYTHON=python())
    says_one_sentence(done, "does not know C++17, which TensorFlow needs; install g++ 9 or newer")


def test_an_environment_of_another_python_is_left_alone(run, python, tmp_path):
    assert run("g++", "make", PYTHON=python("3.12")).returncode == 0
    done = run("g++", "make", PYTHON=python("3.11"))
    says_one_sentence(
        done, "has Python 3.12, not 3.11; remove it, or name another: make install VENV="
    )
    assert (tmp_path / "venv" / "bin" / "python").exists()
    moved = (tmp_path / "venv").rename(tmp_path / "moved")  # an environment has its path in it
    program(moved / "lib" / "setup.py", "")
    done = run("g++", "make", directory="moved", PYTHON=python("3.12"))
    assert (done.returncode, [path.name for path in moved.glob("[bl]*")]) == (0, ["bin"])


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


def test_horovod_is_built_from_a_patched_source(run, python, tmp_path):
    assert run("g++", "make", PYTHON=python()).returncode == 0
    assert (tmp_path / "built").read_text() == PATCHED
    assert "stream->platform_specific_handle().stream" in (tmp_path / "mpi_ops.cc").read_text()
    (wheel,) = (tmp_path / ".cache" / "hvd_nmt" / "wheels").glob("*/*.whl")
    assert wheel.parent.name.startswith("horovod-0.28.1-tf2.21.0-cp311-")


def test_a_failure_ends_the_build_beside_it(run, python, tmp_path):
    (tmp_path / "slow").touch()
    late = 'timeout 30 bash -c "until [ -e ~/built ]; do sleep 0.1; done"; exit 1'
    done = run("g++", "make", PYTHON=python(offline=f'[ "${{*#*-e .}}" = "$*" ] || {{ {late}; }}'))
    assert (done.returncode, "Installing the packages failed" in done.stderr) == (1, True)
    assert [*(tmp_path / ".cache" / "hvd_nmt" / "wheels").iterdir()] == []


@pytest.mark.parametrize("second", ["venv", "other"])
def test_two_installations_at_once_build_one_wheel(run, python, tmp_path, second):
    def start(command, env, **_):
        return toy.Run(list(map(str, command)), tmp_path / "said", env)

    (tmp_path / "slow").touch()
    fake = python()
    names = ("venv", second)
    both = [run("g++", "make", directory=name, start=start, PYTHON=fake) for name in names]
    both[0].wait_for(lambda: any("Waiting for another" in one.stderr for one in both))
    (tmp_path / "slow").unlink()
    ends = [one.finished() for one in both]
    assert [done.returncode for done in ends] == [0, 0]
    assert any("Waiting for another" in done.stderr for done in ends)  # each may, for the other
    assert (tmp_path / "built").read_text() == PATCHED
