"""Two hosts without a shared file system: the second keeps a copy, from which a run goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import toy
from hvd_nmt.checkpoints import find
from hvd_nmt.checkpoints.find import newest_first
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.names import SUFFIXES
from hvd_nmt.telemetry import jsonl

HOSTS = ("host0", "host1")
ON_TWO_HOSTS = """
import os, socket, sys
from hvd_nmt import train
os.chdir("host" + os.environ["HOROVOD_RANK"])
socket.gethostname = lambda name=os.path.basename(os.getcwd()): name
sys.exit(train.main())
"""
"""each rank is on a host of its own"""
RECORDS = ("config.yaml", "run.id", "spm.model", "environment.json", "command.txt")
OFTEN = ("--checkpoints.every-steps", "2", "--evaluation.every-steps", "3")


def train(toy_commands, folder: Path, data: Path, steps: int, *more: str, program=ON_TWO_HOSTS):
    """A start on two hosts, each of which has its own directory in `folder`."""
    for host in HOSTS:
        (folder / host).mkdir(parents=True, exist_ok=True)
    command = [*toy.horovodrun(2), *toy_commands.command(program)]
    options = toy.train_options(data, "run", steps, *OFTEN, *more)
    return toy.Run([*command, *options], folder, toy.environment(folder)).finished()


def values(checkpoint: Checkpoint) -> tuple:
    """What the hosts must have in common: TensorFlow writes no graph twice with the same bytes."""
    manifest = checkpoint.manifest
    return manifest.step, manifest.val_loss, manifest.files[SUFFIXES[0]]


def checksum(done) -> str:
    (line,) = [line for line in done.stdout.splitlines() if "weights     checksum" in line]
    return line.split("checksum ")[1].split()[0]


@pytest.fixture(scope="module")
def seven_steps(toy_commands, toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both hosts after a run of seven steps: copy the folder."""
    folder = tmp_path_factory.mktemp("hosts")
    done = train(toy_commands, folder, toy_data, 7)
    assert done.returncode == 0, done.stderr
    assert "copies      of each checkpoint are kept on host0, host1" in done.stdout
    return folder


@pytest.fixture(scope="module")
def unharmed(toy_commands, toy_data: Path, seven_steps: Path, tmp_path_factory) -> str:
    """The checksum of the weights after ten steps, the last three by a second start."""
    folder = shutil.copytree(seven_steps, tmp_path_factory.mktemp("unharmed") / "hosts")
    done = train(toy_commands, folder, toy_data, 10)
    assert done.returncode == 0, done.stderr
    assert "found " not in done.stdout
    return checksum(done)


def test_the_second_host_holds_the_same_checkpoints_and_all_that_a_run_needs(
    seven_steps: Path,
) -> None:
    first, second = (seven_steps / host / "run" for host in ("host0", "host1"))
    steps = [[c.step for c in newest_first(run_dir)] for run_dir in (first, second)]
    assert steps == [[7, 6, 4], [7, 6, 4]]
    for ours, theirs in zip(newest_first(first), newest_first(second), strict=True):
        find.verify(theirs)
        assert values(theirs) == values(ours)
    for name in RECORDS:
        assert (second / name).read_bytes() == (first / name).read_bytes(), name
    assert len((first / "run.id").read_text()) == 17
    assert not list(second.rglob("best_models"))
    assert not list(seven_steps.rglob(".saving-*"))


def test_its_metrics_are_those_of_the_first(seven_steps: Path) -> None:
    texts = [(seven_steps / host / "run/metrics.jsonl").read_bytes() for host in ("host0", "host1")]
    assert texts[0] == texts[1]
    path = seven_steps / "host1/run/metrics.jsonl"
    kinds = {(line["kind"], line.get("step")) for line in jsonl.read(path)}
    assert {("start", None), ("train", 7), ("eval", 7), ("save", 4), ("end", None)} <= kinds


def test_each_save_says_how_long_training_waited(seven_steps: Path) -> None:
    lines = toy.metrics(seven_steps / "host0" / "run", "save")
    assert [line["step"] for line in lines] == [2, 4, 6, 7]
    for line in lines:
        assert min(line["wait_s"], line["background_s"]) > 0
        assert line["copies"] == 2


def test_a_run_whose_first_host_lost_its_disk_goes_on(
    toy_commands, toy_data: Path, seven_steps: Path, unharmed: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(seven_steps, tmp_path / "hosts")
    shutil.rmtree(folder / "host0" / "run")
    done = train(toy_commands, folder, toy_data, 10)
    assert done.returncode == 0, done.stderr
    assert "found       the checkpoint of step 7 on host1: brought to host0" in done.stdout
    assert "resuming    from run/model.ckpt-7" in done.stdout
    assert checksum(done) == unharmed
    first = folder / "host0" / "run"
    assert [line["step"] for line in toy.metrics(first)] == list(range(1, 11))
    assert (first / "run.id").read_bytes() == (folder / "host1/run/run.id").read_bytes()
    assert [line["step"] for line in toy.metrics(first, "eval")] == [3, 6, 7, 9, 10]
    assert len((first / "command.txt").read_text().splitlines()) == 2


FULL_COPY = ON_TWO_HOSTS.replace(
    "sys.exit",
    """
import errno
from hvd_nmt.checkpoints import saver
from hvd_nmt.common import files
if os.environ["HOROVOD_RANK"] == "1":
    def full(path, real=saver.sync):
        if "model.ckpt-4" in str(path) or "model.ckpt-2" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path)
    saver.sync = full
sys.exit""",
)
"""the disk of the second host is full for two saves"""


def test_a_copy_that_cannot_be_written_is_said_and_ends_nothing(
    toy_commands, toy_data: Path, tmp_path: Path
) -> None:
    done = train(toy_commands, tmp_path, toy_data, 6, program=FULL_COPY)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "copies      host1: " in line]
    assert len(said) == 2, done.stdout
    assert all("No space left on device" in line and "The run goes on" in line for line in said)
    assert [c.step for c in newest_first(tmp_path / "host1" / "run")] == [6]
    assert [c.step for c in newest_first(tmp_path / "host0" / "run")] == [6, 4, 2]
    lines = toy.metrics(tmp_path / "host0" / "run", "save")
    assert [(line["step"], line["copies"]) for line in lines] == [(2, 1), (4, 1), (6, 2)]


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


def test_hosts_that_save_different_states_end_the_run(
    toy_commands, toy_data: Path, tmp_path: Path
) -> None:
    more = ("--evaluation.every-steps", "20")
    done = train(toy_commands, tmp_path, toy_data, 20, *more, program=DRIFTING)
    assert done.returncode != 0
    (said,) = [line for line in done.stderr.splitlines() if "hvd_nmt.train: " in line]
    assert "The checkpoints of step 4 on host0 and host1 differ" in said
    assert json.loads((tmp_path / "host0/run/model.ckpt-4.json").read_text())["step"] == 4
