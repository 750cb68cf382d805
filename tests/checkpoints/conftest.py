"""A small run under training, and its checkpoints."""

import os
import shutil
import subprocess

import pytest

from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.state import adam_state, run_state, weights_by_path
from hvd_nmt.config import ModelConfig
from hvd_nmt.model.transformer import Transformer
from marked_run import FACTS, mark


@pytest.fixture(scope="module")
def state():
    """A small model under training: weights, Adam's moments and the step."""
    model = Transformer(ModelConfig(1, 1, 16, 2, 32), 40, "float32")
    return run_state(model, 0, adam_state(weights_by_path(model)))


@pytest.fixture(scope="module")
def saved(state, tmp_path_factory):
    """A run directory with the checkpoints of steps 10, 20 and 30: copy it to change it."""
    run_dir = tmp_path_factory.mktemp("saved") / "run"
    run_dir.mkdir()
    saver = Saver(run_dir, state, FACTS, keep=3, keep_best=2)
    for step in (10, 20, 30):
        mark(state, step)
        saver.save(step)
        saver.note(step, 1.5)
    shutil.rmtree(run_dir / "best_models")
    return run_dir


@pytest.fixture
def run_dir(saved, tmp_path):
    """A copy of `saved`."""
    return shutil.copytree(saved, tmp_path / "run")


@pytest.fixture
def small_disk(tmp_path):
    """Mounts a file system of so many bytes."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    mounted = tmp_path / "small"
    mounted.mkdir()

    def mount(n_bytes):
        options = ["-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs"]
        subprocess.run(["mount", *options, mounted], check=True)
        return mounted

    yield mount
    subprocess.run(["umount", mounted], check=False)
