"""The predicted size of a checkpoint against files that TensorFlow wrote."""

import dataclasses
import os

import pytest

from hvd_nmt.checkpoints import index_file, size
from hvd_nmt.checkpoints.names import OBJECT_GRAPH
from hvd_nmt.checkpoints.state import adam_state, run_state, weights_by_path, weights_to_train
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import ModelConfig, TrainingConfig, presets
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import horovod, optimizer

TINY = ModelConfig(1, 2, 16, 2, 32)


def assert_predicted(
    folder, model, vocabulary_size, precision, freeze="", averaged=False, source=0
):
    horovod.init()
    prefix = folder / "model.ckpt-0"
    transformer = Transformer(model, vocabulary_size, precision, source_vocabulary_size=source)
    trained = weights_to_train(transformer, freeze)
    adam = optimizer.build(TrainingConfig(), precision, list(trained.values()))
    average = None
    if averaged:
        average = Transformer(model, vocabulary_size, precision, source_vocabulary_size=source)
    state = run_state(transformer, 0, optimizer.state(adam, list(trained)), average)
    state.write(os.fspath(prefix))
    data = folder / "model.ckpt-0.data-00000-of-00001"
    found = data.stat().st_size
    graph = next(t for t in index_file.tensors(prefix) if t.name == OBJECT_GRAPH)
    data.unlink()  # base has 0.7 GB
    predicted = size.predict(
        model, vocabulary_size, precision, freeze=freeze, averaged=averaged,
        source_vocabulary_size=source,
    )  # fmt: skip
    assert predicted.n_bytes == found
    assert predicted.object_graph_bytes == graph.n_bytes
    assert predicted.parameters == transformer.count_params()
    return predicted


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("demo", "float32"),
        ("demo", "float16"),
        pytest.param("base", "float32", marks=pytest.mark.long),
        pytest.param("base", "float16", marks=pytest.mark.long),
    ],
)
def test_presets_to_the_byte(tmp_path, name, precision):
    """Two-byte node numbers and sizes: the object graph of a large model is not a small one's."""
    config = presets()[name][1]
    predicted = assert_predicted(tmp_path, config.model, config.data.vocabulary_size, precision)
    assert predicted.scalar_bytes == (28 if precision == "float16" else 16)
    if name == "base":
        assert predicted.parameters == 60_880_896
        assert predicted.weight_bytes + predicted.adam_bytes == 730_570_752


@pytest.mark.parametrize("layers", [1, 9, 12])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_other_sizes_to_the_byte(tmp_path, layers, positions):
    model = dataclasses.replace(TINY, encoder_layers=layers, positions=positions)
    assert_predicted(tmp_path, model, 40, "float32")


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("freeze", ["", "encoder, decoder/0/*"])
def test_frozen_and_averaged_to_the_byte(tmp_path, freeze, averaged):
    predicted = assert_predicted(tmp_path, TINY, 4000, "float16", freeze=freeze, averaged=averaged)
    assert predicted.average_bytes == (predicted.weight_bytes if averaged else 0)
    assert (predicted.adam_bytes < 2 * predicted.weight_bytes) == bool(freeze)


@pytest.mark.parametrize("freeze", ["", "embedding", "source_embedding"])
def test_a_matrix_of_the_source_to_the_byte(tmp_path, freeze):
    model = dataclasses.replace(TINY, positions="learned", biases="all")
    found = assert_predicted(tmp_path, model, 40, "float16", freeze, averaged=True, source=4000)
    joint = size.predict(model, 40)
    assert found.parameters == joint.parameters + 4000 * 16
    frozen = {"": 0, "embedding": 4040, "source_embedding": 4000}[freeze]
    assert found.trained == found.parameters - frozen * 16


def test_without_an_optimizer_or_horovod_it_is_the_same(tmp_path):
    """As `formats.foreign` writes it."""
    model = Transformer(TINY, 40)
    state = run_state(model, 7, adam_state(weights_by_path(model), 7))
    state.write(os.fspath(tmp_path / "c"))
    data = tmp_path / "c.data-00000-of-00001"
    assert data.stat().st_size == size.predict(TINY, 40).n_bytes


def test_formula_of_the_recipe_and_a_precision_that_is_not_decided():
    assert size.recipe_bytes(60_880_896) == 730_570_768
    with pytest.raises(ConfigError, match="'auto' cannot be predicted: give float32"):
        size.predict(TINY, 40, "auto")
