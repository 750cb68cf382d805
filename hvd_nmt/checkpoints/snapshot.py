"""A copy of what a run saves, which stays as it is while the run goes on.

Objects, keys and names are the same, so a checkpoint of it is that of the run itself, to the byte.
"""

from typing import Any

import tensorflow as tf


class Snapshot:
    """The variables of a state, as they were when it was made or last taken, in main memory.

    On the CPU, TensorFlow copies a variable when the run next changes it, and on a GPU at once.
    """

    def __init__(self, state: tf.train.Checkpoint) -> None:
        self._pairs: list[tuple[tf.Variable, tf.Variable]] = []
        self.state: tf.train.Checkpoint = self._copy(state, {})
        """the copy"""

    def take(self) -> None:
        """Let it be the state as it is now."""
        with tf.device("CPU:0"):
            for copy, original in self._pairs:
                copy.assign(original)

    def _copy(self, original: Any, copied: dict[int, Any]) -> Any:
        if id(original) in copied:
            return copied[id(original)]
        if isinstance(original, tf.Variable):
            with tf.device("CPU:0"):
                copy = tf.Variable(original, name=original.name.split(":")[0], trainable=False)
            self._pairs.append((copy, original))
            copied[id(original)] = copy
            return copy
        copy = copied[id(original)] = tf.train.Checkpoint()
        for name, child in tf.train.TrackableView.children(original).items():
            setattr(copy, name, self._copy(child, copied))
        return copy
