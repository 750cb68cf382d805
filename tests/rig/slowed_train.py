"""`hvd_nmt.train` whose input or second rank can be made slow while it runs, by a file named slow.

The file holds the word input or rank. Sleeping stands for what a slow disk or a busy GPU does: the
batch, or the gradients of rank 1, come late, for real.
"""

import sys
import time
from pathlib import Path

import tensorflow as tf

from hvd_nmt import train
from hvd_nmt.training.step import TrainingModel

SLOW_S = 0.5
SLOW = Path("slow")


def slow(what):
    """Whether the file says so at this moment."""
    return SLOW.exists() and SLOW.read_text() == what


class Late:
    """An iterator whose batches come late while the input is slow."""

    def __init__(self, iterator):
        self._iterator = iterator

    def __next__(self):
        if slow("input"):
            time.sleep(SLOW_S)
        return next(self._iterator)


def slow_model():
    """Patch the step: late batches on all ranks, a late forward pass on rank 1."""
    make, states = TrainingModel.make_train_function, TrainingModel._states

    def make_train_function(model, force=False):
        step = make(model, force)
        return lambda iterator: step(Late(iterator))

    def late_states(model, batch, drop):
        def wait():
            if model.rank.index == 1 and slow("rank"):
                time.sleep(SLOW_S)

        with tf.control_dependencies([tf.py_function(wait, [], [])]):
            batch = {name: tf.identity(value) for name, value in batch.items()}
        return states(model, batch, drop)

    TrainingModel.make_train_function, TrainingModel._states = make_train_function, late_states


if __name__ == "__main__":
    slow_model()
    sys.exit(train.main())
