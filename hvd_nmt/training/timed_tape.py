"""When a rank's own gradients of a step are ready, on a GPU, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_nmt.training import micro_batches
from hvd_nmt.training.micro_batches import Accumulated


class TimedTape(tf.GradientTape):
    """A tape that notes when this rank's own gradients are ready.

    From then until the summed gradients are there, this rank has nothing to compute: that is the
    exposed communication. A GPU runs its kernels one after another behind the host's back, so one
    number is fetched that it has only after all gradients.

    Args:
        reached: a variable of the host, which gets that number.
        clock: gives unix time in seconds, a float64 scalar.
        earlier: slices of the same step, whose gradients are added: each becomes ready by itself,
            so what is sent hides behind the last slice's backward pass. None: there are none.
        made: the gradients, where something else has made them; None: the tape makes them.
    """

    ready_s: tf.Tensor
    """float64 scalar, unix time in seconds"""

    def __init__(
        self,
        reached: tf.Variable,
        clock: Callable[[], tf.Tensor],
        earlier: Accumulated | None = None,
        made: Sequence[tf.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._reached, self._clock = reached, clock
        self._earlier, self._made = earlier, made

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """As `tf.GradientTape.gradient`, with dense gradients."""
        gradients = self._made
        if gradients is None:
            gradients = micro_batches.dense(super().gradient(target, sources, *args, **kwargs))
        if self._earlier is not None:
            gradients = self._earlier.with_gradients(gradients)
        with tf.control_dependencies(gradients):
            last = tf.identity(tf.reshape(gradients[-1], [-1])[0])
        # TensorFlow drops what only an order depends on; an assignment it keeps.
        with tf.device("CPU:0"), tf.control_dependencies([self._reached.assign(last)]):
            self.ready_s = self._clock()
        return gradients


def host_clock() -> tf.Tensor:
    """As tf.timestamp, which TensorFlow refuses where kernels are to be deterministic."""
    return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
