"""Checkpoints on disk: what is in them, and what survives kills and full disks."""

import os
import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from hvd_nmt.checkpoints.find import best_first, find, newest_first, verify
from hvd_nmt.checkpoints.manifest import newest_step
from hvd_nmt.checkpoints.saver import Saver, sweep
from hvd_nmt.common.errors import ClusterError
from marked_run import FACTS, SUFFIXES, files_of, mark, marked, names, newest

LONG = pytest.mark.long


def test_names_are_the_documented_ones(saved):
    steps = files_of("model.ckpt-10", "model.ckpt-20", "model.ckpt-30")
    assert {path.name for path in saved.iterdir()} == steps | {"checkpoint"}
    assert tf.train.latest_checkpoint(saved) == os.fspath(saved / "model.ckpt-30")
    pointed = tf.train.get_checkpoint_state(saved).all_model_checkpoint_paths
    assert [Path(path).name for path in pointed] == [f"model.ckpt-{n}" for n in (10, 20, 30)]


def test_oldest_beyond_keep_are_removed(state, run_dir):
    mark(state, 40)
    Saver(run_dir, state, FACTS, keep=2, keep_best=1).save(40)
    assert names(run_dir) == files_of("model.ckpt-30", "model.ckpt-40") | {"checkpoint"}
    assert tf.train.latest_checkpoint(run_dir) == os.fspath(run_dir / "model.ckpt-40")


def test_a_resumed_run_traces_no_model_for_its_checkpoints(state, run_dir, monkeypatch):
    monkeypatch.setattr("hvd_nmt.checkpoints.saver.meta_graph", None)
    resumed, _ = newest(run_dir)
    Saver(run_dir, state, FACTS, keep=2, keep_best=1, newest=resumed).save(40)
    first, second = (run_dir / f"model.ckpt-{step}.meta" for step in (30, 40))
    assert first.read_bytes() == second.read_bytes()


def test_what_a_host_rescued_counts_for_no_keep_and_goes_with_the_next_save(state, run_dir):
    saver = Saver(run_dir, state, FACTS, keep=2, keep_best=1)
    mark(state, 35)
    rescued = saver.rescue(35, "v100b")
    assert (newest(run_dir)[0].prefix, newest_step(run_dir)) == (rescued.prefix, 30)
    assert find(run_dir, "latest").name == "model.ckpt-30"
    assert files_of("model.ckpt-10", "model.ckpt-20", "model.ckpt-30") < names(run_dir)
    saver.save(35)
    assert newest(run_dir)[0].prefix == run_dir / "model.ckpt-35"
    assert not rescued.prefix.parent.parent.exists()


def note(saver, step, *scores):
    saver.save(step)
    saver.note(step, *scores)


def test_best_models_are_the_lowest_losses(state, tmp_path):
    saver = Saver(tmp_path, state, FACTS, keep=1, keep_best=2)
    nan, inf = float("nan"), float("inf")
    for step, loss in enumerate((nan, 3.25, 2.0, 2.5, 9.0, 1.59431, nan, inf)):
        note(saver, step, loss)
    kept = ("val_loss=1.5943-step-5", "val_loss=2.0000-step-2")
    assert names(tmp_path / "best_models") == files_of(*kept)
    assert [c.prefix.name for c in best_first(tmp_path)] == list(kept)
    assert find(tmp_path, "best").name == kept[0]


def test_another_measure_may_decide_which_are_the_best(state, tmp_path):
    """From step 30 on BLEU decides; what was saved before has it, too."""
    mark(state, 1)
    by_loss = Saver(tmp_path, state, FACTS, keep=1, keep_best=2)
    note(by_loss, 10, 2.0, 20.0, 45.0)
    note(by_loss, 20, 1.5, 10.0, 45.0)
    by_bleu = Saver(tmp_path, state, FACTS, keep=1, keep_best=2, best_by="bleu")
    for step, bleu in ((30, float("nan")), (40, 9.0), (50, 27.314)):
        note(by_bleu, step, 3.0, bleu, 45.0)
    kept = ("bleu=27.31-step-50", "val_loss=2.0000-step-10")
    assert [c.prefix.name for c in best_first(tmp_path)] == list(kept)
    assert names(tmp_path / "best_models") == files_of(*kept)
    assert find(tmp_path, "best").name == kept[0]
    by_loss.save(60)  # the newest checkpoint says what decides
    assert find(tmp_path, "best").name == kept[1]


def test_files_are_on_the_disk_before_they_get_their_names_and_the_manifest_comes_last(
    state, tmp_path, monkeypatch
):
    on_disk, renamed, fsync, replace = set(), [], os.fsync, os.replace

    def sync(descriptor):
        on_disk.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def rename(old, new):
        assert os.fspath(old) in on_disk
        assert Path(old).relative_to(tmp_path).parts[0].startswith(".")  # a private draft
        renamed.append(Path(new).name)
        replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    Saver(tmp_path, state, FACTS, keep=1, keep_best=1).save(1)
    assert renamed[3:] == ["model.ckpt-1.json", "checkpoint"]
    assert {*renamed[:4]} == files_of("model.ckpt-1")
    assert os.fspath(tmp_path) in on_disk


KILLED_SAVE = """
import os, signal, sys
from pathlib import Path
import tensorflow as tf
from hvd_nmt.checkpoints import saver as saving
from hvd_nmt.checkpoints.saver import Saver

# A save by a process that is killed before its n-th change to the file system.
run_dir, first, n = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
kind = sys.argv[4]
saving.meta_graph = lambda *_: b"graph" * 10_000
model = tf.Module()
model.weights = [tf.Variable(tf.fill([500], float(first))) for _ in range(4)]
state = tf.train.Checkpoint(model=model, step=tf.Variable(first, dtype=tf.int64))
saver = Saver(run_dir, state, dict(
    vocabulary_hash="v", data_hash="d", model={}, vocabulary_size=1, ranks=1), 2, 2)
done = 0

def before(event, arguments=()):
    global done
    if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
        return
    if event in ("open", "fsync", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir"):
        done += 1
        if done == n:
            os.kill(os.getpid(), signal.SIGKILL)

def fsync(descriptor, real=os.fsync):
    before("fsync")
    real(descriptor)

os.fsync = fsync
sys.addaudithook(before)
saver.save(first)
if kind == "best":
    saver.note(first, 1 / first)
print(done, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("kind", "before", "changes"),
    [
        ("newest", (1, 2), 20),
        pytest.param("newest", (), 15, marks=LONG, id="first"),
        pytest.param("best", (1, 2), 30, marks=LONG),
    ],
)
def test_kill_before_every_change_to_the_file_system(toy_commands, tmp_path, kind, before, changes):
    """Two checkpoints are there and two are kept, or none was there; another is being saved."""
    start = tmp_path / "before"
    start.mkdir()
    for step in before:
        made = toy_commands.run(KILLED_SAVE, str(start), str(step), "0", kind, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
    found = []
    for n in range(1, 200):
        run_dir = Path(shutil.copytree(start, tmp_path / f"run-{n}"))
        ended = toy_commands.run(KILLED_SAVE, str(run_dir), "3", str(n), kind, cwd=tmp_path)
        chosen, said = newest(run_dir)
        assert said == [], f"kill {n}"
        found.append(chosen.step if chosen else 0)
        assert not chosen or marked(chosen.prefix) == {float(chosen.step)}, f"kill {n}"
        sweep(run_dir)
        complete = [*newest_first(run_dir), *best_first(run_dir)]
        for checkpoint in complete:
            verify(checkpoint)
        files = {path.name for path in run_dir.rglob("*") if path.is_file()} - {"checkpoint"}
        assert files == files_of(*(c.prefix.name for c in complete)), f"kill {n}"
        assert {c.step for c in complete} >= set(before[1:]), f"kill {n}"
        shutil.rmtree(run_dir)
        if ended.returncode == 0:
            break
        assert ended.returncode == -9, ended.stderr
    assert int(ended.stdout) == n - 1
    assert n > changes  # every write, sync, rename and removal was met
    assert found == sorted(found)
    assert set(found) == {max(before, default=0), 3}


@pytest.mark.parametrize(
    "room_bytes",
    [0, 100_000, *(pytest.param(room, marks=LONG) for room in (40_000, 200_000, 280_000))],
)
def test_full_disk(state, small_disk, room_bytes):
    """At several fill levels: in the tensors, in the graph, in the manifest."""
    run_dir = small_disk(4_000_000)
    saver = Saver(run_dir, state, FACTS, keep=5, keep_best=1)
    mark(state, 1)
    saver.save(1)
    before = names(run_dir)
    usage = shutil.disk_usage(run_dir)
    (run_dir / "ballast").write_bytes(bytes(usage.free - room_bytes // 4096 * 4096))
    mark(state, 2)
    with pytest.raises(ClusterError, match="earlier ones are intact: make room") as refused:
        [saver.save(step) for step in range(2, 6)]
    assert "(No space left on device)" in str(refused.value)  # and no more of TensorFlow's words
    (run_dir / "ballast").unlink()
    found, said = newest(run_dir)
    assert said == []
    verify(found)
    complete = files_of(*(c.prefix.name for c in newest_first(run_dir)))
    assert names(run_dir) == complete | {"checkpoint"}
    assert before <= names(run_dir)
    assert not [path for path in run_dir.iterdir() if path.is_dir()]
    saver.save(9)  # and there is room again
    assert tf.train.latest_checkpoint(run_dir) == os.fspath(run_dir / "model.ckpt-9")


@pytest.mark.parametrize("links", [True, False], ids=["linked", "copied"])
def test_the_best_model_has_the_files_of_the_checkpoint_of_its_step(
    state, tmp_path, monkeypatch, links
):
    """Under a second name; as a copy where a file system knows none."""

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    saver = Saver(tmp_path, state, FACTS, keep=1, keep_best=2)
    for value in (1, 7):  # the same step again, as after a resume from before it
        mark(state, value)
        note(saver, 7, 2.5)
    (best,) = best_first(tmp_path)
    verify(best)
    assert best.manifest == newest_first(tmp_path)[0].manifest
    for suffix in SUFFIXES[:3]:
        same = os.path.samefile(f"{best.prefix}{suffix}", tmp_path / f"model.ckpt-7{suffix}")
        assert same == links
    mark(state, 8)
    saver.save(8)  # which drops the one before
    verify(best)
    assert marked(best.prefix) == {7.0}
