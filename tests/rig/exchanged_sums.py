"""Worker of test_exchanges_between_hosts.py: every rank sums in each way; one line of JSON each.

horovodrun -np 4 -H v100a:2,v100b:2 python exchanged_sums.py
"""

import dataclasses
import json
import zlib
from pathlib import Path

import hvd_nmt  # noqa: F401 - first: picks tf_keras

# isort: split
import numpy as np
import tensorflow as tf
import tf_keras as keras

import toy
from hvd_nmt.checkpoints.state import adam_state
from hvd_nmt.training import horovod
from hvd_nmt.training.exchange import islands as islands_module
from hvd_nmt.training.exchange import over_hosts
from hvd_nmt.training.exchange.all_reduce import Float16
from hvd_nmt.training.exchange.islands import Islands

SHAPES = [(1000, 512), (7,), (300, 33), (), (500_000,)]
ROUNDS = 3


def main():
    rank = horovod.init(with_groups=True)
    groups = over_hosts.form_host_groups(horovod.gather(rank.host), rank.index)
    print("RESULT " + json.dumps({
        "rank": rank.index,
        "ways": {name: way(exchange, groups, rank) for name, exchange in toy.EXCHANGES.items()},
        "not finite": not_finite(groups, rank),
        "islands": islands(groups, rank),
    }), flush=True)  # fmt: skip
    horovod.shutdown()


def gradients(rank, scale=1.0):
    return [
        (np.random.default_rng([rank, number]).normal(size=shape) * scale).astype(np.float32)
        for number, shape in enumerate(SHAPES)
    ]


def summed(exchange, groups, ranks):
    if exchange.kind == "float16":
        return tf.function(Float16(groups).sum, autograph=False)
    everybody = horovod.group(range(ranks))
    return tf.function(lambda x: horovod.sums_in(everybody, x, "gradients"), autograph=False)


def way(exchange, groups, rank):
    """Relative errors by scale, bytes that the host sent for a sum, whether all ranks have it."""
    add_up, errors = summed(exchange, groups, rank.size), []
    for scale in (1.0, 1e6, 1e-9):
        of_ranks = [gradients(index, scale) for index in range(rank.size)]
        wanted = [sum(each) for each in zip(*of_ranks, strict=True)]
        found = add_up([tf.constant(g) for g in gradients(rank.index, scale)])
        errors.append(max(
            float(np.abs(a.numpy() - b).max() / np.abs(b).max())
            for a, b in zip(found, wanted, strict=True)
        ))  # fmt: skip
    checksum = [zlib.crc32(g.numpy().tobytes()) for g in found]
    tensors = [tf.constant(g) for g in gradients(rank.index)]
    sent = sent_bytes(lambda: add_up(tensors))
    return {
        "errors": errors,
        "sent": sent,
        "equal": horovod.gather(checksum) == [checksum] * rank.size,
    }


def not_finite(groups, rank):
    """Whether NaN of one rank, and Inf of another, reach all of them in float16."""
    found = []
    for value in (np.nan, np.inf):
        x = np.ones(5000, np.float32)
        if rank.index == rank.size - 1:
            x[4321] = value
        (y,) = summed(toy.EXCHANGES["float16"], groups, rank.size)([tf.constant(x)])
        found.append(not np.isfinite(y.numpy()[4321]) and bool(np.isfinite(y.numpy()[:4000]).all()))
    return found


def islands(groups, rank):
    """Hosts walk apart and are joined: where they are then, and the bytes that it takes."""
    weights = [tf.Variable(tf.zeros([1000, 512])), tf.Variable(tf.zeros([70]))]
    scaled = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam())
    scale = tf.train.TrackableView.children(scaled)["loss_scale"]
    numbers = tf.train.TrackableView.children(scale)
    numbers["current_loss_scale"].assign(2.0 ** (15 - groups.index))
    numbers["good_steps"].assign(3 + groups.index)
    adam = adam_state({"a": weights[0], "b": weights[1]})
    adam = dataclasses.replace(adam, loss_scale=scale)
    joined = Islands(groups, 4, "adam")
    joined.begin(weights, adam)
    learned = [300.0 if host == 0 else 100.0 for host in range(len(groups.names))]

    def steps(first, count):
        for step in range(first, first + count):
            for weight in weights:
                weight.assign_add(tf.fill(weight.shape, float(groups.index + 1)))
            joined.end_step(step + 1, learned)

    islands_module.MOMENTUM, islands_module.outer_rate = 0.0, lambda *of_two: 1.0
    steps(0, 4)  # traces all graphs
    sent = sent_bytes(lambda: steps(4, 4 * ROUNDS), ROUNDS)
    common = joined.common(weights)
    common = [float(common[0][0, 0]), float(common[0][-1, -1])]
    adam.slots["m"]["a"].assign(tf.fill(adam.slots["m"]["a"].shape, float(groups.index)))
    adam.iterations.assign(7 + groups.index)
    joined.join(4 + 4 * ROUNDS)
    checksum = [float(tf.reduce_sum(weight)) for weight in (*weights, adam.slots["m"]["a"])]
    return {
        "sent": sent, "common": common, "weights": float(weights[0][3, 3]),
        "moment": float(adam.slots["m"]["a"][0, 0]), "iterations": int(adam.iterations),
        "loss scale": [
            float(numbers["current_loss_scale"]), int(numbers["good_steps"])
        ],
        "equal": horovod.gather(checksum) == [checksum] * rank.size,
    }  # fmt: skip


def sent_bytes(work, times=1):
    """Bytes that this host's card sends per time, while all ranks do it."""
    counter = Path("/sys/class/net/eth0/statistics/tx_bytes")
    horovod.gather(0)
    before = int(counter.read_text())
    for _ in range(1 if times > 1 else ROUNDS):
        work()
    horovod.gather(0)
    return (int(counter.read_text()) - before) / ROUNDS


main()
