"""The `.meta` file: the model's graph, so that a process with TensorFlow alone can run it.

    tf.compat.v1.disable_eager_execution()
    saver = tf.compat.v1.train.import_meta_graph(prefix + ".meta")
    with tf.compat.v1.Session() as session:
        saver.restore(session, prefix)
        session.run("logits:0", {"source:0": source_BxS, "target:0": target_BxT})

The checkpoint is object-based (TensorFlow 2). A TensorFlow 1 saver restores variables by the names
it is given, so it is given the keys of the object graph.
"""

import tensorflow as tf

from hvd_nmt.checkpoints.names import STEP, VALUE
from hvd_nmt.checkpoints.state import keyed_variables
from hvd_nmt.model.transformer import Transformer


def export(model: Transformer, state: tf.train.Checkpoint) -> bytes:
    """The meta graph of a model, or its moving average, that `state` saves as `model` or as `ema`.

    A serialised MetaGraphDef with placeholders `source` and `target` (int32 ids, BxS and BxT, each
    row ending with eos and padded with 0), the result `logits` (float32 BxTxV), and a saver that
    restores the weights and the step.
    """
    keys = {id(variable): key for key, variable in keyed_variables(state)}
    traced = _traced(model)
    owners = {id(variable.handle): variable for variable in model.variables}
    with tf.Graph().as_default():
        inputs = {
            name: tf.compat.v1.placeholder(tf.int32, [None, None], name)
            for name in ("source", "target")
        }
        replaced = {
            placeholder.name: inputs[placeholder.name.split(":")[0]]
            for placeholder in traced.inputs[:2]
        }
        variables = {}
        for handle, placeholder in traced.graph.captures:
            original = owners[id(handle)]
            key = keys[id(original)]
            variables[key] = _variable(key, original.shape, original.dtype)
            replaced[placeholder.name] = variables[key].handle
        variables[STEP + VALUE] = _variable(STEP, [], tf.int64)
        (logits,) = tf.graph_util.import_graph_def(
            traced.graph.as_graph_def(),
            input_map=replaced,
            return_elements=[traced.outputs[0].name],
            name="transformer",
        )
        tf.identity(logits, name="logits")
        saver = tf.compat.v1.train.Saver(variables)
        return tf.compat.v1.train.export_meta_graph(
            saver_def=saver.as_saver_def(), clear_devices=True
        ).SerializeToString()


def _traced(model: Transformer) -> tf.types.experimental.ConcreteFunction:
    """The model as a graph in float32, which every machine can run.

    Keras layers cannot be made or called in a TensorFlow 1 graph without changing their classes
    for the rest of the process; a traced function can be copied into one.
    """
    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(autograph=False)
    def logits(source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
        return model(source, target)

    dtype, model.activation_dtype = model.activation_dtype, tf.float32
    try:
        return logits.get_concrete_function(ids, ids)
    finally:
        model.activation_dtype = dtype


def _variable(name: str, shape: tf.TensorShape, dtype: tf.DType) -> tf.Variable:
    zeros = tf.zeros_initializer()
    return tf.compat.v1.get_variable(
        name.removesuffix(VALUE), shape, dtype, initializer=zeros, use_resource=True
    )
