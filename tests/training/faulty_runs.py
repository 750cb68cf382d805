"""Worker of test_horovod.py: real runs of hvd_nmt.train in which one rank is made to fail.

    horovodrun -np 2 -H localhost:2 python faulty_runs.py OUT DATA FAULT...

Runs `hvd_nmt.train.main` once per fault, in one process to save TensorFlow's start. What `main`
returns and prints becomes one JSON line of OUT/RANK.jsonl; the run directories are OUT/FAULT.
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from unittest import mock

import hvd_nmt  # noqa: F401 - first: picks tf_keras

# isort: split
import tensorflow as tf

import toy
from hvd_nmt import train
from hvd_nmt.training import callbacks, cluster, horovod
from hvd_nmt.training.exchange.all_reduce import AllReduce
from hvd_nmt.training.step import TrainingModel

NAN_STEP = 6
FAULTS = {}
OPTIONS = (
    "--telemetry.interval-s", "0", "--checkpoints.every-steps", "3", "--evaluation.sentences", "2",
)  # fmt: skip


def main(out, data, names):
    rank = horovod.init(2)
    # Each `main` would end Horovod for good; the next fault needs it.
    horovod.shutdown, shutdown = (lambda: None), horovod.shutdown
    with open(out / f"{rank.index}.jsonl", "w", encoding="utf-8") as file:
        for name in names:
            printed = io.StringIO(), io.StringIO()
            options = [*toy.train_options(data, out / name, 8, *OPTIONS)]
            with FAULTS[name](rank, options), toy.printing_to(*printed):
                code = train.main(options)
            answer = {"fault": name, "code": code, "out": printed[0].getvalue()}
            answer |= {"err": printed[1].getvalue(), "checksums": CHECKSUMS[:]}
            CHECKSUMS.clear()
            file.write(json.dumps(answer) + "\n")
            file.flush()
    shutdown()
    return code


def fault(function):
    FAULTS[function.__name__] = contextlib.contextmanager(function)
    return function


CHECKSUMS = []
"""of this rank's weights, after each step"""


@fault
def another_configuration(rank, options):
    if rank.index == 1:
        options += ["--training.learning-rate", "1.5"]
    yield


@fault
def gradients_not_summed(rank, options):
    """Both ranks would train alone, without any error of Horovod or Keras."""
    with mock.patch.object(AllReduce, "sum", lambda exchange, gradients: list(gradients)):
        yield


@contextlib.contextmanager
def nan_at(*places):
    """The loss of a rank is NaN at a step, for each (rank, step)."""
    states_before = TrainingModel._states

    def states(model, batch, drop):
        found = states_before(model, batch, drop)
        for rank, step in places:
            hit = tf.logical_and(model.rank.index == rank, tf.equal(model.step, step - 1))
            found += tf.where(hit, float("nan"), 0.0)
        return found

    with mock.patch.object(TrainingModel, "_states", states):
        yield


@contextlib.contextmanager
def weights_checked():
    """CHECKSUMS gets that of this rank's weights after each step."""
    after_step_before = callbacks.NotFiniteGuard.after_step

    def after_step(guard, result):
        CHECKSUMS.append(cluster._checksum(guard.model.transformer.trainable_variables))
        return after_step_before(guard, result)

    with mock.patch.object(callbacks.NotFiniteGuard, "after_step", after_step):
        yield


@fault
def nan_on_one_rank(rank, options):
    """Rank 1's loss is NaN at step NAN_STEP."""
    with nan_at((1, NAN_STEP)), weights_checked():
        yield


@fault
def nan_three_times_in_a_row(rank, options):
    """Not on the same rank each time."""
    with nan_at((1, NAN_STEP - 1), (0, NAN_STEP), (1, NAN_STEP + 1)):
        yield


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
