"""The `.meta` file: the model's graph, so that a process with TensorFlow alone can run it.

    saver = tf.compat.v1.train.import_meta_graph(prefix + ".meta")
    with tf.compat.v1.Session() as session:
        saver.restore(session, prefix)
        session.run("logits:0", {"source:0": source_BxS, "target:0": target_BxT})

The checkpoint is object-based (TensorFlow 2). A TensorFlow 1 saver restores variables by the names
it is given, so it is given the keys of the object graph.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator

import tensorflow as tf

from hvd_nmt.model.transformer import Transformer

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def export(model: Transformer, state: tf.train.Checkpoint) -> bytes:
    """The meta graph of a model whose weights are saved in `state`.

    Args:
        model: the model under training.
        state: the checkpoint object that saves it as `model`.

    Returns:
        A serialised MetaGraphDef with placeholders `source` and `target` (int32 ids, BxS and BxT,
        each row ending with eos and padded with 0), the result `logits` (float32 BxTxV), and a
        saver that restores the weights and the step.
    """
    saved = {id(variable): key for key, variable in keyed_variables(state)}
    with tf.Graph().as_default():
        source = tf.compat.v1.placeholder(tf.int32, [None, None], "source")
        target = tf.compat.v1.placeholder(tf.int32, [None, None], "target")
        twin = Transformer(model.config, model.vocabulary_size)
        tf.identity(twin(source, target), name="logits")
        names = {
            saved[id(original)]: copy
            for original, copy in zip(model.variables, twin.variables, strict=True)
        }
        names["step" + _VALUE] = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        saver = tf.compat.v1.train.Saver(names)
        return tf.compat.v1.train.export_meta_graph(
            saver_def=saver.as_saver_def(), clear_devices=True
        ).SerializeToString()


def keyed_variables(state: tf.train.Checkpoint) -> Iterator[tuple[str, tf.Variable]]:
    """Each variable that a checkpoint saves, with its key: the shortest path to it."""
    view = tf.train.TrackableView(state)
    waiting: collections.deque[tuple[str, object]] = collections.deque([("", state)])
    seen = {id(state)}
    while waiting:
        path, parent = waiting.popleft()
        for name, child in view.children(parent).items():
            if id(child) in seen:
                continue
            seen.add(id(child))
            # Slashes in a name would look like a path: TensorFlow escapes them.
            key = path + name.replace(".", "..").replace("/", ".S")
            if isinstance(child, tf.Variable):
                yield key + _VALUE, child
            else:
                waiting.append((key + "/", child))
