"""What a GPU would have to do for a graph, read from the graph and TensorFlow's kernel registry.

No GPU is needed: TensorFlow's wheels carry the kernel registry of both devices. A node is taken to
run on the GPU if there is a kernel for its types and nobody says otherwise; the kernel says which
of its inputs and outputs lie in the host's memory (shapes and whole numbers of 32 bits, as a rule).
"""

import dataclasses
import graphlib
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, kernel_def_pb2, node_def_pb2, types_pb2
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, rewriter_config_pb2
from tensorflow.python.framework import function_def_to_graph, kernels, op_def_registry
from tensorflow.python.grappler import cluster, tf_optimizer

Node = node_def_pb2.NodeDef

HOST, DEVICE, NOWHERE = "host", "device", "nowhere"
"""where a tensor lies; nowhere: handles, and constants, which are where they are wanted"""

_NO_LAUNCH = {
    "Bitcast", "EnsureShape", "Enter", "Exit", "ExpandDims", "Identity", "IdentityN", "LoopCond",
    "Merge", "NextIteration", "PreventGradient", "ReadVariableOp", "Reshape", "Squeeze",
    "StopGradient", "Switch",
}  # fmt: skip
"""what hands on numbers that are there"""
_CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
_BRANCHES = {"If", "StatelessIf"}
_LOOPS = {"While", "StatelessWhile"}


@dataclasses.dataclass
class Counts:
    """Of a graph with its functions; a branch and a loop's body count once."""

    launches: int = 0
    """kernels on the GPU"""
    to_host: list[str] = dataclasses.field(default_factory=list)
    """what waits for the GPU, `producer -> consumer` by operation, once for each tensor"""
    without_kernel: list[str] = dataclasses.field(default_factory=list)
    """operations with a kernel on GPUs, but not for these types: they run on the host"""
    programs: int = 0
    """of XLA, which are not looked into"""
    operations: dict[str, int] = dataclasses.field(default_factory=dict)
    """launches by operation"""


def count(function: Any, on_host: Sequence[tf.Variable] = ()) -> Counts:
    """Of a concrete function, as Grappler leaves it for a host with one GPU.

    Args:
        function: traced, on any machine.
        on_host: variables that it reads and that lie in the host's memory.
    """
    graph = optimised(function)
    functions = {f.signature.name: f for f in graph.library.function}
    handles = [variable.handle for variable in on_host]
    captured = {
        inside.op.name
        for outside, inside in function.graph.captures
        if any(outside is handle for handle in handles)
    }
    counts = Counts()
    _Counter(functions, counts, captured).graph(graph.node, {})
    counts.operations = dict(sorted(counts.operations.items(), key=lambda item: -item[1]))
    return counts


def optimised(function: Any, kinds: Sequence[str] = ("CPU", "GPU")) -> graph_pb2.GraphDef:
    """The graph of a concrete function after TensorFlow's own rewriting.

    Args:
        function: traced, on any machine.
        kinds: the devices of the host. All nodes are put on the only one, which tells TensorFlow
            that it may rewrite them for it.
    """
    graph = function.graph
    definition = graph.as_graph_def(add_shapes=True)
    if len(kinds) == 1:
        for nodes in (definition.node, *(f.node_def for f in definition.library.function)):
            for node in nodes:
                node.device = _device(kinds[0])
    meta = tf.compat.v1.train.export_meta_graph(graph_def=definition, graph=graph)
    kept = [x.name for x in tf.nest.flatten(graph.structured_outputs) if isinstance(x, tf.Tensor)]
    kept += [operation.name for operation in graph.control_outputs]
    meta.collection_def["train_op"].node_list.value.extend(kept)
    config = config_pb2.ConfigProto()
    config.graph_options.rewrite_options.meta_optimizer_iterations = (
        rewriter_config_pb2.RewriterConfig.TWO
    )
    devices = [
        device_properties_pb2.NamedDevice(
            name=_device(kind),
            properties=device_properties_pb2.DeviceProperties(
                type=kind, num_cores=100, frequency=1500, memory_size=64 << 30,
                environment={"architecture": "9"} if kind == "GPU" else {},
            ),
        )
        for kind in kinds
    ]  # fmt: skip
    return tf_optimizer.OptimizeGraph(config, meta, cluster=cluster.Cluster(devices=devices))


def _device(kind: str) -> str:
    return f"/job:localhost/replica:0/task:0/device:{kind}:0"


class _Counter:
    def __init__(
        self, functions: Mapping[str, Any], counts: Counts, on_host: Container[str]
    ) -> None:
        self._functions, self._counts, self._on_host = functions, counts, on_host
        self._results: dict[str, list[str]] = {}

    def graph(self, nodes: Sequence[Node], places: dict[str, str]) -> dict[str, str]:
        """Counts nodes; gives where each tensor lies."""
        moved: set[str] = set()
        operations = {node.name: node.op for node in nodes}
        for node in _in_order(nodes):
            inputs = [_tensor(name) for name in node.input if not name.startswith("^")]
            wanted, given = self._node(node)
            for tensor, there in zip(inputs, wanted, strict=True):
                here = places.get(tensor, NOWHERE)
                if (here, there) == (DEVICE, HOST) and tensor not in moved:
                    moved.add(tensor)
                    edge = f"{operations[tensor.partition(':')[0]]} -> {node.op}"
                    self._counts.to_host.append(edge)
            places |= {f"{node.name}:{index}": place for index, place in enumerate(given)}
        return places

    def _node(self, node: Node) -> tuple[list[str], list[str]]:
        """Where a node wants its inputs and leaves its outputs."""
        if node.op in _CALLS and _is_program(self._functions[node.attr["f"].func.name]):
            self._counts.programs += 1
            signature = self._functions[node.attr["f"].func.name].signature
            return (
                [_argument(arg.type) for arg in signature.input_arg],
                [_argument(arg.type) for arg in signature.output_arg],
            )
        if node.op in _CALLS:
            return self._call(node.attr["f"].func.name)
        if node.op in _BRANCHES:
            self._call(node.attr["else_branch"].func.name)
            wanted, given = self._call(node.attr["then_branch"].func.name)
            return [HOST, *wanted], given
        if node.op in _LOOPS:
            self._call(node.attr["cond"].func.name)
            return self._call(node.attr["body"].func.name)
        if node.op in self._functions:
            return self._call(node.op)
        return self._kernel(node)

    def _call(self, name: str) -> tuple[list[str], list[str]]:
        signature = self._functions[name].signature
        wanted = [_argument(arg.type) for arg in signature.input_arg]
        given = [_argument(arg.type) for arg in signature.output_arg]
        if name not in self._results:
            self._results[name] = given
            body, flat = function_def_to_graph.function_def_to_graph_def(self._functions[name])
            places = self.graph(body.node, {})
            for arg, there in zip(signature.output_arg, given, strict=True):
                here = places.get(_tensor(flat[self._functions[name].ret[arg.name]]), NOWHERE)
                if (here, there) == (DEVICE, HOST) or (here == DEVICE and arg.type == tf.bool):
                    self._counts.to_host.append("result of a function")
        return wanted, given

    def _kernel(self, node: Node) -> tuple[list[str], list[str]]:
        definition = op_def_registry.get(node.op)
        names_in = _expanded(definition.input_arg, node)
        names_out = _expanded(definition.output_arg, node)
        types_out = _types(definition.output_arg, node)
        if node.op in ("Const", "VarHandleOp", "NoOp"):
            return [], [NOWHERE] * len(names_out)
        if node.op in ("Placeholder", "_Arg"):
            return [], [_argument(type_) for type_ in types_out]
        if node.op.startswith("Horovod"):  # with NCCL; what is built here may have none
            return [DEVICE] * len(names_in), [DEVICE] * len(names_out)
        of_host = any(name in self._on_host for name in node.input)
        kernel = None if "CPU" in node.device or of_host else _gpu_kernel(node)
        if kernel is None:
            if "CPU" not in node.device and not of_host and _on_gpus(node.op):
                types = [value.type for _, value in sorted(node.attr.items()) if value.type]
                named = ", ".join(tf.as_dtype(type_).name for type_ in types)
                self._counts.without_kernel.append(f"{node.op}({named})")
            return [HOST] * len(names_in), [HOST] * len(names_out)
        host = set(kernel.host_memory_arg)
        wanted, given = (
            [HOST if name in host else DEVICE for name in names] for names in (names_in, names_out)
        )
        if node.op not in _NO_LAUNCH and DEVICE in (given or wanted):
            self._counts.launches += 1
            self._counts.operations[node.op] = self._counts.operations.get(node.op, 0) + 1
        return wanted, given


def _is_program(function: Any) -> bool:
    """Whether XLA compiles it."""
    return function.attr["_XlaMustCompile"].b


def _argument(type_: int) -> str:
    """Where TensorFlow puts an argument or a result of a function on a GPU."""
    if type_ in (types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT):
        return NOWHERE
    return HOST if type_ in (types_pb2.DT_INT32, types_pb2.DT_STRING) else DEVICE


def _on_gpus(operation: str) -> list[kernel_def_pb2.KernelDef]:
    found = kernels.get_registered_kernels_for_op(operation).kernel
    return [k for k in found if k.device_type in ("GPU", "DEFAULT") and not k.label]


def _gpu_kernel(node: Node) -> kernel_def_pb2.KernelDef | None:
    fitting = [
        kernel
        for kernel in _on_gpus(node.op)
        if all(
            node.attr[constraint.name].type in constraint.allowed_values.list.type
            or set(node.attr[constraint.name].list.type) & set(constraint.allowed_values.list.type)
            for constraint in kernel.constraint
        )
    ]
    return max(fitting, key=lambda k: (k.device_type == "GPU", k.priority), default=None)


def _expanded(arguments: Sequence[Any], node: Node) -> list[str]:
    """The name of the argument that each of a node's tensors belongs to."""
    names: list[str] = []
    for argument in arguments:
        number = 1
        if argument.number_attr:
            number = node.attr[argument.number_attr].i
        elif argument.type_list_attr:
            number = len(node.attr[argument.type_list_attr].list.type)
        names += [argument.name] * number
    return names


def _types(arguments: Sequence[Any], node: Node) -> list[int]:
    return [
        node.attr[argument.type_attr].type if argument.type_attr else argument.type
        for argument in arguments
    ]


def _tensor(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _in_order(nodes: Sequence[Node]) -> Iterator[Node]:
    """Nodes after what they read; what a loop hands to its next round comes last."""
    by_name = {node.name: node for node in nodes}
    read = {
        node.name: [name.lstrip("^").partition(":")[0] for name in node.input] for node in nodes
    }
    for name, inputs in read.items():
        read[name] = [i for i in inputs if i in by_name and by_name[i].op != "NextIteration"]
    return (by_name[name] for name in graphlib.TopologicalSorter(read).static_order())
