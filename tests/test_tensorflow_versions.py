"""What one TensorFlow wrote another resumes, translates and restores, in both directions.

`own` is the Python of the tests, `other` the one that HVD_NMT_OTHER_PYTHON names; they have hvd_nmt
with different versions of TensorFlow. `make test-tf2.18` runs this with 2.18 and 2.21.
"""

import os
import shutil
import sys

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_alone
import toy
from hvd_nmt.checkpoints.find import newest_first
from hvd_nmt.checkpoints.names import BEST_DIR, VALUE

PYTHONS = {"own": sys.executable, "other": os.environ.get("HVD_NMT_OTHER_PYTHON")}
pytestmark = [
    pytest.mark.long,
    pytest.mark.both_tensorflows,
    pytest.mark.skipif(
        not PYTHONS["other"], reason="HVD_NMT_OTHER_PYTHON is not set; make test-tf2.18 sets it"
    ),
]
BOTH_WAYS = pytest.mark.parametrize(("writer", "reader"), [("own", "other"), ("other", "own")])
FROM, LAST = 10, 20
TAGS = ("train_loss", "train_nll", "Loss_Optimization/global_gradient_norm")


def options(data, run_dir):
    often = ("--checkpoints.every-steps", str(FROM), "--evaluation.every-steps", str(LAST))
    return toy.train_options(data, run_dir, LAST, *often, "--evaluation.beam-size", "1")


def at_once(runs):
    """Waits for runs that were started together."""
    done = {name: run.finished() for name, run in runs.items()}
    for name, one in done.items():
        assert one.returncode == 0, name + one.stdout + one.stderr
    return done


@pytest.fixture(scope="module")
def versions():
    """The TensorFlow of each Python."""
    code = "import importlib.metadata as m; print(m.version('tensorflow'))"
    found = {
        name: toy.python("-I", "-c", code, program=program).stdout
        for name, program in PYTHONS.items()
    }
    assert found["own"] != found["other"], f"HVD_NMT_OTHER_PYTHON has TensorFlow {found['own']} too"
    return found


@pytest.fixture(scope="module")
def cwd(versions, toy_data, tmp_path_factory):
    """Where the run directories `own` and `other` are, each by that Python, never interrupted."""
    cwd = tmp_path_factory.mktemp("versions")
    at_once({
        name: toy.start_train(*options(toy_data, name), cwd=cwd, python=python)
        for name, python in PYTHONS.items()
    })  # fmt: skip
    return cwd


@pytest.fixture(scope="module")
def resumed(cwd, toy_data):
    """What training said that went on from step 10 of a run of the other; its directory is READER.

    That step is all the new directory has, as if the run had been killed before the next save.
    """
    runs = {}
    for writer, reader in (("own", "other"), ("other", "own")):
        run_dir = shutil.copytree(cwd / writer, cwd / f"{reader}_goes_on")
        shutil.rmtree(run_dir / BEST_DIR)
        for path in run_dir.glob(f"model.ckpt-{LAST}.*"):
            path.unlink()
        runs[reader] = toy.start_train(
            *options(toy_data, run_dir.name), cwd=cwd, python=PYTHONS[reader]
        )
    return at_once(runs)


@pytest.fixture(scope="module")
def restored(cwd, tmp_path_factory):
    """What each TensorFlow, alone, restores of each run: reader -> writer -> values."""
    prefixes = {name: cwd / name / f"model.ckpt-{LAST}" for name in PYTHONS}
    found = {}
    for reader, python in PYTHONS.items():
        folder = tmp_path_factory.mktemp(reader)
        values = tensorflow_alone.restored(prefixes.values(), folder, python)
        found[reader] = dict(zip(prefixes, values, strict=True))
    return found


@BOTH_WAYS
def test_it_is_resumed(cwd, resumed, writer, reader):
    """From the step of the checkpoint, along the curve of the run that was not interrupted.

    The steps after it have this loss only with the weights and Adam's moments. On an EPYC with
    AVX-512 all digits are equal; kernels of other processors may add in another order.
    """
    run_dir = cwd / f"{reader}_goes_on"
    assert f"resuming    from {run_dir.name}/model.ckpt-{FROM}\n" in resumed[reader].stdout
    assert f"step {FROM}/" not in resumed[reader].stdout
    assert f"step {LAST}/" in resumed[reader].stdout
    assert newest_first(run_dir)[0].step == LAST
    found, whole = (toy.metrics(directory) for directory in (run_dir, cwd / writer))
    assert [line["step"] for line in found] == list(range(1, LAST + 1))
    for tag in TAGS:
        curve, wanted = ([line[tag] for line in lines] for lines in (found, whole))
        np.testing.assert_allclose(curve, wanted, rtol=1e-5, err_msg=tag)


@BOTH_WAYS
def test_it_is_restored_by_its_meta_graph(cwd, restored, writer, reader):
    """By a TensorFlow 1 saver: each weight to the bit, and logits as the writer computes them."""
    wanted, found = restored[writer][writer], restored[reader][writer]
    assert found.keys() == wanted.keys()
    checkpoint = tf.train.load_checkpoint(os.fspath(cwd / writer / f"model.ckpt-{LAST}"))
    weights = found.keys() - {"logits"}
    assert len(weights) > 20
    for name in weights:
        value = checkpoint.get_tensor(name + VALUE)
        assert found[name].tobytes() == wanted[name].tobytes() == value.tobytes(), name
    assert found["step"] == LAST
    np.testing.assert_allclose(found["logits"], wanted["logits"], rtol=0, atol=1e-5)
