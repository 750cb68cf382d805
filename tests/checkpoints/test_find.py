"""Which checkpoint a run goes on from, or a name means, whatever has been damaged."""

import dataclasses
import json
import os
import shutil

import pytest

from hvd_nmt.checkpoints import contents, manifest, weights
from hvd_nmt.checkpoints.find import find, held_some
from hvd_nmt.checkpoints.manifest import Checkpoint, DamagedError
from hvd_nmt.checkpoints.names import file, manifest_file
from hvd_nmt.checkpoints.saver import Saver, remove
from hvd_nmt.checkpoints.state import keyed_variables
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import fingerprint
from marked_run import FACTS, SUFFIXES, mark, marked, names, newest


@pytest.mark.parametrize("name", ["model.ckpt-20", "model.ckpt-20.index", "model.ckpt-20.meta"])
def test_find_takes_a_name_with_or_without_suffix(saved, name):
    assert find(saved, name) == saved / "model.ckpt-20"
    assert find(saved, os.fspath(saved / name)) == saved / "model.ckpt-20"


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, None])
def test_truncated_or_deleted_file(run_dir, suffix, share):
    path = run_dir / f"model.ckpt-30{suffix}"
    if share is None:
        path.unlink()
        assert_put_aside(run_dir)
    else:
        size = path.stat().st_size
        os.truncate(path, min(int(size * share), size - 2))  # a manifest's last byte is a line end
        assert_put_aside(run_dir, path.name)


@pytest.mark.parametrize("change", [
    {"files": {}}, {"files": {".index": 5}}, {"step": "x"}, {"val_loss": []}, {"ranks": None},
    {"model": {"width": "x"}}, {"variables": [["a"]]},
])  # fmt: skip
def test_a_manifest_of_other_types_signed_again(run_dir, change):
    path = run_dir / "model.ckpt-30.json"
    content = json.loads(path.read_text()) | change
    del content["sha256"]
    path.write_text(json.dumps(content | {"sha256": manifest._digest(content)}))
    with pytest.raises(RunError, match=r"30\.json is not a manifest of this version"):
        newest(run_dir)
    assert path.exists()


def test_a_manifest_of_brackets_and_nothing_else(run_dir):
    (run_dir / "model.ckpt-30.json").write_text("[" * 200_000)
    assert_put_aside(run_dir, "model.ckpt-30.json")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_flipped_bit(run_dir, suffix, place):
    path = run_dir / f"model.ckpt-30{suffix}"
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 4
    path.write_bytes(content)
    assert_put_aside(run_dir, path.name)


def test_tensors_that_were_damaged_before_the_manifest_was_written(run_dir):
    """Its digest is that of the damaged file: TensorFlow's own sums of the tensors tell."""
    prefix = run_dir / "model.ckpt-30"
    path = file(prefix, SUFFIXES[0])
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    manifest = Checkpoint.at(prefix).manifest
    files = manifest.files | {SUFFIXES[0]: dataclasses.asdict(fingerprint(path))}
    text = dataclasses.replace(manifest, files=files).text()
    manifest_file(prefix).write_text(text, encoding="utf-8")
    assert_put_aside(run_dir)


def test_two_checkpoints_with_each_others_names(run_dir):
    for suffix in SUFFIXES:
        old, new = (run_dir / f"model.ckpt-{step}{suffix}" for step in (20, 30))
        old.rename(run_dir / "swap")
        new.rename(old)
        (run_dir / "swap").rename(new)
    found, said = newest(run_dir)
    assert (found.step, len(said)) == (10, 2)


def test_damage_is_met_one_by_one_and_is_not_forgotten(run_dir, tmp_path):
    """So that it never ends in a fresh start."""
    for step, before in ((30, 20), (20, 10), (10, None)):
        os.truncate(run_dir / f"model.ckpt-{step}.data-00000-of-00001", 1000)
        found = newest(run_dir)[0]
        assert (found and found.step) == before
    (run_dir / "checkpoint").unlink()
    assert held_some(run_dir)  # when nothing but damaged/ is left
    assert len(list((run_dir / "damaged").iterdir())) == 12
    (tmp_path / "fresh").mkdir()
    assert newest(tmp_path / "fresh") == (None, [])
    assert not held_some(tmp_path / "fresh")


def test_best_model_serves_when_no_other_is_left(state, run_dir):
    mark(state, 15)
    saver = Saver(run_dir, state, FACTS, keep=4, keep_best=1)
    saver.save(15)
    saver.note(15, 2.0)
    remove(run_dir / "model.ckpt-15")
    for step in (10, 20, 30):
        (run_dir / f"model.ckpt-{step}.index").unlink()
    found, said = newest(run_dir)
    assert (found.step, len(said)) == (15, 3)
    assert marked(found.prefix) == {15.0}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_cannot_be_read_this_time_is_not_damaged(run_dir, suffix):
    """The link gives an input/output error; once it is gone, the checkpoint is as good as before.

    No other is taken meanwhile, neither to go on from nor as the latest to be translated with.
    """
    path, aside = run_dir / f"model.ckpt-30{suffix}", run_dir / "aside"
    path.rename(aside)
    path.symlink_to("/proc/self/mem")
    words = rf"^Cannot read .*{path}\b.* \(Input/output error\)\. Fix the cause and run the same"
    with pytest.raises(RunError, match=words):
        newest(run_dir)
    if suffix == ".json":
        with pytest.raises(RunError, match="Input/output error"):
            find(run_dir, "latest")
    aside.replace(path)
    found, said = newest(run_dir)
    assert (found.step, said) == (30, [])


NOBODY = """
import os
from pathlib import Path
from hvd_nmt.checkpoints.find import newest_intact
os.setuid(65534)
newest_intact(Path("run"))
"""


def test_what_this_user_may_not_read_is_not_missing(toy_commands, run_dir):
    if os.geteuid() != 0:
        pytest.skip("needs root to become another user")
    before = names(run_dir)
    run_dir.parent.chmod(0o777)
    run_dir.chmod(0o333)
    done = toy_commands.run(NOBODY, cwd=run_dir.parent)
    assert "Permission denied" in done.stderr, done.stdout + done.stderr
    assert names(run_dir) == before


def assert_put_aside(run_dir, *names_aside):
    """The newest is damaged: the one before wins, loudly, and the damaged one is kept apart."""
    left = {path.name for path in run_dir.glob("model.ckpt-30*")}
    found, said = newest(run_dir)
    assert found.step == 20
    assert marked(found.prefix) == {20.0}
    assert len(said) == 1
    assert "model.ckpt-30" in said[0]
    assert names(run_dir / "damaged") == left
    assert not list(run_dir.glob("model.ckpt-30*"))
    assert set(names_aside) <= left
    assert newest(run_dir)[1] == []  # once, not at each start


def test_a_run_directory_of_brackets(saved, state, tmp_path):
    run = shutil.copytree(saved, tmp_path / "demo [v2]*" / "lr=[0.5]\\?")
    assert newest(run)[0].prefix == run / "model.ckpt-30"
    assert contents.read(run / "model.ckpt-30").parameters > 0
    mark(state, 7)
    Saver(run, state, FACTS, keep=3, keep_best=1).save(40)
    checkpoint, said = newest(run)
    assert (checkpoint.step, said, (run / "damaged").exists()) == (40, [], False)
    mark(state, 0)
    weights.restore(state, checkpoint)
    assert {float(v.numpy().max()) for _, v in keyed_variables(state)} == {7.0}


def test_what_is_as_it_was_written_is_never_put_aside(run_dir, monkeypatch):
    def unreadable(prefix):
        raise DamagedError(f"{prefix} is strange.")

    monkeypatch.setattr("hvd_nmt.checkpoints.find.read_fully", unreadable)
    with pytest.raises(RunError, match=r"is strange\. But each of its bytes is as it was"):
        newest(run_dir)
    assert not (run_dir / "damaged").exists()
