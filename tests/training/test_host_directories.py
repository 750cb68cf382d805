"""Which hosts keep a copy of a run, and which checkpoint a start brings to the first of them."""

import os
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from hvd_nmt.checkpoints import meta_graph
from hvd_nmt.checkpoints.find import newest_first, verify
from hvd_nmt.checkpoints.names import SUFFIXES
from hvd_nmt.checkpoints.saver import Saver
from marked_run import FACTS, mark, marked

CASES = ("fresh", "alike", "wiped", "older", "damaged", "damaged_copy", "another_run", "unknown",
         "shared")  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run directory with the checkpoints of steps 10, 20 and 30."""
    run_dir = tmp_path_factory.mktemp("made") / "run"
    run_dir.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(meta_graph, "export", lambda *_: b"graph")
        model = tf.train.Checkpoint(weight=tf.Variable(tf.zeros([9_000])))
        state = tf.train.Checkpoint(model=model)
        saver = Saver(run_dir, state, FACTS, keep=3, keep_best=2)
        for step in (10, 20, 30):
            mark(state, step)
            saver.save(step)
    for name in ("config.yaml", "run.id", "command.txt", "metrics.jsonl"):
        (run_dir / name).write_text(f"{name} of the run\n", encoding="utf-8")
    return run_dir


def without(run_dir, *steps):
    for step in steps:
        for path in run_dir.glob(f"model.ckpt-{step}.*"):
            path.unlink()


@pytest.fixture(scope="module")
def agreed(run, run_on_ranks, tmp_path_factory):
    """Case -> its folder, the writers, and what rank 0 said."""
    folder = tmp_path_factory.mktemp("cases")
    hosts = {case: [folder / case / host / "run" for host in ("host0", "host1")] for case in CASES}
    for case, run_dirs in hosts.items():
        for run_dir in run_dirs:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            if case != "fresh":
                shutil.copytree(run, run_dir)
    shutil.rmtree(hosts["wiped"][0])
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
    assert [line["writers"] for line in lines] == [line["writers"] for line in others]
    return {
        line["case"]: (hosts[line["case"]], line["writers"], line["said"]) for line in lines
    }  # fmt: skip


@pytest.mark.parametrize("case", ["fresh", "alike"])
def test_each_host_with_a_directory_of_its_own_keeps_a_copy(agreed, case):
    _, writers, said = agreed[case]
    assert writers == [0, 1]
    assert said == ["copies      of each checkpoint are kept on host0, host1"]


def test_hosts_that_share_a_directory_keep_one(agreed):
    (first, _), writers, said = agreed["shared"]
    assert (writers, said) == ([0], [])
    assert not list(first.glob(".saving-*"))


@pytest.mark.parametrize("case", ["wiped", "older", "damaged"])
def test_the_newest_intact_checkpoint_is_brought_to_the_first_host(agreed, run, case):
    (first, second), writers, said = agreed[case]
    assert "found       the checkpoint of step 30 on host1: brought to host0" in said
    assert writers == [0, 1]
    newest = newest_first(first)[0]
    verify(newest)
    assert marked(newest.prefix) == {30.0}
    for suffix in (*SUFFIXES, ".json"):
        wanted = Path(f"{second / 'model.ckpt-30'}{suffix}").read_bytes()
        assert Path(f"{newest.prefix}{suffix}").read_bytes() == wanted
    for name in ("config.yaml", "run.id", "command.txt", "metrics.jsonl"):
        assert (first / name).read_bytes() == (run / name).read_bytes()
    assert not list(first.rglob(".saving-*"))
    assert (first / "damaged" / "model.ckpt-30.json").exists() == (case == "damaged")


def test_a_damaged_copy_is_put_aside(agreed):
    (first, second), writers, said = agreed["damaged_copy"]
    assert not [line for line in said if line.startswith("found")]
    assert newest_first(first)[0].step == newest_first(second)[0].step == 20
    assert writers == [0, 1]


def test_another_run_gets_no_copy_and_gives_none(agreed):
    (_, second), writers, said = agreed["another_run"]
    assert writers == [0]
    assert any("copies      host1 holds another run in run: no copy is kept" in s for s in said)
    assert newest_first(second)[0].step == 20
    (first, _), writers, said = agreed["unknown"]
    assert newest_first(first)[0].step == 20  # a start then says which host to name first
    assert writers == [0]
