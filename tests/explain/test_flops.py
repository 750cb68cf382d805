"""The operations of a step, against the products in the graph of the model."""

import pytest
import tensorflow as tf

from hvd_nmt.config import ModelConfig
from hvd_nmt.explain import flops
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
    assert flops.flops_of_step(model, 512, rows * source, rows * target, rows) == wanted
