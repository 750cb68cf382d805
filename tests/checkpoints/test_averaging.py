"""The mean of checkpoints as a checkpoint: exact, whole, usable, and made of sound ones only."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints import averaging, weights
from hvd_nmt.checkpoints.find import newest_first, newest_intact
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.names import ALL_SUFFIXES
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.state import adam_state, keyed_variables, run_state, weights_by_path
from hvd_nmt.common.errors import RunError
from hvd_nmt.common.files import fingerprint
from hvd_nmt.config import ModelConfig
from hvd_nmt.model.transformer import Transformer
from marked_run import names

CONFIG = ModelConfig(1, 1, 16, 2, 32, max_length=12)
VOCABULARY_SIZE = 40
LOSSES = {10: 3.0, 30: 2.0, 40: 2.5}


def make_run(run_dir, steps, model=CONFIG):
    """A run directory as `train` leaves it; weights and moments are random, other in each step."""
    run_dir.mkdir(parents=True)
    (run_dir / "spm.model").write_bytes(b"pieces")
    settings = dataclasses.replace(configuration.presets()["demo"][1], model=model)
    configuration.save(settings, run_dir / "config.yaml")
    transformer = Transformer(model, VOCABULARY_SIZE)
    state = run_state(transformer, 0, adam_state(weights_by_path(transformer)))
    saver = Saver(run_dir, state, {
        "vocabulary_hash": fingerprint(run_dir / "spm.model").sha256, "data_hash": "d",
        "model": dataclasses.asdict(model), "vocabulary_size": VOCABULARY_SIZE, "ranks": 2,
    }, keep=9, keep_best=9)  # fmt: skip
    for step in steps:
        chance = np.random.default_rng(step)
        for _, variable in keyed_variables(state):
            if variable.dtype == tf.float32:
                variable.assign(chance.normal(size=variable.shape))
        state.step.assign(step)
        saver.save(step)
        saver.note(step, LOSSES[step])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with the checkpoints of steps 10, 30 and 40: copy it to change it."""
    run_dir = tmp_path_factory.mktemp("made") / "run"
    make_run(run_dir, list(LOSSES))
    return run_dir


@pytest.fixture(scope="module")
def mean(made):
    """The run directory of the mean of steps 30 and 40."""
    output = made.with_name("mean")
    averaging.write(made, newest_first(made)[:2], output)
    return output


@pytest.fixture
def run(made, tmp_path):
    """A copy of `made`."""
    return shutil.copytree(made, tmp_path / "run")


def weights_of(run_dir, which="latest"):
    model, _ = weights.load_model(run_dir, which)
    return [variable.numpy() for variable in model.trainable_variables]


def test_of_two_it_is_half_their_sum(made, mean):
    each = (weights_of(made, f"model.ckpt-{step}") for step in (30, 40))
    for x, a, b in zip(weights_of(mean), *each, strict=True):
        wanted = ((a.astype(np.float64) + b) / 2).astype(np.float32)
        np.testing.assert_array_max_ulp(x, wanted, maxulp=1)
        assert np.abs(x - a).max() > 0.01  # and not one of them


def test_sum_does_not_round(tmp_path):
    """In float32, 2^24 + 1 is 2^24: the mean of these three would be 5592405.5."""
    model = Transformer(CONFIG, VOCABULARY_SIZE)
    state = tf.train.Checkpoint(model=model)
    for number, value in enumerate((2.0**24, 1.0, 1.0)):
        for variable in model.trainable_variables:
            variable.assign(tf.fill(variable.shape, value))
        state.write(os.fspath(tmp_path / str(number)))
    averaging.assign_mean(model, [tmp_path / str(number) for number in range(3)])
    assert {float(x) for weight in model.weights for x in np.unique(weight)} == {5592406.0}


def test_it_is_a_run_directory_that_says_what_went_in(made, mean):
    files = [f"model.ckpt-40{suffix}" for suffix in ALL_SUFFIXES]
    assert names(mean) == {*files, "average.json", "checkpoint", "config.yaml", "spm.model"}
    for name in ("config.yaml", "spm.model"):
        assert (mean / name).read_bytes() == (made / name).read_bytes()
    found = newest_intact(mean)
    assert found is not None
    before = newest_first(made)[0].manifest
    own = {"val_loss": None, "files": found.manifest.files, "variables": found.manifest.variables}
    assert found.manifest == dataclasses.replace(before, **own)
    assert tf.train.latest_checkpoint(mean) == os.fspath(mean / "model.ckpt-40")

    record = json.loads((mean / "average.json").read_text(encoding="utf-8"))
    data = [made / f"model.ckpt-{step}.data-00000-of-00001" for step in (40, 30)]
    assert record["checkpoints"] == [
        {"prefix": os.fspath(made / f"model.ckpt-{step}"), "step": step, "val_loss": LOSSES[step],
         "sha256": fingerprint(path).sha256}
        for step, path in zip((40, 30), data, strict=True)
    ]  # fmt: skip


def test_training_does_not_go_on_from_it(mean):
    model = Transformer(CONFIG, VOCABULARY_SIZE)
    state = run_state(model, 0, adam_state(weights_by_path(model)))
    with pytest.raises(RunError, match=r"does not fit this model .* another --run-dir"):
        weights.restore(state, newest_first(mean)[0])


# --- refusals: the file is named, and nothing is left behind ---


def refused(run, chosen, match):
    with pytest.raises(RunError, match=match):
        averaging.write(run, chosen, run.with_name("mean"))
    assert not list(run.parent.glob("mean*"))


def test_damaged_file(run):
    path, chosen = run / "model.ckpt-30.index", newest_first(run)[:2]
    path.write_bytes(path.read_bytes()[:-1])
    refused(run, chosen, r"ckpt-30\.index has changed since it was written")


def test_checkpoints_of_another_model(run):
    """Another number of heads does not even change a shape."""
    other = run.with_name("other")
    make_run(other, [10], dataclasses.replace(CONFIG, heads=4))
    chosen = [newest_first(run)[0], newest_first(other)[0]]
    refused(run, chosen, r"other/model\.ckpt-10 is of another model")
    shutil.copyfile(other / "config.yaml", run / "config.yaml")
    refused(run, chosen[:1], r"does not fit .*config.yaml: its heads is 2, not 4; correct")


def test_checkpoint_of_another_vocabulary(run):
    new, old = newest_first(run)[:2]
    manifest = dataclasses.replace(old.manifest, vocabulary_hash="another")
    refused(run, [new, Checkpoint(old.prefix, manifest)], r"model\.ckpt-30 is of another .*vocab")
    (run / "spm.model").write_bytes(b"other pieces")
    refused(run, [new, old], r"spm\.model is not the vocabulary")
