"""The `.meta` file: a process that has TensorFlow and nothing of this package runs the model."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.checkpoints import weights
from hvd_nmt.checkpoints.find import find

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "run"
SOURCE = np.array([[5, 9, 30, 1, 0, 0], [7, 8, 50, 61, 12, 1]], np.int32)
TARGET = np.array([[40, 33, 1, 0], [6, 77, 71, 1]], np.int32)

# Run with -I (no PYTHONPATH, no current directory), and any import of the package is an error.
TENSORFLOW_ALONE = """
import sys

class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("hvd_nmt", "horovod"):
            raise ImportError(name)

sys.meta_path.insert(0, Forbid())
import numpy as np
import tensorflow as tf

folder, out, *prefixes = sys.argv[1:]
for number, prefix in enumerate(prefixes):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        saver = tf.compat.v1.train.import_meta_graph(prefix + ".meta")
        saver.restore(session, prefix)
        feed = {name + ":0": np.load(f"{folder}/{name}.npy") for name in ("source", "target")}
        (step,) = [v for v in tf.compat.v1.global_variables() if v.name == "step:0"]
        logits, step = session.run(["logits:0", step], feed)
        np.savez(f"{out}/{number}.npz", logits=logits, step=step)
assert not {"hvd_nmt", "horovod"} & {name.split(".")[0] for name in sys.modules}
"""


@pytest.fixture(scope="module")
def prefixes(toy_run):
    """The newest checkpoint, an older one, the best ("=" and "." in its name), the golden one."""
    here = [find(toy_run, name) for name in ("latest", "model.ckpt-20", "best")]
    return [*here, find(GOLDEN, "latest")]


@pytest.fixture(scope="module")
def theirs(prefixes, tmp_path_factory):
    """What TensorFlow alone computes, for each of `prefixes`."""
    folder = tmp_path_factory.mktemp("meta")
    np.save(folder / "source.npy", SOURCE)
    np.save(folder / "target.npy", TARGET)
    done = subprocess.run(
        [sys.executable, "-I", "-c", TENSORFLOW_ALONE, folder, folder, *prefixes],
        capture_output=True, text=True, timeout=600, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [dict(np.load(folder / f"{number}.npz")) for number in range(len(prefixes))]


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


def test_best_name_is_the_documented_one(prefixes):
    assert prefixes[2].parent.name == "best_models"
    assert prefixes[2].name.startswith("val_loss=")
