"""Operations of a step: the formula against products that TensorFlow counts."""

import pytest
import tensorflow as tf

from hvd_nmt.config import ModelConfig
from hvd_nmt.config.presets import presets
from hvd_nmt.explain import model_flops
from hvd_nmt.model.transformer import Transformer


def forward_products(model, vocabulary_size, rows, source, target):
    """Operations of all products in the graph of a forward pass over full rows."""
    transformer = Transformer(model, vocabulary_size)
    specs = [tf.TensorSpec([rows, length], tf.int32) for length in (source, target)]
    graph = tf.function(transformer.call, autograph=False).get_concrete_function(*specs).graph
    products = [op for op in graph.get_operations() if op.type in ("MatMul", "BatchMatMulV2")]
    assert len(products) > 10
    total = 0
    for op in products:
        transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        inner = op.inputs[0].shape[-2 if transposed else -1]
        total += 2 * op.outputs[0].shape.num_elements() * inner
    return total


@pytest.mark.parametrize("layers", [(1, 1), (3, 2)])
def test_a_step_needs_three_times_the_products_of_a_forward_pass(layers):
    model = ModelConfig(*layers, 64, 4, 96)
    rows, source, target = 5, 7, 11
    wanted = 3 * forward_products(model, 512, rows, source, target)
    assert model_flops.of_step(model, 512, rows * source, rows * target, rows) == wanted


def test_the_weights_of_the_recipe_by_hand():
    """transformer-base: all but embedding look-ups, norms and biases is multiplied once."""
    model = presets()["base"][1].model
    source, target = model_flops.product_weights(model, 32_768)
    assert source == 6 * (4 * 512**2 + 2 * 512 * 2048) + 6 * 2 * 512**2
    assert target == 6 * (6 * 512**2 + 2 * 512 * 2048) + 512 * 32_768
    assert source + target == pytest.approx(60_880_896, rel=0.002)  # norms and biases are missing


def test_attention_grows_with_the_square_of_the_length():
    model = ModelConfig(2, 3, 64, 4, 128)
    short = model_flops.of_step(model, 512, 100, 100, 10)
    long = model_flops.of_step(model, 512, 100, 100, 5)
    # 20 instead of 10 tokens a sentence: 12 D (L_e S + L_d T + L_d S) a token more.
    assert long - short == 12 * 64 * (2 * 10 + 3 * 10 + 3 * 10) * 100


def test_a_step_without_sentences_costs_no_attention_that_is_not_there():
    assert model_flops.of_step(ModelConfig(), 512, 0, 0, 0) == 0
