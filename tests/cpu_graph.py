"""What a CPU would do for a graph: as TensorFlow rewrites it, and how much work each operation is.

Nothing is run and no clock is read.
"""

import collections
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

import gpu_graph

_MOVES_NOTHING = {
    "Const", "ExpandDims", "Identity", "IdentityN", "Placeholder", "ReadVariableOp", "Reshape",
    "StopGradient",
}  # fmt: skip


def optimised(function: Any) -> graph_pb2.GraphDef:
    """The graph of a concrete function after TensorFlow's own rewriting for a CPU."""
    return gpu_graph.optimised(function, kinds=["CPU"])


def operations(graph: graph_pb2.GraphDef) -> collections.Counter[str]:
    """How many nodes there are of each kind, those of its functions included."""
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return collections.Counter(node.op for node in nodes)


def multiply_adds(function: Any) -> int:
    """Of all matrix products of a concrete function of known shapes, which has no loop."""
    return sum(map(_of_product, function.graph.get_operations()))


def elements(function: Any) -> Mapping[str, int]:
    """Numbers that all operations of each kind write, but for products and what moves nothing."""
    written: collections.Counter[str] = collections.Counter()
    for operation in function.graph.get_operations():
        if operation.type not in _MOVES_NOTHING and "MatMul" not in operation.type:
            written[operation.type] += sum(_size(tensor) for tensor in operation.outputs)
    return written


def _of_product(operation: tf.Operation) -> int:
    if "MatMul" not in operation.type:
        return 0
    flag = "transpose_a" if operation.type == "MatMul" else "adj_x"
    inner = operation.inputs[0].shape[-2 if operation.get_attr(flag) else -1]
    return _size(operation.outputs[0]) * inner


def _size(tensor: tf.Tensor) -> int:
    if tensor.dtype in (tf.resource, tf.variant):
        return 0
    assert tensor.shape.is_fully_defined(), f"{tensor.op.type} {tensor.name}: {tensor.shape}"
    return int(tensor.shape.num_elements())
