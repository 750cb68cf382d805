"""Checkpoints that are written while the training goes on: the same files, whatever happens."""

import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
import tensorflow as tf
import tf_keras as keras

from hvd_nmt.checkpoints import saver as saving
from hvd_nmt.checkpoints.background import Background
from hvd_nmt.checkpoints.find import best_first, newest_first, verify
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.snapshot import Snapshot
from hvd_nmt.checkpoints.state import adam_state, run_state, weights_by_path
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import ModelConfig
from hvd_nmt.model.transformer import Transformer
from marked_run import FACTS, SUFFIXES, files_of, mark, marked, names, newest

EVERY = int(os.environ.get("HVD_NMT_KILL_EVERY", "9"))
"""of the system calls of a save, each so many-th is one at which a test kills; 1: all"""


@pytest.fixture(scope="module")
def everything():
    """A state with all that a run can save: an average and a loss scale, too."""
    model, average = (Transformer(ModelConfig(1, 1, 16, 2, 32), 40, "float32") for _ in range(2))
    scaled = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam())
    scaled.build(model.trainable_variables)
    adam = adam_state(weights_by_path(model), 3)
    adam = type(adam)(adam.iterations, adam.m, adam.v, scaled._loss_scale)
    return run_state(model, 3, adam, average)


def contents(prefix):
    return {suffix: Path(f"{prefix}{suffix}").read_bytes() for suffix in SUFFIXES}


@pytest.mark.both_tensorflows
def test_the_files_are_those_of_a_save_in_the_foreground_to_the_byte(everything, tmp_path):
    """Also when the copy was taken before, of other values."""
    saver = Saver(tmp_path, everything, FACTS, keep=3, keep_best=1)
    for value in (1, 2):
        mark(everything, value)
        saver.save(5)
        wanted = contents(tmp_path / "model.ckpt-5")
        saver.begin(5)
        saver.wait()
        assert contents(tmp_path / "model.ckpt-5") == wanted
    keys = dict(tf.train.list_variables(os.fspath(tmp_path / "model.ckpt-5")))
    assert any(key.startswith("ema/") for key in keys)
    assert any("loss_scale" in key for key in keys)


def test_a_copy_stays_as_it_is_whatever_changes_the_variables(everything, tmp_path):
    mark(everything, 1)
    copy = Snapshot(everything)
    for taken in (1, 2):
        if taken == 2:
            mark(everything, 2)
            copy.take()
        for number, variable in enumerate(v for v in saving_variables(everything)):
            if number % 3 == 0:
                variable.assign_add(tf.ones_like(variable))
            elif number % 3 == 1 and variable.dtype == tf.float32:
                tf.raw_ops.ResourceApplyGradientDescent(
                    var=variable.handle, alpha=1.0, delta=tf.ones_like(variable)
                )
            else:
                variable.assign(tf.zeros_like(variable))
        copy.state.write(os.fspath(tmp_path / "copy"))
        assert marked(tmp_path / "copy") == {float(taken)}
        everything.write(os.fspath(tmp_path / "changed"))
        assert taken not in marked(tmp_path / "changed")


def saving_variables(state):
    from hvd_nmt.checkpoints import weights

    return weights.variables(state)


@pytest.fixture
def held_back(monkeypatch):
    """Saves begin only when the event is set."""
    go_on, write = threading.Event(), tf.train.Checkpoint.write

    def late(self, path):
        assert go_on.wait(60)
        return write(self, path)

    monkeypatch.setattr(tf.train.Checkpoint, "write", late)
    yield go_on
    go_on.set()


def test_training_changes_weights_while_a_save_is_under_way(state, tmp_path, held_back):
    saver = Saver(tmp_path, state, FACTS, keep=3, keep_best=1)
    mark(state, 1)
    saver.begin(1)
    mark(state, 2)
    assert newest_first(tmp_path) == []
    held_back.set()
    saver.begin(2)  # waits for the first
    assert [c.step for c in newest_first(tmp_path) if c.step == 1] == [1]
    mark(state, 3)
    saver.wait()
    assert {c.step: marked(c.prefix) for c in newest_first(tmp_path)} == {1: {1.0}, 2: {2.0}}
    assert tf.train.latest_checkpoint(tmp_path) == os.fspath(tmp_path / "model.ckpt-2")


def test_it_works_in_one_thread_of_the_lowest_priority(everything, tmp_path, monkeypatch):
    """TensorFlow's own writing, too: the kernel counts what each thread has written."""
    found, looked, go_on = {}, threading.Event(), threading.Event()

    def look(prefix):
        thread = found["thread"] = threading.get_native_id()
        counts = Path(f"/proc/self/task/{thread}/io").read_text(encoding="ascii")
        written = int(dict(line.split(": ") for line in counts.splitlines())["wchar"])
        found.update(nice=os.getpriority(os.PRIO_PROCESS, thread), written=written)
        looked.set()
        assert go_on.wait(60)

    monkeypatch.setattr(saving, "read_fully", look)
    saver = Saver(tmp_path, everything, FACTS, keep=3, keep_best=1)
    saver.begin(1)
    assert looked.wait(60)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert found["nice"] == 19 > own
    assert not saver.background.has_ended(timeout_s=0.01)
    if os.geteuid() == 0:  # a save that is waited for is no longer the last to get the processor
        assert os.getpriority(os.PRIO_PROCESS, found["thread"]) == own
    go_on.set()
    saver.wait()
    assert found["written"] >= (tmp_path / "model.ckpt-1.data-00000-of-00001").stat().st_size


def test_a_stop_does_not_wait_until_all_is_read_back(state, tmp_path, held_back, monkeypatch):
    saver = Saver(tmp_path, state, FACTS, keep=1, keep_best=1)
    held_back.set()
    saver.save(1)
    held_back.clear()
    saver.begin(2)
    threading.Timer(0.3, held_back.set).start()
    with monkeypatch.context() as patch:
        patch.delattr(saving, "read_fully")  # nothing may call it
        saver.save(3, read_back=False)
    # What was not read back may be damaged: all before it stay.
    assert [c.step for c in newest_first(tmp_path)] == [3, 2, 1]
    saver.begin(4)
    saver.wait()
    assert [c.step for c in newest_first(tmp_path)] == [4]


def test_an_error_comes_with_the_next_save_and_once(state, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    run_dir = tmp_path / "small"
    run_dir.mkdir()
    os.system(f"mount -t tmpfs -o size=4000000 tmpfs {run_dir}")
    try:
        saver = Saver(run_dir, state, FACTS, keep=3, keep_best=1)
        mark(state, 1)
        saver.save(1)
        (run_dir / "ballast").write_bytes(bytes(shutil.disk_usage(run_dir).free - 40960))
        saver.begin(2)
        with pytest.raises(RunError, match=r"No space left.*earlier checkpoints are intact"):
            saver.begin(3)
        saver.wait()  # it was said
        assert names(run_dir) == files_of("model.ckpt-1") | {"checkpoint", "ballast"}
        (run_dir / "ballast").unlink()
        saver.begin(4)
        saver.wait()
        assert newest(run_dir)[0].step == 4
    finally:
        os.system(f"umount {run_dir}")


def test_the_best_model_shares_the_files_of_the_checkpoint_of_its_step(state, tmp_path):
    saver = Saver(tmp_path, state, FACTS, keep=1, keep_best=2)
    mark(state, 7)
    saver.begin(7)
    saver.note_loss(7, 2.5)
    best = saver.save_best(7, 2.5)
    assert best is not None
    verify(best)
    assert best.manifest == newest_first(tmp_path)[0].manifest
    for suffix in SUFFIXES[:3]:
        assert os.path.samefile(f"{best.prefix}{suffix}", tmp_path / f"model.ckpt-7{suffix}")
    mark(state, 8)
    saver.save(8)  # which drops the one before
    verify(best)
    assert marked(best.prefix) == {7.0}
    assert saver.save_best(7, 2.4) is not None  # the state is another one by now
    assert marked(best_first(tmp_path)[0].prefix) == {8.0}


def test_where_no_file_can_have_two_names_the_best_model_is_written(state, tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    saver = Saver(tmp_path, state, FACTS, keep=1, keep_best=2)
    mark(state, 7)
    saver.save(7)
    best = saver.save_best(7, 2.5)
    verify(best)
    assert not os.path.samefile(f"{best.prefix}.index", tmp_path / "model.ckpt-7.index")


def test_a_best_model_is_written_beside_the_training_where_no_start_could_miss_it(
    state, tmp_path, held_back
):
    held_back.set()
    saver = Saver(tmp_path, state, FACTS, keep=1, keep_best=2)
    mark(state, 1)
    saver.save(1)
    saver.last = None  # another process saved it
    assert saver.save_best(1, 3.0, in_background=True) is not None
    held_back.clear()
    mark(state, 2)
    assert saver.save_best(2, 2.0, in_background=True) is None
    mark(state, 3)
    held_back.set()
    saver.begin(3)
    saver.wait()
    assert [(c.step, marked(c.prefix)) for c in best_first(tmp_path)] == [(2, {2.0}), (1, {1.0})]


def test_work_in_the_background_is_waited_for_and_its_error_raised_once():
    background, go_on = Background(), threading.Event()
    assert background.has_ended()
    background.begin(lambda: go_on.wait(60) and 1 / 0)
    assert not background.has_ended(timeout_s=0.01)
    go_on.set()
    assert background.has_ended()
    with pytest.raises(ZeroDivisionError):
        background.wait()
    background.wait()


KILLED = """
import ctypes, os, subprocess, sys, threading, time
from pathlib import Path
import tensorflow as tf
from hvd_nmt.checkpoints import meta_graph
from hvd_nmt.checkpoints.saver import Saver

# A save in the background, and the best model of its step, traced from here on.
run_dir, step, injected, log = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
meta_graph.export = lambda *_: b"graph" * 10_000
model = tf.Module()
model.weights = [tf.Variable(tf.fill([500], float(step))) for _ in range(4)]
state = tf.train.Checkpoint(model=model, step=tf.Variable(step, dtype=tf.int64))
saver = Saver(run_dir, state, dict(
    vocabulary_hash="v", data_hash="d", model={}, vocabulary_size=1, ranks=1), 2, 2)
tracer = None
if log:
    ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)
    rules = ["-e", "inject=" + injected] if injected else []
    tracer = subprocess.Popen(["strace", "-f", "-qq", "-e", "trace=" + sys.argv[5], *rules,
                               "-o", log, "-p", str(os.getpid())])
    def traced():
        lines = Path("/proc/self/status").read_text().splitlines()
        return tracer.poll() is not None or "TracerPid:\\t0" not in lines
    while not traced():
        time.sleep(0.005)
    assert tracer.poll() is None, "strace cannot attach"
saver.begin(step)
for variable in model.weights:
    variable.assign_add(tf.ones_like(variable))
saver.wait()
saver.note_loss(step, 1 / step)
saver.save_best(step, 1 / step)
if tracer:
    tracer.terminate()
os._exit(0)
"""
CALLS = (
    "write", "pwrite64", "rename", "renameat", "renameat2", "unlink", "unlinkat", "fsync",
    "fdatasync", "mkdir", "rmdir", "link", "linkat", "ftruncate",
)  # fmt: skip


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_kill_at_the_system_calls_of_a_save_in_the_background(toy_commands, tmp_path):
    """Two checkpoints are there, two are kept, a third is saved while the weights change.

    Killed at the entry of a call, TensorFlow's own ones included; HVD_NMT_KILL_EVERY=1 takes all.
    """
    before = tmp_path / "before"
    before.mkdir()
    for step in (1, 2):
        made = toy_commands.run(KILLED, str(before), str(step), "", "", "", cwd=tmp_path)
        assert made.returncode == 0, made.stderr

    def killed(run_dir, injected):
        log = tmp_path / "calls"
        trace = ",".join(CALLS) if not injected else injected.split(":")[0]
        ended = toy_commands.run(KILLED, str(run_dir), "3", injected, str(log), trace, cwd=tmp_path)
        return ended, log.read_text(encoding="utf-8").splitlines()

    run_dir = Path(shutil.copytree(before, tmp_path / "whole"))
    ended, lines = killed(run_dir, "")
    assert ended.returncode == 0, ended.stderr
    assert newest(run_dir)[0].step == 3
    counts: dict[tuple[str, str], int] = {}
    for line in lines:  # THREAD CALL(...
        thread, call = line.split(maxsplit=1)[0], line.split(maxsplit=1)[1].split("(")[0]
        if call in CALLS:
            counts[thread, call] = counts.get((thread, call), 0) + 1
    # strace counts for each thread; those of the main one meet the best model.
    points = sorted({(call, n + 1) for (_, call), count in counts.items() for n in range(count)})
    assert len(points) > 30
    chosen = []
    for call, n in points[::EVERY]:
        run_dir = Path(shutil.copytree(before, tmp_path / f"run-{call}-{n}"))
        ended, _ = killed(run_dir, f"{call}:signal=KILL:when={n}")
        found, said = newest(run_dir)
        assert said == [], (call, n)
        assert found.step in (2, 3), (call, n)
        assert marked(found.prefix) == {float(found.step)}, (call, n)
        verify(found)
        saving.sweep(run_dir)
        complete = [*newest_first(run_dir), *best_first(run_dir)]
        for checkpoint in complete:
            verify(checkpoint)
        assert {c.step for c in complete} >= {2}, (call, n)
        assert not list(run_dir.rglob(".*")), (call, n)
        assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
        chosen.append((found.step, ended.returncode))
        shutil.rmtree(run_dir)
    print(f"killed at {sum(code != 0 for _, code in chosen)} of {len(chosen)} calls")
    assert -signal.SIGKILL in [code for _, code in chosen]
    assert EVERY > 1 or {2, 3} == {step for step, code in chosen if code}
