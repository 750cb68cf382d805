"""The time within a step, in its graph."""

import time
from collections.abc import Sequence

import tensorflow as tf


class StepClock:
    """Unix time as float64 scalars; `deterministic`: whether all kernels are to be."""

    def __init__(self, *, deterministic: bool) -> None:
        self._deterministic = deterministic
        with tf.device("CPU:0"):
            self._reached = tf.Variable(0.0, trainable=False, name="reached")

    def now(self) -> tf.Tensor:
        """The time when all is there that this depends on."""
        if not self._deterministic:
            return tf.timestamp()  # which TensorFlow refuses where kernels are deterministic
        return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])

    def after(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """The time at which this rank's own gradients are ready.

        From then until the summed gradients are there, this rank has nothing to compute: that is
        the exposed communication. A GPU runs its kernels one after another behind the host's back,
        so one number is fetched that it has only after all gradients.
        """
        with tf.control_dependencies(gradients):
            last = tf.identity(tf.reshape(gradients[-1], [-1])[0])
        # TensorFlow drops what only an order depends on; an assignment it keeps.
        with tf.device("CPU:0"), tf.control_dependencies([self._reached.assign(last)]):
            return self.now()
