"""Which hosts have a directory of their own, and from which of them a start goes on."""

import os
import shutil

import pytest
import tensorflow as tf

from hvd_nmt.checkpoints import saver
from hvd_nmt.checkpoints.find import newest_first, verify
from hvd_nmt.checkpoints.names import SUFFIXES
from marked_run import FACTS, mark

CASES = ("buried", "fresh", "alike", "wiped", "older", "damaged", "damaged_copy", "another_run",
         "unknown", "shared")  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run directory with the checkpoints of steps 10, 20 and 30."""
    run_dir = tmp_path_factory.mktemp("made") / "run"
    run_dir.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saver, "meta_graph", lambda *_: b"graph")
        model = tf.train.Checkpoint(weight=tf.Variable(tf.zeros([9_000])))
        state = tf.train.Checkpoint(model=model)
        writer = saver.Saver(run_dir, state, FACTS, keep=3, keep_best=2)
        for step in (10, 20, 30):
            mark(state, step)
            writer.save(step)
    for name in ("config.yaml", "run.id", "command.txt", "metrics.jsonl"):
        (run_dir / name).write_text(f"{name} of the run\n", encoding="utf-8")
    return run_dir


def without(run_dir, *steps):
    for step in steps:
        for path in run_dir.glob(f"model.ckpt-{step}.*"):
            path.unlink()


@pytest.fixture(scope="module")
def agreed(run, run_on_ranks, tmp_path_factory):
    """Case -> its folders, and what rank 0 has found and said."""
    folder = tmp_path_factory.mktemp("cases")
    hosts = {case: [folder / case / host / "run" for host in ("host0", "host1")] for case in CASES}
    for case, run_dirs in hosts.items():
        for run_dir in run_dirs:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            if case != "fresh":
                shutil.copytree(run, run_dir)
    shutil.rmtree(hosts["wiped"][0])
    shutil.rmtree(hosts["buried"][0])
    for step in (10, 20, 30):
        os.truncate(f"{hosts['buried'][1] / f'model.ckpt-{step}'}{SUFFIXES[0]}", 1000)
    without(hosts["older"][0], 30)
    os.truncate(f"{hosts['damaged'][0] / 'model.ckpt-30'}{SUFFIXES[0]}", 1000)
    without(hosts["damaged_copy"][0], 30)
    os.truncate(f"{hosts['damaged_copy'][1] / 'model.ckpt-30'}{SUFFIXES[0]}", 1000)
    (hosts["another_run"][1] / "run.id").write_text("another\n", encoding="utf-8")
    without(hosts["another_run"][1], 30)
    without(hosts["unknown"][0], 30)
    for run_dir in hosts["unknown"]:
        (run_dir / "run.id").unlink()
    shutil.rmtree(hosts["shared"][1])
    hosts["shared"][1].symlink_to(hosts["shared"][0])
    lines, others = run_on_ranks(
        "agree_on_directories.py", 2, tmp_path_factory.mktemp("out"),
        *(folder / case for case in CASES),
    )  # fmt: skip
    for ours, theirs in zip(lines, others, strict=True):
        assert all(ours.get(name) == theirs.get(name) for name in ("writers", "source", "id"))
    return {line["case"]: (hosts[line["case"]], line) for line in lines}


@pytest.mark.parametrize("case", ["fresh", "alike"])
def test_each_host_with_a_directory_of_its_own_writes_there(agreed, case):
    _, found = agreed[case]
    assert (found["writers"], found["source"]) == ([0, 1], 0)
    assert found["said"] == ["directories each of host0, host1 has its own"]
    assert (found["id"] == "run.id of the run") == (case == "alike")


def test_hosts_that_share_a_directory_keep_one(agreed):
    (first, _), found = agreed["shared"]
    assert (found["writers"], found["said"]) == ([0], [])
    assert found["id"] == "run.id of the run"
    assert not list(first.glob(".saving-*"))


@pytest.mark.parametrize("case", ["wiped", "older", "damaged", "unknown"])
def test_the_newest_intact_checkpoint_is_where_the_run_goes_on(agreed, run, case):
    (first, second), found = agreed[case]
    assert "newest      the checkpoint of step 30 on host1" in found["said"]
    assert (found["writers"], found["source"]) == ([0, 1], 1)
    verify(newest_first(second)[0])
    if case != "damaged":  # its records are not behind
        wanted = (run / "metrics.jsonl").read_bytes()
        assert (first / "metrics.jsonl").read_bytes() == wanted
    assert not list(first.rglob(".saving-*"))
    assert (first / "damaged" / "model.ckpt-30.json").exists() == (case == "damaged")


def test_a_damaged_copy_is_put_aside(agreed):
    (first, second), found = agreed["damaged_copy"]
    assert not [line for line in found["said"] if line.startswith("found")]
    assert newest_first(first)[0].step == newest_first(second)[0].step == 20
    assert found["source"] == 0


def test_no_run_begins_over_the_damaged_checkpoints_of_another_host(agreed):
    _, found = agreed["buried"]
    assert "writers" not in found
    assert "run on host1 had checkpoints, but none is complete" in found["said"][-1]


def test_another_run_is_refused(agreed):
    _, found = agreed["another_run"]
    assert "writers" not in found
    assert "run has another run on host1 than on host0: move one of them away" in found["said"][0]
