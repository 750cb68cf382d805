"""What a checkpoint contains: of our own Saver, and of OpenSeq2Seq."""

import math
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.checkpoints import contents
from hvd_nmt.checkpoints.names import OBJECT_GRAPH
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.checkpoints.state import keyed_variables, run_state, weights_by_path
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import ModelConfig, TrainingConfig, as_plain
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import horovod, optimizer

MODEL = ModelConfig(2, 1, 16, 2, 32)
VOCABULARY = 40


def save(run_dir, state, step, loss=1.0):
    state.step.assign(step)
    facts = {
        "vocabulary_hash": "v", "data_hash": "d", "model": as_plain(MODEL),
        "vocabulary_size": VOCABULARY, "ranks": 1,
    }  # fmt: skip
    saver = Saver(run_dir, state, facts, keep=5, keep_best=5)
    saver.save(step)
    saver.note(step, loss)


@pytest.fixture(scope="module")
def state():
    """A small model under training with float16, which has every kind of variable."""
    horovod.init()
    model = Transformer(MODEL, VOCABULARY, "float16")
    weights = weights_by_path(model)
    adam = optimizer.build(TrainingConfig(), "float16", list(weights.values()))
    return run_state(model, 0, optimizer.state(adam, list(weights)))


@pytest.fixture(scope="module")
def run_dir(state, tmp_path_factory):
    """Checkpoints of steps 90 and 100; the second with the embedding doubled, and m no longer 0."""
    path = tmp_path_factory.mktemp("anatomy") / "run"
    path.mkdir()
    save(path, state, 90)
    state.model.embedding.assign(2 * state.model.embedding)
    for key, moment in keyed_variables(state):
        if key.startswith("optimizer/m/"):
            moment.assign(tf.ones(moment.shape))
    save(path, state, 100)
    return path


@pytest.fixture(scope="module")
def found(run_dir):
    """The newer of the two, taken apart."""
    return contents.read(run_dir / "model.ckpt-100")


@pytest.fixture
def copied(found, tmp_path):
    """The prefix of a copy of the newer one, in a folder of its own."""
    for path in found.prefix.parent.glob(f"{found.prefix.name}.*"):
        shutil.copy(path, tmp_path)
    return tmp_path / found.prefix.name


def test_files_with_size_and_purpose(found, run_dir):
    names = [file.name for file in found.files]
    endings = (".data-00000-of-00001", ".index", ".meta", ".json")
    assert names == [*(f"model.ckpt-100{ending}" for ending in endings), "checkpoint"]
    for file in found.files:
        assert file.n_bytes == (run_dir / file.name).stat().st_size
    assert len({file.purpose for file in found.files}) == 5


def test_every_variable_is_listed(found, state):
    reader = tf.train.load_checkpoint(os.fspath(found.prefix))
    shapes = {variable.name: list(variable.shape) for variable in found.variables}
    assert shapes == reader.get_variable_to_shape_map()
    assert found.parameters == state.model.count_params()
    assert found.step == 100
    embedding = next(v for v in found.variables if v.name.startswith("model/embedding"))
    assert (embedding.shape, embedding.dtype, embedding.count) == ((40, 16), "float32", 640)
    value = contents.values(found.prefix)(embedding.name)
    np.testing.assert_array_equal(value, state.model.embedding)
    table = contents.variable_table(found.prefix)  # as the manifest has it
    assert [v.n_bytes for v in found.variables] == [row[-1] for row in table]


def test_groups_account_for_every_byte(found, state):
    groups = {group.name: group for group in found.groups()}
    assert "other" not in groups
    assert sum(group.n_bytes for group in groups.values()) == found.data_bytes
    assert found.other_bytes == 0
    assert sum(group.share for group in groups.values()) == pytest.approx(1)
    width, hidden = MODEL.width, MODEL.feed_forward_width
    counts = {name: group.count for name, group in groups.items()}
    assert counts == {
        "embedding": VOCABULARY * width,
        "encoder attention": 2 * 4 * width**2,
        "encoder feed-forward": 2 * (2 * width * hidden + width + hidden),
        "decoder self-attention": 4 * width**2,
        "cross-attention": 4 * width**2,
        "decoder feed-forward": 2 * width * hidden + width + hidden,
        "layer norms": 2 * width * (2 * 2 + 1 + 3 + 1),
        "Adam m": found.parameters,
        "Adam v": found.parameters,
        "optimizer scalars": 1,
        "step and loss scale": 3,
        "object graph": 1,
    }
    assert found.predicted_bytes == found.model_bytes


def test_a_damaged_index_is_one_sentence(copied):
    """Where the manifest has no table, as those of earlier versions."""
    copied.with_name(f"{copied.name}.json").unlink()
    index = copied.with_name(f"{copied.name}.index")
    assert contents.read(copied).step == 100
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(RunError, match="is no index of a TensorFlow checkpoint, or damaged"):
        contents.read(copied)


def test_latest_is_the_highest_step_not_the_last_name(run_dir, tmp_path):
    assert contents.latest(run_dir) == run_dir / "model.ckpt-100"
    assert contents.latest(tmp_path) is None
    (tmp_path / "best_models").mkdir()
    for step in (9, 10):
        (tmp_path / "best_models" / f"val_loss=1.5-step-{step}.index").touch()
    assert contents.latest(tmp_path) == tmp_path / "best_models" / "val_loss=1.5-step-10"
    (tmp_path / "model.ckpt-5.index").touch()
    assert contents.latest(tmp_path) == tmp_path / "model.ckpt-5"


def test_every_weight_of_an_imported_model_belongs_to_the_model():
    names = ("model/logits_bias", "model/embedding", "model/encoder/0/attention/qkv")
    keys = [f"{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in names]
    found = [contents.Variable(key, (), "float32", 4).group for key in keys]
    assert found == ["embedding", "embedding", "encoder attention"]


def test_changes_by_group_of_one_model(run_dir, tmp_path):
    moved = contents.changes(run_dir / "model.ckpt-90", run_dir / "model.ckpt-100")
    assert moved.pop("embedding") == pytest.approx(1)  # it was doubled
    assert moved.pop("Adam m") == math.inf  # it was 0
    assert set(moved.values()) == {0.0}
    assert {"layer norms", "cross-attention", "Adam v"} <= set(moved)
    assert "object graph" not in moved

    tf.train.Checkpoint(step=tf.Variable(1)).write(os.fspath(tmp_path / "other"))
    with pytest.raises(RunError, match="not of one model"):
        contents.changes(run_dir / "model.ckpt-90", tmp_path / "other")


def test_names_as_openseq2seq_gives_them(tmp_path):
    """The same without the real file: a TensorFlow 1 checkpoint has no object graph."""
    path = "ForwardPass/transformer_decoder/layer_0/encdec_attention/attention/k/kernel"
    kernel = np.ones([4, 4], np.float32)
    named = {
        path: kernel,
        f"Loss_Optimization/{path}/Adam": kernel,
        f"Loss_Optimization/{path}/Adam_1": kernel,
        "Loss_Optimization/beta1_power": np.float32(0.9),
        "Loss_Optimization/beta2_power": np.float32(0.9),
        "global_step": np.int64(41),
    }
    tf.raw_ops.SaveV2(
        prefix=os.fspath(tmp_path / "model.ckpt-42"), tensor_names=list(named),
        shape_and_slices=[""] * len(named), tensors=[tf.constant(v) for v in named.values()],
    )  # fmt: skip
    found = contents.read(tmp_path / "model.ckpt-42")
    assert [(group.name, group.variables) for group in found.groups()] == [
        ("cross-attention", 1), ("Adam m", 1), ("Adam v", 1), ("optimizer scalars", 2),
        ("step and loss scale", 1),
    ]  # fmt: skip
    assert (found.step, found.predicted_bytes) == (41, found.model_bytes)
    assert OBJECT_GRAPH not in {variable.name for variable in found.variables}
    (tmp_path / "model.ckpt-42.data-00000-of-00001").unlink()
    with pytest.raises(RunError, match=r"without it model\.ckpt-42 holds no values"):
        contents.read(tmp_path / "model.ckpt-42")
