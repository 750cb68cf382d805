"""Checkpoints on disk: what is in them, and what survives kills, damage and full disks."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.checkpoints import weights
from hvd_nmt.checkpoints.find import (
    another_advised,
    best_first,
    find,
    newest_first,
    newest_verified,
    read_fully,
    verify,
)
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.saver import Saver, sweep
from hvd_nmt.checkpoints.state import adam_state, run_state, weights_by_path
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import ModelConfig
from hvd_nmt.model.transformer import Transformer

SUFFIXES = (".data-00000-of-00001", ".index", ".meta", ".json")
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
FACTS = {
    "vocabulary_hash": "v", "data_hash": "d", "model": {"width": 16}, "vocabulary_size": 40,
    "ranks": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def state() -> tf.train.Checkpoint:
    """A small model under training: weights, Adam's moments and the step."""
    model = Transformer(ModelConfig(1, 1, 16, 2, 32), 40, "float32")
    return run_state(model, 0, adam_state(weights_by_path(model)))


def mark(state: tf.train.Checkpoint, step: int) -> None:
    """Gives every variable a value that tells the step."""
    for variable in weights.variables(state):
        variable.assign(tf.cast(tf.fill(variable.shape, step), variable.dtype))


def marked(prefix: Path) -> set[float]:
    """The values found in a checkpoint: that of its step alone."""
    reader = tf.train.load_checkpoint(os.fspath(prefix))
    names = set(reader.get_variable_to_shape_map()) - {OBJECT_GRAPH}
    return {float(value) for name in names for value in np.unique(reader.get_tensor(name))}


@pytest.fixture(scope="module")
def saved(state: tf.train.Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with the checkpoints of steps 10, 20 and 30: copy it to change it."""
    run_dir = tmp_path_factory.mktemp("saved") / "run"
    run_dir.mkdir()
    saver = Saver(run_dir, state, FACTS, keep=3, keep_best=2)
    for step in (10, 20, 30):
        mark(state, step)
        saver.save(step, 1.5)
    return run_dir


@pytest.fixture
def run_dir(saved: Path, tmp_path: Path) -> Path:
    """A copy of `saved`."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def files_of(*prefixes: str) -> set[str]:
    return {prefix + suffix for prefix in prefixes for suffix in SUFFIXES}


def newest(run_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    said: list[str] = []
    return newest_verified(run_dir, said.append), said


# --- what is written ---


def test_names_are_the_documented_ones(saved: Path) -> None:
    steps = files_of("model.ckpt-10", "model.ckpt-20", "model.ckpt-30")
    assert names(saved) == steps | {"checkpoint"}
    assert [path.name for path in saved.iterdir() if path.is_dir()] == []


def test_tensorflow_follows_the_pointer(saved: Path) -> None:
    assert tf.train.latest_checkpoint(saved) == os.fspath(saved / "model.ckpt-30")
    pointed = tf.train.get_checkpoint_state(saved).all_model_checkpoint_paths
    assert [Path(path).name for path in pointed] == [f"model.ckpt-{n}" for n in (10, 20, 30)]


def test_tensorflow_reads_every_variable_of_the_run(
    state: tf.train.Checkpoint, saved: Path
) -> None:
    reader = tf.train.load_checkpoint(os.fspath(saved / "model.ckpt-20"))
    shapes = reader.get_variable_to_shape_map()
    del shapes[OBJECT_GRAPH]
    variables = weights.variables(state)
    assert sorted(shapes.values()) == sorted(v.shape.as_list() for v in variables)
    assert marked(saved / "model.ckpt-20") == {20.0}


def test_size_is_predicted_to_the_byte(state: tf.train.Checkpoint, saved: Path) -> None:
    """Variables one after the other, then TensorFlow's description of the object graph."""
    prefix = saved / "model.ckpt-30"
    graph = tf.train.load_checkpoint(os.fspath(prefix)).get_tensor(OBJECT_GRAPH)
    weights = sum(v.shape.num_elements() for v in state.model.trainable_variables)
    numbers = (3 * 4) * weights + 8 + 8  # Adam's m and v; step, iterations
    length = (len(graph).bit_length() + 6) // 7 + 4  # as a varint, and its checksum
    assert Path(f"{prefix}{SUFFIXES[0]}").stat().st_size == numbers + length + len(graph)


def test_manifest_says_what_the_checkpoint_is(saved: Path) -> None:
    manifest = newest_first(saved)[0].manifest
    assert (manifest.step, manifest.val_loss, manifest.model) == (30, 1.5, {"width": 16})
    assert set(manifest.files) == set(SUFFIXES[:3])
    for suffix, file in manifest.files.items():
        assert file["n_bytes"] == (saved / f"model.ckpt-30{suffix}").stat().st_size


def test_oldest_beyond_keep_are_removed(state: tf.train.Checkpoint, run_dir: Path) -> None:
    mark(state, 40)
    Saver(run_dir, state, FACTS, keep=2, keep_best=1).save(40)
    assert names(run_dir) == files_of("model.ckpt-30", "model.ckpt-40") | {"checkpoint"}
    assert tf.train.latest_checkpoint(run_dir) == os.fspath(run_dir / "model.ckpt-40")


def test_restore_gives_back_every_variable(state: tf.train.Checkpoint, saved: Path) -> None:
    mark(state, 99)
    found, said = newest(saved)
    assert found is not None
    weights.restore(state, found)
    assert {float(np.unique(v.numpy()).item()) for v in weights.variables(state)} == {30.0}
    assert said == []


def test_best_models_are_the_lowest_losses(state: tf.train.Checkpoint, tmp_path: Path) -> None:
    saver = Saver(tmp_path, state, FACTS, keep=1, keep_best=2)
    losses = {5: 3.25, 10: 2.0, 15: 2.5, 20: 9.0, 25: 1.59431, 30: float("nan"), 35: float("inf")}
    written = {step: saver.save_best(step, loss) is not None for step, loss in losses.items()}
    kept = ("val_loss=1.5943-step-25", "val_loss=2.0000-step-10")
    assert names(tmp_path / "best_models") == files_of(*kept)
    assert [step for step, done in written.items() if not done] == [20, 30, 35]
    assert [c.prefix.name for c in best_first(tmp_path)] == list(kept)
    assert find(tmp_path, "best").name == kept[0]


def test_not_a_number_is_never_the_best(state: tf.train.Checkpoint, tmp_path: Path) -> None:
    saver = Saver(tmp_path, state, FACTS, keep=1, keep_best=2)
    assert saver.save_best(1, float("nan")) is None
    assert saver.save_best(2, 4.0) is not None
    assert [c.step for c in best_first(tmp_path)] == [2]


def test_the_same_best_model_can_be_written_again(
    state: tf.train.Checkpoint, tmp_path: Path
) -> None:
    """As a resumed run does that had evaluated beyond its last checkpoint."""
    for value in (1, 2):
        mark(state, value)
        saver = Saver(tmp_path, state, FACTS, keep=1, keep_best=2)
        saver.save_best(7, 2.5)
    (best,) = best_first(tmp_path)
    verify(best)
    assert marked(best.prefix) == {2.0}


@pytest.mark.parametrize("name", ["model.ckpt-20", "model.ckpt-20.index", "model.ckpt-20.meta"])
def test_find_takes_a_name_with_or_without_suffix(saved: Path, name: str) -> None:
    assert find(saved, name) == saved / "model.ckpt-20"
    assert find(saved, os.fspath(saved / name)) == saved / "model.ckpt-20"


def test_a_directory_that_is_not_there_is_said_to_be_none(tmp_path: Path) -> None:
    gone = tmp_path / "nothere"
    for which in ("best", "latest", "model.ckpt-10"):
        with pytest.raises(RunError, match=f"there is no directory {gone}"):
            find(gone, which)
    with pytest.raises(RunError, match="holds no checkpoint: is it a run directory"):
        find(tmp_path, "best")
    with pytest.raises(RunError, match=rf"its \.index file; {tmp_path} holds none\.$"):
        find(tmp_path, "model.ckpt-10")


def test_who_names_a_checkpoint_that_is_none_hears_which_there_are(
    state: tf.train.Checkpoint, run_dir: Path
) -> None:
    with pytest.raises(RunError, match=r"No checkpoint model\.ckpt-9999: give best,") as raised:
        find(run_dir, "model.ckpt-9999")
    assert str(raised.value).endswith(
        f"; {run_dir} holds model.ckpt-30, model.ckpt-20, model.ckpt-10."
    )
    saver = Saver(run_dir, state, FACTS, keep=3, keep_best=3)
    for step in (10, 20):
        saver.save_best(step, 1.5)
    with pytest.raises(RunError, match=r"val_loss=1.5000-step-10 and 1 more\.$"):
        find(run_dir, "model.ckpt-9999")


# --- damage ---


def test_who_reads_a_damaged_checkpoint_hears_of_an_intact_one(run_dir: Path) -> None:
    """The next one is damaged too: it is not advised."""
    for step in (20, 30):
        os.truncate(run_dir / f"model.ckpt-{step}.data-00000-of-00001", 1000)
    advised = []
    for step in (30, 20):
        damaged = run_dir / f"model.ckpt-{step}"
        with pytest.raises(RunError) as raised, another_advised(damaged):
            read_fully(damaged)
        said = str(raised.value)
        assert said.startswith(f"The checkpoint {damaged} is damaged (")
        advised.append(said.split("); ")[-1])
    intact = run_dir / "model.ckpt-10"
    assert set(advised) == {f"another one of this run is intact: --checkpoint {intact}."}
    (run_dir / "model.ckpt-10.meta").unlink()
    words = f"no other checkpoint in {run_dir} is intact"
    with pytest.raises(RunError, match=words), another_advised(damaged):
        read_fully(damaged)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_truncated_file(run_dir: Path, suffix: str, share: float) -> None:
    path = run_dir / f"model.ckpt-30{suffix}"
    size = path.stat().st_size
    os.truncate(path, min(int(size * share), size - 2))  # the manifest's last byte is a line end
    assert_put_aside(run_dir, path.name)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_deleted_file(run_dir: Path, suffix: str) -> None:
    (run_dir / f"model.ckpt-30{suffix}").unlink()
    assert_put_aside(run_dir)


def test_flipped_bits(saved: Path, tmp_path: Path) -> None:
    """60 random single bits, 15 in each file; the seed is in the message."""
    chance = random.Random(7)
    for round_ in range(60):
        run_dir = tmp_path / "run"
        shutil.copytree(saved, run_dir)
        path = run_dir / f"model.ckpt-30{SUFFIXES[round_ % 4]}"
        content = bytearray(path.read_bytes())
        where, bit = chance.randrange(len(content)), chance.randrange(8)
        content[where] ^= 1 << bit
        path.write_bytes(content)
        try:
            assert_put_aside(run_dir, path.name)
        except AssertionError as error:
            raise AssertionError(f"bit {bit} of byte {where} of {path.name}") from error
        shutil.rmtree(run_dir)


def test_appended_byte(run_dir: Path) -> None:
    with (run_dir / "model.ckpt-30.index").open("ab") as stream:
        stream.write(b"\0")
    assert_put_aside(run_dir)


def test_two_checkpoints_with_each_others_names(run_dir: Path) -> None:
    for suffix in SUFFIXES:
        old, new = (run_dir / f"model.ckpt-{step}{suffix}" for step in (20, 30))
        old.rename(run_dir / "swap")
        new.rename(old)
        (run_dir / "swap").rename(new)
    found, said = newest(run_dir)
    assert found is not None
    assert (found.step, len(said)) == (10, 2)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b'model_checkpoint_path: "gone"\n'])
def test_pointer_of_tensorflow_decides_nothing(run_dir: Path, content: bytes | None) -> None:
    (run_dir / "checkpoint").unlink()
    if content is not None:
        (run_dir / "checkpoint").write_bytes(content)
    found, said = newest(run_dir)
    assert found is not None
    assert (found.step, said) == (30, [])


def test_damage_is_met_one_by_one_and_never_ends_in_a_fresh_start(run_dir: Path) -> None:
    chosen = []
    for step in (30, 20, 10):
        os.truncate(run_dir / f"model.ckpt-{step}.data-00000-of-00001", 1000)
        if step > 10:
            found, _ = newest(run_dir)
            assert found is not None
            chosen.append(found.step)
    assert chosen == [20, 10]
    for _ in range(2):  # nor at the second try, when nothing but damaged/ is left
        with pytest.raises(RunError, match="none that is complete and undamaged"):
            newest(run_dir)
    assert len(list((run_dir / "damaged").iterdir())) == 12


def test_best_model_serves_when_no_other_is_left(state: tf.train.Checkpoint, run_dir: Path) -> None:
    mark(state, 15)
    Saver(run_dir, state, FACTS, keep=3, keep_best=1).save_best(15, 2.0)
    for step in (10, 20, 30):
        (run_dir / f"model.ckpt-{step}.index").unlink()
    found, said = newest(run_dir)
    assert found is not None
    assert (found.step, len(said)) == (15, 3)
    assert marked(found.prefix) == {15.0}


def test_removed_checkpoints_are_missed(run_dir: Path) -> None:
    for path in run_dir.glob("model.ckpt-*"):
        path.unlink()
    with pytest.raises(RunError, match="--run-dir"):
        newest(run_dir)


def test_fresh_directory_is_fresh(tmp_path: Path) -> None:
    assert newest(tmp_path) == (None, [])


def test_checkpoint_of_another_model_is_refused(saved: Path) -> None:
    other = Transformer(ModelConfig(2, 1, 16, 2, 32), 40, "float32")
    found, _ = newest(saved)
    assert found is not None
    with pytest.raises(RunError, match="does not fit"):
        weights.restore(tf.train.Checkpoint(model=other), found)


def assert_put_aside(run_dir: Path, *names_aside: str) -> None:
    """The newest is damaged: the one before wins, loudly, and the damaged one is kept apart."""
    left = {path.name for path in run_dir.glob("model.ckpt-30*")}
    found, said = newest(run_dir)
    assert found is not None
    assert found.step == 20
    assert marked(found.prefix) == {20.0}
    assert len(said) == 1
    assert "model.ckpt-30" in said[0]
    assert names(run_dir / "damaged") == left
    assert not list(run_dir.glob("model.ckpt-30*"))
    assert set(names_aside) <= left
    assert newest(run_dir)[1] == []  # once, not at each start


# --- kills ---

KILLED_SAVE = """
import os, signal, sys
from pathlib import Path
import tensorflow as tf
from hvd_nmt.checkpoints import meta_graph
from hvd_nmt.checkpoints.saver import Saver

# A save by a process that is killed before its n-th change to the file system.
run_dir, first, n = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
kind = sys.argv[4]
meta_graph.export = lambda *_: b"graph" * 10_000
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
    if event in ("open", "fsync", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
        done += 1
        if done == n:
            os.kill(os.getpid(), signal.SIGKILL)

def fsync(descriptor, real=os.fsync):
    before("fsync")
    real(descriptor)

os.fsync = fsync
sys.addaudithook(before)
if kind == "best":
    saver.save_best(first, 1 / first)
else:
    saver.save(first)
print(done, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["newest", "best"])
def test_kill_before_every_change_to_the_file_system(
    toy_commands, tmp_path: Path, kind: str
) -> None:
    """Two checkpoints are there, two are kept, a third is being saved."""
    before = tmp_path / "before"
    before.mkdir()
    for step in (1, 2):
        made = toy_commands.run(KILLED_SAVE, str(before), str(step), "0", kind, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
    folder = "" if kind == "newest" else "best_models"
    found = []
    for n in range(1, 200):
        run_dir = Path(shutil.copytree(before, tmp_path / f"run-{n}"))
        ended = toy_commands.run(KILLED_SAVE, str(run_dir), "3", str(n), kind, cwd=tmp_path)
        chosen, said = newest(run_dir)
        assert said == [], f"kill {n}"
        assert chosen is not None
        assert chosen.step in (2, 3), f"kill {n}"
        assert marked(chosen.prefix) == {float(chosen.step)}, f"kill {n}"
        sweep(run_dir)
        complete = [*newest_first(run_dir), *best_first(run_dir)]
        wanted = files_of(*(c.prefix.name for c in complete))
        assert names(run_dir / folder) - {"checkpoint"} == wanted, f"kill {n}"
        assert {c.step for c in complete} >= {2}, f"kill {n}"
        assert not list(run_dir.rglob(".*")), f"kill {n}"
        found.append(chosen.step)
        shutil.rmtree(run_dir)
        if ended.returncode == 0:
            break
        assert ended.returncode == -9, ended.stderr
    assert int(ended.stdout) == n - 1
    assert n > 20  # every write, sync, rename and removal was met
    assert found == sorted(found)
    assert {2, 3} == set(found)


def test_killed_first_save_leaves_a_fresh_directory(toy_commands, tmp_path: Path) -> None:
    """There was no checkpoint before: the same command starts, and does not complain for ever."""
    for n in range(1, 200):
        run_dir = tmp_path / f"run-{n}"
        run_dir.mkdir()
        ended = toy_commands.run(KILLED_SAVE, str(run_dir), "3", str(n), "newest", cwd=tmp_path)
        chosen, said = newest(run_dir)
        assert said == [], f"kill {n}"
        assert chosen is None or marked(chosen.prefix) == {3.0}, f"kill {n}"
        sweep(run_dir)
        wanted = files_of("model.ckpt-3") if chosen else set()
        assert names(run_dir) - {"checkpoint"} == wanted, f"kill {n}"
        if ended.returncode == 0:
            break
    assert chosen is not None
    assert n > 15


# --- full disks ---


@pytest.fixture
def small_disk(tmp_path: Path):
    """Mounts a file system of so many bytes."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    mounted = tmp_path / "small"
    mounted.mkdir()

    def mount(n_bytes: int) -> Path:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", mounted], check=True
        )
        return mounted

    yield mount
    subprocess.run(["umount", mounted], check=False)


@pytest.mark.parametrize("room_bytes", [0, 40_000, 100_000, 150_000, 200_000, 280_000])
def test_full_disk(state: tf.train.Checkpoint, small_disk, room_bytes: int) -> None:
    """At several fill levels: in the tensors, in the graph, in the manifest."""
    run_dir = small_disk(4_000_000)
    saver = Saver(run_dir, state, FACTS, keep=5, keep_best=1)
    mark(state, 1)
    saver.save(1)
    before = names(run_dir)
    usage = shutil.disk_usage(run_dir)
    (run_dir / "ballast").write_bytes(bytes(usage.free - room_bytes // 4096 * 4096))
    mark(state, 2)
    with pytest.raises(RunError, match="earlier checkpoints are intact"):
        [saver.save(step) for step in range(2, 6)]
    (run_dir / "ballast").unlink()
    found, said = newest(run_dir)
    assert found is not None
    assert said == []
    verify(found)
    complete = files_of(*(c.prefix.name for c in newest_first(run_dir)))
    assert names(run_dir) == complete | {"checkpoint"}
    assert before <= names(run_dir)
    assert not [path for path in run_dir.iterdir() if path.is_dir()]
    saver.save(9)  # and there is room again
    assert tf.train.latest_checkpoint(run_dir) == os.fspath(run_dir / "model.ckpt-9")


def test_manifest_is_plain_json(saved: Path) -> None:
    """A reader without this package can tell what a checkpoint is."""
    content = json.loads((saved / "model.ckpt-30.json").read_text(encoding="utf-8"))
    assert content["step"] == 30
    assert content["files"][".meta"]["n_bytes"] > 0
