"""Two hosts without a shared file system: the second keeps a copy, from which a run goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import toy
from forks import EAGER
from hvd_nmt.checkpoints import find
from hvd_nmt.checkpoints.find import newest_first
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.names import SUFFIXES
from hvd_nmt.telemetry import jsonl

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
FULL_COPY = ON_TWO_HOSTS.replace(
    "sys.exit",
    """
import errno
from hvd_nmt.checkpoints import saver
if os.environ["HOROVOD_RANK"] == "1":
    def full(path, real=saver.sync):
        if "model.ckpt-4" in str(path) or "model.ckpt-2" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path)
    saver.sync = full
sys.exit""",
)
"""the disk of the second host is full for two saves"""
DRIFTING = ON_TWO_HOSTS.replace(
    "sys.exit",
    """
from hvd_nmt.checkpoints.snapshot import Snapshot
def drifted(self, real=Snapshot.take):
    real(self)
    copy, _ = self._pairs[-1]
    copy.assign_add(copy + 1)
if os.environ["HOROVOD_RANK"] == "1":
    Snapshot.take = drifted
sys.exit""",
)
"""in the second save, and the state of the second host is not that of the first any more"""
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
    """Both hosts after a run in which the copy could not be written twice: copy the folder."""
    folder = tmp_path_factory.mktemp("hosts")
    done = train(toy_commands, folder, toy_data, FULL_COPY)
    assert done.returncode == 0, done.stderr
    assert "copies      of each checkpoint are kept on host0, host1" in done.stdout
    return folder, done


def test_a_copy_that_cannot_be_written_is_said_and_ends_nothing(ten_steps) -> None:
    folder, done = ten_steps
    said = [line for line in done.stdout.splitlines() if "copies      host1: " in line]
    assert len(said) == 2, done.stdout
    assert all("No space left on device" in line and "The run goes on" in line for line in said)
    lines = toy.metrics(folder / "host0" / "run", "save")
    copies = [(line["step"], line["copies"]) for line in lines]
    assert copies == [(2, 1), (4, 1), (6, 2), (8, 2), (10, 2)]
    for line in lines:
        assert min(line["wait_s"], line["background_s"]) > 0


def test_the_second_host_holds_the_same_checkpoints_and_all_that_a_run_needs(ten_steps) -> None:
    first, second = (ten_steps[0] / host / "run" for host in HOSTS)
    for ours, theirs in zip(newest_first(first), newest_first(second), strict=True):
        find.verify(theirs)
        assert values(theirs) == values(ours)
    assert [c.step for c in newest_first(second)] == [10, 8, 6]
    for name in (*RECORDS, "metrics.jsonl"):
        assert (second / name).read_bytes() == (first / name).read_bytes(), name
    kinds = {(line["kind"], line.get("step")) for line in jsonl.read(second / "metrics.jsonl")}
    assert {("start", None), ("train", 7), ("eval", 9), ("save", 4), ("end", None)} <= kinds
    assert not list(second.rglob("best_models"))
    assert not list(ten_steps[0].rglob(".saving-*"))


def test_a_run_whose_first_host_lost_its_disk_goes_on(
    toy_commands, toy_data: Path, ten_steps, tmp_path: Path
) -> None:
    """To the same weights."""
    folder = shutil.copytree(ten_steps[0], tmp_path / "hosts")
    shutil.rmtree(folder / "host0" / "run")
    for path in (file for step in (8, 10) for file in folder.rglob(f"model.ckpt-{step}.*")):
        path.unlink()
    done = train(toy_commands, folder, toy_data, ON_TWO_HOSTS)
    assert done.returncode == 0, done.stderr
    assert "found       the checkpoint of step 6 on host1: brought to host0" in done.stdout
    assert "resuming    from run/model.ckpt-6" in done.stdout
    assert checksum(done) == checksum(ten_steps[1])
    first = folder / "host0" / "run"
    assert [line["step"] for line in toy.metrics(first)] == list(range(1, 11))
    assert (first / "run.id").read_bytes() == (folder / "host1/run/run.id").read_bytes()
    assert [line["step"] for line in toy.metrics(first, "eval")] == [3, 6, 9, 10]
    assert len((first / "command.txt").read_text().splitlines()) == 2


def test_hosts_that_save_different_states_end_the_run(
    toy_commands, toy_data: Path, tmp_path: Path
) -> None:
    done = train(toy_commands, tmp_path, toy_data, DRIFTING, evaluate_every=20)
    assert done.returncode != 0
    (said,) = [line for line in done.stderr.splitlines() if "hvd_nmt.train: " in line]
    assert "The checkpoints of step 4 on host0 and host1 differ" in said
    assert json.loads((tmp_path / "host0/run/model.ckpt-4.json").read_text())["step"] == 4
