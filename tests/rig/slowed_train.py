"""`hvd_nmt.train` whose input or second rank can be made slow while it runs, by a file named slow.

The file holds the word input or rank, and for how many seconds of each step. Sleeping stands for
what a slow disk or a busy GPU does: the batch, or the gradients of rank 1, come late, for real.
"""

import os
import sys
import time
from pathlib import Path

import tensorflow as tf

from hvd_nmt import train
from hvd_nmt.training.step import TrainingModel

SLOW = Path("slow")


def wait_if_slow(what):
    """For as long as the file says at this moment, if it names `what`."""
    words = SLOW.read_text().split() if SLOW.exists() else []
    if what in words:
        time.sleep(float(words[-1]))


class Late:
    """An iterator whose batches come late while the input is slow."""

    def __init__(self, iterator):
        self._iterator = iterator

    def __next__(self):
        wait_if_slow("input")
        return next(self._iterator)


def slow_model():
    """Patch the step: late batches on all ranks, a late forward pass on rank 1."""
    make, states = TrainingModel.make_train_function, TrainingModel._states

    def make_train_function(model, force=False):
        step = make(model, force)
        return lambda iterator: step(Late(iterator))

    def late_states(model, batch, drop):
        def wait():
            if model.rank.index == 1:
                wait_if_slow("rank")

        with tf.control_dependencies([tf.py_function(wait, [], [])]):
            batch = {name: tf.identity(value) for name, value in batch.items()}
        return states(model, batch, drop)

    TrainingModel.make_train_function, TrainingModel._states = make_train_function, late_states


if __name__ == "__main__":
    Path(f"rank{os.environ['HOROVOD_RANK']}").write_text(str(os.getpid()))
    slow_model()
    sys.exit(train.main())
