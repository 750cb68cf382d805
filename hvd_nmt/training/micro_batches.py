"""A rank's share of a step in slices, one after another: less memory, the same gradients.

The slices are micro-batches, as in GPipe (Huang et al. 2019), of one rank. All but the last run in
a loop that adds up their gradients. The last runs like a whole share, and the sums of gradients
over ranks begin during its backward pass.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

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
Slice = tuple[Batch, Dropout]
"""some rows of a batch, with the tokens of the whole step, and their masks"""
OwnGradients = Callable[[Batch, int], list[tf.Tensor]]
"""gives a rank's own gradients of a batch, computed in so many slices"""


class Accumulated(NamedTuple):
    """Sums over the slices before the last."""

    loss: Loss
    """of the tokens of these slices"""
    gradients: list[tf.Tensor]
    """this rank's own, dense, in the order of the weights"""

    def with_loss(self, last: Loss) -> Loss:
        """The loss of all slices."""
        return Loss(self.loss.smoothed + last.smoothed, self.loss.nll + last.nll)

    def with_gradients(self, last: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The gradients of all slices."""
        return [sum_ + own for sum_, own in zip(self.gradients, last, strict=True)]


def all_but_last(
    batch: Batch,
    seed_2: tf.Tensor,
    slices: int,
    weights: Sequence[tf.Variable],
    own_gradients: Callable[[Batch, Dropout], tuple[Loss, list[tf.Tensor]]],
) -> tuple[Slice, Accumulated | None]:
    """Compute all slices of a batch but the last.

    Whatever their number, the graph holds the computation twice: in the loop, and for the last. A
    batch of fewer rows than `slices` has as many as it has rows. `own_gradients` gives loss and
    dense gradients of a slice, `seed_2` is of its dropout.

    Returns the last slice, which is computed when the others are done, and what those have added up
    to. With one slice that is the batch itself, and None.
    """
    if slices == 1:
        return (batch, Dropout(seed_2)), None
    rows = tf.shape(batch["source"])[0]
    count = tf.minimum(slices, rows)

    def slice_of(ids: Batch, number: tf.Tensor) -> Slice:
        first, end = rows * number // count, rows * (number + 1) // count
        with tf.device("CPU:0"):
            place = tf.cast(first, tf.int64), tf.cast(end - first, tf.int64)
        return {**batch, **{k: v[first:end] for k, v in ids.items()}}, Dropout(seed_2, place)

    def body(
        number: tf.Tensor, smoothed: tf.Tensor, nll: tf.Tensor, *sums: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        loss, gradients = own_gradients(*slice_of(ids, number))
        added = Accumulated(Loss(smoothed, nll), list(sums))
        return number + 1, *added.with_loss(loss), *added.with_gradients(gradients)

    ids = {name: batch[name] for name in ("source", "target")}
    zero = tf.zeros([])
    _, smoothed, nll, *sums = tf.while_loop(
        lambda number, *_: number < count - 1,
        body,
        (tf.constant(0), zero, zero, *(tf.zeros(w.shape, w.dtype) for w in weights)),
        parallel_iterations=1,
    )
    # The last slice would begin beside the loop and need its memory at the same time.
    with tf.control_dependencies([smoothed, *sums]):
        ids = {name: tf.identity(tensor) for name, tensor in ids.items()}
    return slice_of(ids, count - 1), Accumulated(Loss(smoothed, nll), sums)


def choose(training: TrainingConfig, plan: BatchPlan, ranks: int, gradients: OwnGradients) -> int:
    """In how many slices all ranks compute: what is configured, or what the fullest GPU needs.

    A collective. On GPUs the largest batch is computed once; while a rank lacks the memory for it,
    all take twice as many slices. On processors all of it is computed at once.
    """
    if training.micro_batches != AUTO:
        return int(training.micro_batches)
    if not any(horovod.gather(device.is_gpu())):
        return 1
    shapes = [plan.padded_shapes(plan.epoch(epoch), ranks) for epoch in plan.first_epochs]
    rows, source, target = (np.concatenate(values) for values in zip(*shapes, strict=True))
    largest = int(np.argmax(rows * (source + target)))
    batch = PaddedBatch(int(rows[largest]), int(source[largest]), int(target[largest]))
    return slices_that_fit(gradients, batch.rounded if training.jit_compile else batch)


def slices_that_fit(gradients: OwnGradients, batch: PaddedBatch) -> int:
    """In how many slices a batch fits into the memory of every GPU, if in any. A collective."""
    slices = 1
    while slices < batch.rows:
        if all(horovod.gather(not device.is_gpu() or fits(gradients, batch, slices))):
            break
        slices *= 2
    return slices


def fits(gradients: OwnGradients, batch: PaddedBatch, slices: int) -> bool:
    """Whether a forward and backward pass in slices fits into this rank's memory, by doing it.

    No collective and no update: another rank may fail.
    """
    ids = filled(batch)

    @tf.function(autograph=False)
    def trial() -> list[tf.Tensor]:
        own = gradients(ids, slices)
        return [*own, *map(tf.negative, own)]  # as many as Horovod returns

    try:
        trial()
    except (tf.errors.OpError, MemoryError) as error:
        if not devices.is_of_memory(error):
            raise
        return False
    finally:
        devices.forget_peak()  # that of a run is of its steps
    return True


def filled(batch: PaddedBatch) -> Batch:
    """A batch of a shape for `step.TrainingModel`, with no padding."""
    rows, source, target = batch
    return {
        "source": tf.fill([rows, source], EOS),
        "target": tf.fill([rows, target], EOS),
        "tokens": tf.constant([rows * source, rows * target, rows * target], tf.float32),
    }
