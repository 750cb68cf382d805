"""Worker of test_cluster.py: every way to train without the right sum, and what the guards say.

    horovodrun -np 3 -H localhost:3 python silent_averaging.py OUT

Each function named in CHECKS runs on all ranks, in order; its answer becomes one JSON line of
OUT/RANK.jsonl. To the guards, rank r runs on a host of its own, `host<r>`.
"""

import dataclasses
import json
import os
import socket
import sys
import time
from pathlib import Path
from unittest import mock

import hvd_nmt  # noqa: F401 - first: picks tf_keras

# isort: split
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints import state
from hvd_nmt.common.errors import BY_EXIT_CODE, UserError
from hvd_nmt.config import ModelConfig, TrainingConfig
from hvd_nmt.model.loss import cross_entropy
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import callbacks, cluster, horovod, optimizer
from hvd_nmt.training.exchange import over_hosts
from hvd_nmt.training.exchange.all_reduce import AllReduce
from hvd_nmt.training.exchange.base import GradientExchange
from hvd_nmt.training.step import TrainingModel
from hvd_nmt.training.step_result import StepNumbers

FIRST_ONLY = hvd.ProcessSet([0])
TINY = ModelConfig(1, 1, 16, 2, 32, max_length=16, dropout=0.0, attention_dropout=0.0,
                   feed_forward_dropout=0.0)  # fmt: skip
TRAINING = TrainingConfig(tokens_per_step=64, warmup_steps=10, precision="float32")
CHECKS = []


def main(out):
    os.environ["HOROVOD_DISABLE_GROUP_FUSION"] = "1"  # as `horovod.init`
    hvd.init(process_sets=[FIRST_ONLY])
    socket.gethostname = lambda: f"host{hvd.rank()}"
    rank = horovod.init(3)
    tf.config.threading.set_intra_op_parallelism_threads(3 - 2 * min(rank.index, 1))
    with open(out / f"{rank.index}.jsonl", "w", encoding="utf-8") as file:
        for check in CHECKS:
            started_s = time.monotonic()
            answer = check(rank)
            seconds = round(time.monotonic() - started_s, 2)
            file.write(json.dumps({"check": check.__name__, "seconds": seconds, **answer}) + "\n")
            file.flush()
    horovod.shutdown()


def check(function):
    CHECKS.append(function)
    return function


def refused(guard, *arguments):
    """What a guard raises, as {"error": class name or None, "text": sentence}."""
    try:
        guard(*arguments)
    except UserError as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"error": None, "text": ""}


def variables():
    """Two weights under one name each; the second holds more values than the first."""
    return [tf.Variable(tf.ones([3, 2]), name="first"), tf.Variable(tf.ones([7]), name="second")]


class SumsOf(GradientExchange):
    """What another wrapper of Horovod sums with; 0 where it gives nothing."""

    def __init__(self, distributed, weights):
        self._sum, self._weights = horovod.sums_of(distributed, weights), weights

    def sum(self, gradients):
        pairs = zip(self._sum(gradients), self._weights, strict=True)
        return [tf.zeros_like(weight) if total is None else total for total, weight in pairs]


class Alone(GradientExchange):
    def sum(self, gradients):
        return list(gradients)


def sums_check(name, make):
    """A check: what `prove_sums` says to the exchange, and the loss scale, made for weights."""

    def answer(rank):
        weights = variables()
        exchange, *scale = make(weights, rank)
        return refused(cluster.prove_sums, exchange, weights, rank, *scale)

    answer.__name__ = name
    return check(answer)


def with_loss_scale(weights, rank):
    exchange = AllReduce()
    return exchange, optimizer.loss_scale(optimizer.build(TRAINING, "float16", weights, exchange))


def with_unequal_loss_scales(weights, rank):
    exchange, scale = with_loss_scale(weights, rank)
    return exchange, scale * 2.0**rank.index


def wrapped(**options):
    return lambda weights, rank: (
        SumsOf(hvd_keras.DistributedOptimizer(optimizer.Adam(), **options), weights),
    )


for name, make in {
    # This must pass.
    "right_optimizer_with_loss_scale": with_loss_scale,
    # Without any sum.
    "case_03_plain_optimizer": lambda weights, rank: (Alone(),),
    "case_06_process_set_without_some_ranks": wrapped(op=hvd.Sum, process_set=FIRST_ONLY),
    # With a wrong one.
    "case_09_unequal_loss_scales": with_unequal_loss_scales,
    "case_12_horovod_tensorflow_drops_op": lambda weights, rank: (
        SumsOf(hvd.DistributedOptimizer(optimizer.Adam(), op=hvd.Sum), weights),
    ),
    "case_12_average": wrapped(),
}.items():  # fmt: skip
    sums_check(name, make)


@check
def right_optimizer_on_the_transformer(rank):
    """The weights of a real model, with its tied matrix, after the guard: unchanged."""
    model, transformer = training_model(rank)
    weights = transformer.trainable_variables
    before = cluster._checksum(weights)
    answer = refused(cluster.prove_sums, model.exchange, weights, rank)
    return answer | {"changed": cluster._checksum(weights) != before,
                     "iterations": int(model.optimizer.iterations)}  # fmt: skip


# Cases of Horovod's silent averaging that are more than an optimizer.


@check
def case_01_apply_gradients_of_local_gradients(rank):
    """The exchange is right, but the step goes around its `sum`."""
    model, transformer = training_model(rank, LocalGradients)
    model.optimizer.learning_rate.assign(0.1)
    before = refused(cluster.prove_sums, model.exchange, transformer.trainable_variables, rank)
    guard = callbacks.ReplicaCheck(rank)
    answer = refused(lambda: fit(model, rank, [guard]))
    return answer | {"self_test": before["error"], "steps": int(model.step)}


class LocalGradients(TrainingModel):
    def train_step(self, batch, began_2, compiled=False):
        weights = self.transformer.trainable_variables
        with tf.GradientTape() as tape:
            states = self._states(batch, lambda x, rate: x)
            loss = tf.reduce_mean(states**2 * tf.cast(self.rank.index + 1, tf.float32))
            loss += tf.reduce_sum(self.transformer.embedding) * (self.rank.index - 1.0)
        gradients = tape.gradient(loss, weights)
        pairs = [(g, w) for g, w in zip(gradients, weights, strict=True) if g is not None]
        self.optimizer.apply_gradients(pairs)
        self.step.assign_add(1)
        numbers = len(dataclasses.fields(StepNumbers)) - 6  # those with places
        return tf.zeros([numbers + 4 * self.rank.size])


@check
def case_08_groups_of_variables_of_one_name(rank):
    weights = [tf.Variable(tf.ones([2]), name="same"), tf.Variable(tf.ones([3]), name="same")]
    made = hvd_keras.DistributedOptimizer(optimizer.Adam(), op=hvd.Sum, groups=[weights])
    return refused(cluster.prove_sums, SumsOf(made, weights), weights, rank)


@check
def case_13_restored_on_the_first_rank_only(rank):
    weights = variables()
    if rank.is_first:
        weights[1].assign(tf.range(7.0))
    return refused(cluster.require_equal_weights, weights, 500, rank)


@check
def gradients_are_exact_per_token(rank):
    """Rank 0 has 28 of the step's 37 target tokens; compared with one process that has them all."""
    sources, targets = zip(*(unequal_share(rank) for rank in range(3)), strict=True)
    _, transformer = training_model(rank)
    weights = transformer.trainable_variables
    with tf.GradientTape() as tape:
        states = transformer.decode(
            np.concatenate(targets), transformer.encode(np.concatenate(sources))
        )
        labels = tf.reshape(np.concatenate(targets), [-1])
        flat = tf.reshape(states, [-1, TINY.width])
        loss = cross_entropy(flat, transformer.embedding, labels, 0.1).smoothed / 37
    wanted = [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]
    share = {"source": sources[rank.index], "target": targets[rank.index]}
    own = np.count_nonzero(share["target"])

    def error_of(exchange, tokens):
        made, found = TrainingModel(transformer, TRAINING, rank, exchange), []
        adam = exchange.wrapped(optimizer.Adam(), weights)
        adam.build(weights)
        made.compile(optimizer=adam)
        numbers = {"tokens": tf.constant([37, tokens], tf.float32)}
        numbers["sentences"] = tf.zeros([1])
        with mock.patch.object(optimizer, "update", lambda _, sums, *rest: found.extend(sums)):
            logs = made.train_step(share | numbers, tf.zeros([2], tf.float64))
        difference = tf.linalg.global_norm([a - b for a, b in zip(found, wanted, strict=True)])
        error = float(difference / tf.linalg.global_norm(wanted))
        return error, abs(float(logs[0]) / float(loss) - 1)

    def averaged():
        return SumsOf(hvd_keras.DistributedOptimizer(optimizer.Adam()), weights)

    return {
        "sum": error_of(AllReduce(), 37),
        "average_of_sums": error_of(averaged(), 37)[0],
        "average_of_means": error_of(averaged(), own)[0],
    }


def unequal_share(rank):
    """Two long sentences, two short ones, or one and a row of pad; as int32 [2, 14] twice."""
    rows = np.zeros([2, 14], np.int32)
    for row, length in enumerate([(14, 14), (2, 2), (5, 0)][rank]):
        rows[row, :length] = 4 + (np.arange(length) * 7 + 3 * rank + row) % 19
        rows[row, length - 1 : length] = 1
    return rows, np.where(rows > 3, 4 + (rows * 5) % 20, rows)


@check
def sums_do_not_depend_on_arrival(rank):
    """The same gradients, in four groups, summed again and again, each time in another order."""
    over_hosts.GROUP_BYTES, group_bytes = 4096, over_hosts.GROUP_BYTES
    sizes = (3, 1000, 70, 5000, 11, 400, 1)
    weights = [tf.Variable(tf.zeros([size])) for size in sizes]
    values = [np.random.default_rng([rank.index, n]).normal(size=n).astype("f") for n in sizes]
    exchange = AllReduce()
    exchange.wrapped(optimizer.Adam(), weights)

    def late(value, wait_s):
        time.sleep(wait_s)
        return value

    @tf.function(autograph=False)
    def summed(waits_s):
        gradients = [
            tf.ensure_shape(tf.numpy_function(late, [value, wait_s], tf.float32), value.shape)
            for value, wait_s in zip(values, tf.unstack(waits_s), strict=True)
        ]
        return exchange.sum(gradients)

    order = np.random.default_rng(1)
    found = {
        b"".join(g.numpy().tobytes() for g in summed(0.01 * order.permutation(len(sizes))))
        for _ in range(12)
    }
    over_hosts.GROUP_BYTES = group_bytes
    return {"different_sums": len(found)}


@check
def clipping_with_unequal_thread_counts(rank):
    """Of more values than one thread adds up alone; compared after each of three steps."""
    clipped = dataclasses.replace(TRAINING, clip_norm=0.01)
    model, _ = training_model(rank, training=clipped, vocabulary_size=60_000)
    model.optimizer.learning_rate.assign(0.1)
    replica_check = callbacks.ReplicaCheck(rank)
    replica_check.EVERY_STEPS = 1
    return refused(fit, model, rank, [replica_check])


# Weights.


@check
def any_single_bit_of_one_rank_is_named(rank):
    """Flip the lowest and the highest bit of one value on rank 1, and a bit on rank 0."""
    errors = []
    for failing, bit in ((1, 0), (1, 31), (0, 13)):
        weights = variables()
        if rank.index == failing:
            bits = weights[1].numpy().view(np.uint32)
            bits[5] ^= np.uint32(1 << bit)
            weights[1].assign(bits.view(np.float32))
        errors.append(refused(cluster.require_equal_weights, weights, 40, rank))
    return {"errors": errors}


@check
def broadcast_reaches_everything_that_is_saved(rank):
    """Weights, moments, step, iterations, loss scale: all of rank 0, whatever the others had."""
    _, transformer = training_model(rank)
    weights = state.weights_by_path(transformer)
    scaled = optimizer.build(TRAINING, "float16", list(weights.values()), AllReduce())
    step = tf.Variable(0, dtype=tf.int64, name="step")
    adam = optimizer.state(scaled, list(weights))
    saved_variables = [
        variable for _, variable in state.keyed_variables(state.run_state(transformer, step, adam))
    ]
    scale = scaled._loss_scale
    named = [scale._current_loss_scale, scale._counter, scaled.iterations, step]
    for index, variable in enumerate(saved_variables):
        value = tf.cast(index % 5 + 10 * rank.index + 1, variable.dtype)
        variable.assign(tf.fill(variable.shape, value))
    wanted = [
        float(tf.reduce_max(tf.cast(v, tf.float64))) - 10 * rank.index for v in saved_variables
    ]
    horovod.broadcast(saved_variables)
    found = [float(tf.reduce_max(tf.cast(v, tf.float64))) for v in saved_variables]
    return {
        "equal": found == wanted,
        "slots": len(saved_variables) >= 3 * len(weights) + 4,
        "named": all(any(v is w for w in saved_variables) for v in named),
        **refused(cluster.require_equal_weights, transformer.trainable_variables, 0, rank),
    }


# Talking to each other.


@check
def facts_that_differ(rank):
    facts = {
        "size": 3,
        "data hash": "good",
        "precision": "float16" if rank.index == 1 else "float32",
    }
    return refused(cluster.require_equal, facts, rank)


@check
def gather_of_unequal_lengths(rank):
    values = [None, "ü" * 1000, {"deep": [1.5, []]}]
    return {"right": horovod.gather(values[rank.index]) == values}


@check
def errors_are_shared(rank):
    """Each kind of error, raised on one rank, and then by two ranks at once."""
    errors = []
    for failing, kind in zip((0, 1, 2, 0, 1, 2), BY_EXIT_CODE.values(), strict=True):
        errors.append(refused(fail_on, {failing: kind("The disk is full.")}, rank))
    errors.append(refused(fail_on, {1: OSError(28, "No space left"), 2: UserError("second")}, rank))
    errors.append(refused(fail_on, {}, rank))
    return {"errors": errors}


def fail_on(failures, rank):
    with horovod.raise_on_all_ranks():
        if rank.index in failures:
            raise failures[rank.index]


def training_model(rank, kind=TrainingModel, training=TRAINING, vocabulary_size=24):
    transformer = Transformer(TINY, vocabulary_size, "float32", 1)
    model = kind(transformer, training, rank, AllReduce())
    weights = transformer.trainable_variables
    model.compile(optimizer=optimizer.build(training, "float32", weights, model.exchange))
    return model, transformer


def fit(model, rank, guards):
    ids = np.full([4, 6], 5 + rank.index, np.int32)
    ids[:, -1] = 1
    batch = {"source": ids, "target": ids, "tokens": np.array([72, 72], np.float32)}
    batch["sentences"] = np.zeros(1, np.float32)
    data = tf.data.Dataset.from_tensors(batch).repeat()
    model.fit(data, steps_per_epoch=3, verbose=0, callbacks=guards)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
