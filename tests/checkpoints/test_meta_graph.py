"""The `.meta` file: a process that has TensorFlow and nothing of this package runs the model."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_alone
from hvd_nmt.checkpoints import weights
from hvd_nmt.checkpoints.find import find
from tensorflow_alone import SOURCE, TARGET

pytestmark = pytest.mark.both_tensorflows
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "run"


@pytest.fixture(scope="module")
def prefixes(toy_run):
    """The newest checkpoint, an older one, the best ("=" and "." in its name), the golden one."""
    here = [find(toy_run, name) for name in ("latest", "model.ckpt-20", "best")]
    return [*here, find(GOLDEN, "latest")]


@pytest.fixture(scope="module")
def theirs(prefixes, tmp_path_factory):
    """What TensorFlow alone computes, for each of `prefixes`."""
    return tensorflow_alone.restored(prefixes, tmp_path_factory.mktemp("meta"))


@pytest.mark.parametrize("number", range(4))
def test_logits_are_ours(toy_run, prefixes, theirs, number):
    run_dir = GOLDEN if number == 3 else toy_run
    model, step = weights.load_model(run_dir, prefixes[number].as_posix())
    ours = model(tf.constant(SOURCE), tf.constant(TARGET)).numpy()
    assert theirs[number]["logits"].shape == (2, 4, model.vocabulary_size)
    assert np.abs(theirs[number]["logits"] - ours).max() < 1e-5
    assert theirs[number]["step"] == step


def test_checkpoints_differ(theirs):
    """Or the comparison above would pass with any weights."""
    assert np.abs(theirs[0]["logits"] - theirs[1]["logits"]).max() > 1e-2
