"""launch/horovodrun.sh: as many ranks as asked for, and no secret on any command line."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CANARY = "canary-5f0e8d"

# Every rank says who it is, and whether the canary reached its environment or any command line.
WHO = """
import os
from pathlib import Path

def read(path):
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:  # the process is gone
        return ""

canary = Path("canary").read_text()
leaks = [str(p) for p in Path("/proc").glob("[0-9]*/cmdline") if canary in read(p)]
print("rank", os.environ["HOROVOD_RANK"], "of", os.environ["HOROVOD_SIZE"],
      "wanted", os.environ["HVD_NMT_RANKS"],
      "leaks", len(leaks) + sum(canary in value for value in os.environ.values()),
      "nccl", os.environ.get("NCCL_DEBUG"), "terraform", os.environ.get("TF_VAR_password"))
"""


def launch(*arguments, cwd, script="horovodrun.sh", **variables):
    return subprocess.run(
        [ROOT / "launch" / script, *arguments], cwd=cwd, capture_output=True, text=True,
        env={**os.environ, "VENV": sys.prefix, **variables}, timeout=600,
    )  # fmt: skip


@pytest.fixture
def hostfile(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# three slots\nlocalhost slots=3\n\n")
    return path


def test_fewer_ranks_than_slots_and_a_clean_environment(tmp_path, hostfile):
    (tmp_path / "canary").write_text(CANARY)
    (tmp_path / "who.py").write_text(WHO)
    done = launch(
        "-f", hostfile, "-n", "2", "--", "python", "who.py", cwd=tmp_path, MY_TOKEN=CANARY,
        TF_VAR_password=CANARY, NCCL_DEBUG="WARN", HOROVOD_RANK="7", HOROVOD_SIZE="9",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = sorted(line.partition(":")[2] for line in done.stdout.splitlines() if "rank" in line)
    wanted = "of 2 wanted 2 leaks 0 nccl WARN terraform None"
    assert said == [f"rank 0 {wanted}", f"rank 1 {wanted}"]


def test_the_end_is_the_sentence_and_the_code_of_the_rank_that_failed(tmp_path, hostfile):
    (tmp_path / "fails.py").write_text(
        "import sys; print('hvd_nmt.train: The disk is full.', file=sys.stderr); sys.exit(3)"
    )
    done = launch("-f", hostfile, "-n", "1", "--", "python", "fails.py", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1] == "hvd_nmt.train: The disk is full."
    assert "Traceback" not in done.stderr


def test_a_host_without_ssh_is_the_last_line(tmp_path):
    (tmp_path / "hosts").write_text("nowhere.invalid slots=1\n")
    done = launch("-f", "hosts", "--nic", "lo", "--", "true", cwd=tmp_path)
    assert done.returncode == 1
    assert "ssh to nowhere.invalid does not work (" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


# A rank that prints more than a pipe holds, and that needs longer to end than horovodrun gives it.
SLOW = """
import pathlib, signal, sys, time

def end(number, frame):
    time.sleep(8)
    pathlib.Path("saved").touch()
    sys.exit(75)

signal.signal(signal.SIGTERM, end)
for _ in range(20_000):
    print("a line", flush=True)
pathlib.Path("ready").touch()
time.sleep(600)
"""


@pytest.mark.long
def test_ranks_have_the_time_to_save_and_wait_for_no_reader(tmp_path, hostfile):
    (tmp_path / "slow.py").write_text(SLOW)
    command = [ROOT / "launch" / "horovodrun.sh", "-f", hostfile, "-n", "1"]
    with subprocess.Popen(
        [*command, "--", "python", "slow.py"], cwd=tmp_path, env={**os.environ, "VENV": sys.prefix},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        process.stdout.readline()
        process.stdout.close()
        deadline = time.monotonic() + 600
        while not (tmp_path / "ready").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline, "the rank waits for a reader"
            time.sleep(0.1)
        process.terminate()
        assert process.wait(600) == 75
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-n", "4", "--", "true"], "has 3 slots, and 4 ranks were asked for"),
        (["-n", "2"], "no command given"),
        (["python", "-m", "hvd_nmt.train"], "'python' is not an option"),
        (["-f", "nowhere", "--", "true"], "no host file nowhere"),
        (["-f", "bad", "--", "true"], "bad line 2 is 'v100b:2', expected: NAME slots=RANKS"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(tmp_path, hostfile, arguments, sentence):
    (tmp_path / "bad").write_text("v100a slots=2\nv100b:2\n")
    if "-f" not in arguments:
        arguments = ["-f", str(hostfile), *arguments]
    done = launch(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_mpirun_refuses_a_horovod_without_mpi(tmp_path, hostfile):
    done = launch("-f", hostfile, "--", "true", cwd=tmp_path, script="mpirun.sh")
    assert done.returncode == 2
    assert "built without MPI, so each process would train alone" in done.stderr
