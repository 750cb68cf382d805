"""A rank's share of a step in slices, one after another: less memory, the same gradients.

The slices are micro-batches, as in GPipe (Huang et al. 2019), of one rank. All but the last run in
a loop that adds up their gradients. The last runs like a whole share, and the sums of gradients
over ranks begin during its backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from hvd_nmt.model.dropout import Dropout
from hvd_nmt.model.loss import Loss

Batch = dict[str, tf.Tensor]
"""see `step.TrainingModel`"""
Slice = tuple[Batch, Dropout]
"""some rows of a batch, with the tokens of the whole step, and their masks"""


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


def dense(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> list[tf.Tensor]:
    """Gradients without the sparse form that a look-up in the tied matrix gives."""
    return [tf.convert_to_tensor(gradient) for gradient in gradients]
