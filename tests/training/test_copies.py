"""Two hosts without a shared file system: each keeps the whole run, and either can lose it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import toy
from forks import EAGER
from hvd_nmt.checkpoints import find
from hvd_nmt.checkpoints.find import best_first, newest_first
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.names import SUFFIXES

pytestmark = pytest.mark.long

HOSTS = ("host0", "host1")
ON_TWO_HOSTS = """
import os, socket, sys
from hvd_nmt import train
os.chdir("host" + os.environ["HOROVOD_RANK"])
socket.gethostname = lambda name=os.path.basename(os.getcwd()): name
sys.exit(train.main())
"""
"""each rank is on a host of its own"""
FULL = ON_TWO_HOSTS.replace(
    "sys.exit",
    """
import errno
from hvd_nmt.checkpoints import saver
if os.environ["HOROVOD_RANK"] == "1":
    def full(path, real=saver.sync):
        if "model.ckpt-4" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path)
    saver.sync = full
sys.exit""",
)
"""the disk of the second host is full at the second save"""
RECORDS = ("config.yaml", "run.id", "spm.model", "environment.json", "command.txt")


def train(toy_commands, folder: Path, data: Path, program: str, evaluate_every: int = 3):
    """A start of ten steps on two hosts, each of which has its own directory in `folder`."""
    for host in HOSTS:
        (folder / host).mkdir(parents=True, exist_ok=True)
    command = [*toy.horovodrun(2), *toy_commands.command(program)]
    more = ("--checkpoints.every-steps", "2", "--evaluation.every-steps", str(evaluate_every))
    options = toy.train_options(data, "run", 10, *more, "--evaluation.sentences", "2")
    environment = toy.environment(folder) | {EAGER: "1"}
    return toy.Run([*command, *options], folder, environment).finished()


def values(checkpoint: Checkpoint) -> tuple:
    """What the hosts must have in common: TensorFlow writes no graph twice with the same bytes."""
    manifest = checkpoint.manifest
    return manifest.step, manifest.val_loss, manifest.files[SUFFIXES[0]]


def checksum(done) -> str:
    (line,) = [line for line in done.stdout.splitlines() if "weights     checksum" in line]
    return line.split("checksum ")[1].split()[0]


@pytest.fixture(scope="module")
def ten_steps(toy_commands, toy_data: Path, tmp_path_factory: pytest.TempPathFactory):
    """Both hosts after a run: copy the folder."""
    folder = tmp_path_factory.mktemp("hosts")
    done = train(toy_commands, folder, toy_data, ON_TWO_HOSTS)
    assert done.returncode == 0, done.stderr
    assert "directories each of host0, host1 has its own" in done.stdout
    return folder, done


def test_the_second_host_holds_the_same_checkpoints_and_all_that_a_run_needs(ten_steps) -> None:
    first, second = (ten_steps[0] / host / "run" for host in HOSTS)
    for found in (newest_first, best_first):
        for ours, theirs in zip(found(first), found(second), strict=True):
            find.verify(theirs)
            assert values(theirs) == values(ours)
    assert [c.step for c in newest_first(second)] == [10, 9, 8]
    for name in ("config.yaml", "run.id", "spm.model"):
        assert (second / name).read_bytes() == (first / name).read_bytes(), name
    for kind in ("train", "eval", "save"):
        ours, theirs = (toy.metrics(run, kind) for run in (first, second))
        assert [line["step"] for line in theirs] == [line["step"] for line in ours] != []
    learned = ("step", "train_loss", "learning_rate")
    ours, theirs = (
        [[line[n] for n in learned] for line in toy.metrics(r)] for r in (first, second)
    )
    assert ours == theirs
    assert ten_steps[1].stdout.count("step 10/10") == 1
    assert not list(ten_steps[0].rglob(".saving-*"))


def test_a_run_whose_first_host_lost_its_disk_goes_on(
    toy_commands, toy_data: Path, ten_steps, tmp_path: Path
) -> None:
    """To the same weights."""
    folder = shutil.copytree(ten_steps[0], tmp_path / "hosts")
    shutil.rmtree(folder / "host0" / "run")
    for path in (file for step in (9, 10) for file in folder.rglob(f"*-{step}.*")):
        path.unlink()
    done = train(toy_commands, folder, toy_data, ON_TWO_HOSTS)
    assert done.returncode == 0, done.stderr
    assert "found       the checkpoint of step 8 on host1" in done.stdout
    assert "resuming    from run/model.ckpt-8" in done.stdout
    assert checksum(done) == checksum(ten_steps[1])
    first = folder / "host0" / "run"
    assert [line["step"] for line in toy.metrics(first)] == list(range(1, 11))
    assert (first / "run.id").read_bytes() == (folder / "host1/run/run.id").read_bytes()
    assert [line["step"] for line in toy.metrics(first, "eval")] == [3, 6, 9, 10]
    assert [c.step for c in newest_first(first)] == [10, 9]


def test_a_full_disk_on_any_host_ends_the_run_with_one_sentence(
    toy_commands, toy_data: Path, tmp_path: Path
) -> None:
    done = train(toy_commands, tmp_path, toy_data, FULL, evaluate_every=20)
    assert done.returncode != 0
    (said,) = [line for line in done.stderr.splitlines() if "hvd_nmt.train: " in line]
    assert "On host1: The checkpoint run/model.ckpt-4 cannot be written (No space left" in said
    assert [c.step for c in newest_first(tmp_path / "host1" / "run")] == [2]
