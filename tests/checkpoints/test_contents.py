"""What a checkpoint contains, of our own Saver and of OpenSeq2Seq."""

import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.checkpoints import contents, state
from hvd_nmt.checkpoints.names import OBJECT_GRAPH
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import ModelConfig, TrainingConfig, as_plain
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import horovod, optimizer
from hvd_nmt.training.exchange.all_reduce import AllReduce
from marked_run import FACTS

MODEL = ModelConfig(2, 1, 16, 2, 32)
VOCABULARY = 40


@pytest.fixture(scope="module")
def model():
    """In float16, which has every kind of variable when it is trained."""
    return Transformer(MODEL, VOCABULARY, "float16")


@pytest.fixture(scope="module")
def run_dir(model, tmp_path_factory):
    """Checkpoints of steps 90 and 100; the second with the embedding doubled."""
    horovod.init()
    weights = state.weights_by_path(model)
    adam = optimizer.build(TrainingConfig(), "float16", list(weights.values()), AllReduce())
    saved = state.run_state(model, 0, optimizer.state(adam, list(weights)))
    path = tmp_path_factory.mktemp("anatomy")
    saver = Saver(path, saved, FACTS | {"model": as_plain(MODEL)}, keep=5, keep_best=5)
    saver.save(90)
    model.embedding.assign(2 * model.embedding)
    saver.save(100)
    return path


@pytest.fixture(scope="module")
def found(run_dir):
    """The newer of the two, taken apart."""
    return contents.read(run_dir / "model.ckpt-100")


def test_every_variable_is_listed(found, model):
    reader = tf.train.load_checkpoint(os.fspath(found.prefix))
    shapes = {variable.name: list(variable.shape) for variable in found.variables}
    assert shapes == reader.get_variable_to_shape_map()
    assert (found.parameters, found.step) == (model.count_params(), 100)
    embedding = next(v for v in found.variables if v.name.startswith("model/embedding"))
    assert (embedding.shape, embedding.dtype, embedding.count) == ((40, 16), "float32", 640)
    values = contents.reader(found.prefix).get_tensor(embedding.name)
    np.testing.assert_array_equal(values, model.embedding)
    table = contents.variable_table(found.prefix)  # as the manifest has it
    assert [v.n_bytes for v in found.variables] == [row[-1] for row in table]


def test_groups_account_for_every_byte(found):
    groups = {group.name: group for group in found.groups()}
    assert sum(group.n_bytes for group in groups.values()) == found.data_bytes
    assert sum(group.share for group in groups.values()) == pytest.approx(1)
    width, hidden = MODEL.width, MODEL.feed_forward_width
    assert {name: group.count for name, group in groups.items()} == {
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


def test_a_damaged_index_is_one_sentence(found, tmp_path):
    """Where the manifest has no table, as those of earlier versions, or is damaged."""
    for path in found.prefix.parent.glob(f"{found.prefix.name}.*"):
        shutil.copy(path, tmp_path)
    copied, index = tmp_path / found.prefix.name, tmp_path / f"{found.prefix.name}.index"
    (tmp_path / f"{found.prefix.name}.json").write_text("{", encoding="utf-8")
    assert contents.read(copied).variables == found.variables
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(RunError, match="is damaged, or not of TensorFlow"):
        contents.read(copied)


def test_prefixes_are_sorted_by_step_not_by_name(run_dir, tmp_path):
    assert contents.readable(run_dir) == [run_dir / f"model.ckpt-{step}" for step in (90, 100)]
    assert contents.readable(tmp_path) == contents.readable(tmp_path / "none") == []
    (tmp_path / "best_models").mkdir()
    best = [tmp_path / "best_models" / f"val_loss=1.5-step-{step}" for step in (9, 10)]
    for prefix in best:
        prefix.with_name(f"{prefix.name}.index").touch()
    assert contents.readable(tmp_path) == best
    (tmp_path / "model.ckpt-5.index").touch()
    assert contents.readable(tmp_path) == [tmp_path / "model.ckpt-5"]


def test_changes_by_group_of_one_model(run_dir):
    moved = contents.changes(run_dir / "model.ckpt-90", run_dir / "model.ckpt-100")
    assert moved.pop("embedding") == pytest.approx(1)  # it was doubled
    assert moved == dict.fromkeys(moved, 0.0)
    assert {"layer norms", "cross-attention"} <= set(moved) <= set(contents.WEIGHTS)


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
        "global_step": np.int64(42),
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
    assert (found.step, found.predicted_bytes) == (42, found.model_bytes)
    assert OBJECT_GRAPH not in {variable.name for variable in found.variables}
    (tmp_path / "model.ckpt-42.data-00000-of-00001").unlink()
    with pytest.raises(RunError, match=r"is missing: copy it back"):
        contents.read(tmp_path / "model.ckpt-42")
