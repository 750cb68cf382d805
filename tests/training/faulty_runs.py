"""Worker of test_horovod.py: real runs of hvd_nmt.train in which one rank is made to fail.

    horovodrun -np 2 -H localhost:2 python faulty_runs.py OUT DATA FAULT...

Runs `hvd_nmt.train.main` once per fault, in one process to save TensorFlow's start. What `main`
returns and prints becomes one JSON line of OUT/RANK.jsonl; the run directories are OUT/FAULT.
"""

import contextlib
import io
import json
import shutil
import sys
import time
from pathlib import Path

import hvd_nmt

# isort: split
import tensorflow as tf

import toy
from hvd_nmt import train
from hvd_nmt.common import version
from hvd_nmt.training import cluster, horovod, not_finite, optimizer
from hvd_nmt.training.step import TrainingModel

NAN_STEP = 6
SLOW_S = 0.4
FAULTS = {}
OPTIONS = (
    "--model.encoder-layers", "1", "--model.decoder-layers", "1", "--model.width", "16",
    "--model.heads", "2", "--model.feed-forward-width", "32", "--model.max-length", "32",
    "--training.tokens-per-step", "128", "--training.warmup-steps", "20",
    "--training.precision", "float32", "--training.log-every", "1", "--telemetry.interval-s", "0",
    "--data.corpus", "files", "--training.max-steps", "8", "--checkpoints.every-steps", "3",
    "--evaluation.sentences", "2",
)  # fmt: skip


def main(out, data, names):
    rank = horovod.init(2)
    # Each `main` would end Horovod for good; the next fault needs it.
    horovod.shutdown, shutdown = (lambda: None), horovod.shutdown
    with open(out / f"{rank.index}.jsonl", "w", encoding="utf-8") as file:
        for name in names:
            printed = io.StringIO(), io.StringIO()
            options = [*OPTIONS, "--data.directory", str(data), "--run-dir", str(out / name)]
            with FAULTS[name](rank, options), toy.printing_to(*printed):
                code = train.main(options)
            answer = {"fault": name, "code": code, "out": printed[0].getvalue()}
            answer |= {"err": printed[1].getvalue(), "checksums": CHECKSUMS[:]}
            answer["input_waits_s"] = INPUT_WAITS_S[:]
            CHECKSUMS.clear()
            file.write(json.dumps(answer) + "\n")
            file.flush()
    shutdown()
    return code


def fault(function):
    FAULTS[function.__name__] = contextlib.contextmanager(function)
    return function


@contextlib.contextmanager
def patched(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield before
    finally:
        setattr(owner, name, before)


CHECKSUMS = []
"""of this rank's weights, after each step"""
INPUT_WAITS_S = []
"""of rank 1 while its input is slow"""


@fault
def another_configuration(rank, options):
    if rank.index == 1:
        options += ["--training.learning-rate", "1.5"]
    yield


@fault
def another_code(rank, options):
    """Rank 1 runs a copy of the package with one more comment."""
    package = Path(hvd_nmt.__file__).parent
    copy = Path(options[-1]).parent / "copy" / "hvd_nmt"
    if rank.index == 1:
        shutil.copytree(package, copy)
        with (copy / "model" / "loss.py").open("a") as file:
            file.write("# one comment more\n")
    with patched(version, "_PACKAGE", copy if rank.index == 1 else package):
        yield


@fault
def optimizer_not_wrapped(rank, options):
    """Both ranks would train alone, without any error of Horovod or Keras."""

    def build(config, precision, variables, sums):
        plain = optimizer.Adam(learning_rate=0.0)
        plain.build(variables)
        return plain

    with patched(optimizer, "build", build):
        yield


@contextlib.contextmanager
def nan_at(*places):
    """The loss of a rank is NaN at a step, for each (rank, step)."""

    def states(model, batch, drop):
        found = states_before(model, batch, drop)
        for rank, step in places:
            hit = tf.logical_and(model.rank.index == rank, tf.equal(model.step, step - 1))
            found += tf.where(hit, float("nan"), 0.0)
        return found

    with patched(TrainingModel, "_states", states) as states_before:
        yield


@contextlib.contextmanager
def weights_checked():
    """CHECKSUMS gets that of this rank's weights after each step."""

    def after_step(guard, step, logs):
        CHECKSUMS.append(cluster._checksum(guard.model.transformer.trainable_variables))
        return after_step_before(guard, step, logs)

    with patched(not_finite.NotFiniteGuard, "after_step", after_step) as after_step_before:
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


@fault
def overflows_in_every_second_step(rank, options):
    """And from step 32 on in each: rank 1's gradient is too large for float16, its loss is not."""
    options += ["--training.precision", "float16", "--training.max-steps", "60"]
    options += ["--checkpoints.every-steps", "60"]

    def states(model, batch, drop):
        found = states_before(model, batch, drop)
        hit = tf.logical_or(tf.equal(model.step % 2, 1), model.step > 30)
        hit = tf.logical_and(model.rank.index == 1, hit)
        huge = tf.where(hit, tf.constant(float("inf"), found.dtype), 0)
        return (
            found + tf.custom_gradient(lambda x: (x, lambda gradient: gradient + huge))(found) * 0
        )

    with patched(TrainingModel, "_states", states) as states_before:
        yield


@fault
def slow_input_on_one_rank(rank, options):
    """Rank 1 gets each batch SLOW_S late."""

    def make_train_function(model, force=False):
        step = before(model, force)

        def late_step(iterator):
            logs = step(Late(iterator))
            INPUT_WAITS_S.append(logs["rank_input_wait_s"][rank.index])
            return logs

        return late_step if rank.index == 1 else step

    with patched(TrainingModel, "make_train_function", make_train_function) as before:
        yield


class Late:
    """An iterator whose batches come SLOW_S late."""

    def __init__(self, iterator):
        self._iterator = iterator

    def __next__(self):
        time.sleep(SLOW_S)
        return next(self._iterator)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
