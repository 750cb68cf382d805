"""A rank's share of a step in slices, one after another: less memory, the same gradients.

All but the last run in a loop that adds up their gradients. The last runs like a whole share, and
the sums of gradients over ranks begin during its backward pass.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from hvd_nmt.config import EOS, TrainingConfig
from hvd_nmt.config.schema import AUTO
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.model import device
from hvd_nmt.model.dropout import Dropout
from hvd_nmt.model.loss import Loss
from hvd_nmt.training import devices, horovod

Batch = dict[str, tf.Tensor]
"""see `step.TrainingModel`"""
RankGradients = tuple[Loss, list[tf.Tensor]]
"""a rank's own loss and gradients, dense, in the order of the weights"""


def in_slices(
    batch: Batch,
    seed_2: tf.Tensor,
    slices: int,
    weights: Sequence[tf.Variable],
    of_rows: Callable[[Batch, Dropout], RankGradients],
) -> RankGradients:
    """Compute all slices of a batch, at most one for each of its rows, and add them up.

    `of_rows` computes some rows of it, with the tokens of the whole step; `seed_2` is of their
    dropout.
    """
    if slices == 1:
        return of_rows(batch, Dropout(seed_2))
    rows = tf.shape(batch["source"])[0]
    count = tf.minimum(slices, rows)

    def add(ids: Batch, number: tf.Tensor, loss: Loss, sums: Sequence[tf.Tensor]) -> RankGradients:
        first, end = rows * number // count, rows * (number + 1) // count
        with tf.device("CPU:0"):
            place = tf.cast(first, tf.int64), tf.cast(end - first, tf.int64)
        slice_ = {**batch, **{name: tensor[first:end] for name, tensor in ids.items()}}
        of_slice, gradients = of_rows(slice_, Dropout(seed_2, place))
        added = [sum_ + gradient for sum_, gradient in zip(sums, gradients, strict=True)]
        return Loss(loss.smoothed + of_slice.smoothed, loss.nll + of_slice.nll), added

    ids = {name: batch[name] for name in ("source", "target")}
    zero = tf.zeros([])
    _, loss, sums = tf.while_loop(
        lambda number, *_: number < count - 1,
        lambda number, loss, sums: (number + 1, *add(ids, number, loss, sums)),
        (tf.constant(0), Loss(zero, zero), [tf.zeros(w.shape, w.dtype) for w in weights]),
        parallel_iterations=1,
    )
    # The last slice would begin during the loop and need its memory at the same time.
    with tf.control_dependencies([loss.smoothed, *sums]):
        last = {name: tf.identity(tensor) for name, tensor in ids.items()}
    return add(last, count - 1, loss, sums)


def choose(
    training: TrainingConfig,
    plan: BatchPlan,
    ranks: int,
    gradients_of: Callable[[Batch, int], RankGradients],
) -> int:
    """In how many slices all ranks compute: what is configured, or what the fullest GPU needs.

    A collective. On GPUs the largest batch is computed once; while a rank lacks the memory for it,
    all take twice as many slices. On processors all of it is computed at once.
    """
    if training.micro_batches != AUTO:
        return int(training.micro_batches)
    if not any(horovod.gather(device.is_gpu())):
        return 1
    epochs = plan.mixture.first_epochs if plan.mixture else [0]
    shapes = [plan.padded_shapes(plan.epoch(epoch), ranks) for epoch in epochs]
    rows, source, target = (np.concatenate(values) for values in zip(*shapes, strict=True))
    largest = int(np.argmax(rows * (source + target)))
    batch = PaddedBatch(int(rows[largest]), int(source[largest]), int(target[largest]))
    batch = batch.rounded if training.jit_compile else batch
    slices = 1
    while slices < batch.rows:
        if all(horovod.gather(not device.is_gpu() or fits(gradients_of, batch, slices))):
            break
        slices *= 2
    return slices


def fits(
    gradients_of: Callable[[Batch, int], RankGradients], batch: PaddedBatch, slices: int
) -> bool:
    """Whether a forward and backward pass in slices fits into this rank's memory, by doing it.

    No collective and no update: another rank may fail.
    """
    rows, source, target = batch
    ids = {
        "source": tf.fill([rows, source], EOS),
        "target": tf.fill([rows, target], EOS),
        "tokens": tf.constant([rows * source, rows * target, rows * target], tf.float32),
    }

    @tf.function(autograph=False)
    def trial() -> list[tf.Tensor]:
        _, gradients = gradients_of(ids, slices)
        return [*gradients, *map(tf.negative, gradients)]  # as many as Horovod returns

    try:
        trial()
    except (tf.errors.OpError, MemoryError) as error:
        if not devices.is_of_memory(error):
            raise
        return False
    return True
