"""In how many slices each rank computes its share of a step: as many as the GPUs ask for."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from hvd_nmt.config import TrainingConfig
from hvd_nmt.config.limits import AUTO
from hvd_nmt.config.schema import EOS
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.model import device
from hvd_nmt.training import devices, horovod
from hvd_nmt.training.step import TrainingModel


def choose(training: TrainingConfig, plan: BatchPlan, model: TrainingModel) -> int:
    """The same number on all ranks: what is configured, or what the fullest GPU needs.

    A collective. On GPUs the largest batch is computed once; while a rank lacks the memory for it,
    all take twice as many slices. On processors all of it is computed at once.
    """
    if training.micro_batches != AUTO:
        return int(training.micro_batches)
    if not any(horovod.gather(device.is_gpu())):
        return 1
    batch = largest_batch(plan, model.rank.size)
    batch = batch.rounded if training.jit_compile else batch
    return slices_that_fit(model, batch)


def slices_that_fit(model: TrainingModel, batch: PaddedBatch) -> int:
    """In how many slices a batch fits into the memory of every GPU, if in any. A collective."""
    slices = 1
    while slices < batch.rows:
        if all(horovod.gather(not device.is_gpu() or computes(model, batch, slices))):
            break
        slices *= 2
    return slices


def largest_batch(plan: BatchPlan, ranks: int) -> PaddedBatch:
    """The batch of the first epochs of all stages with most padded tokens."""
    shapes = [plan.padded_shapes(plan.epoch(epoch), ranks) for epoch in plan.first_epochs]
    rows, source, target = (np.concatenate(values) for values in zip(*shapes, strict=True))
    largest = int(np.argmax(rows * (source + target)))
    return PaddedBatch(int(rows[largest]), int(source[largest]), int(target[largest]))


def computes(model: TrainingModel, batch: PaddedBatch, slices: int) -> bool:
    """Whether a forward and backward pass in slices fits into this rank's memory, by doing it.

    No collective and no update: another rank may fail.
    """
    ids = filled(batch)

    @tf.function(autograph=False)
    def trial() -> list[tf.Tensor]:
        gradients = model.own_gradients(ids, slices)
        return [*gradients, *map(tf.negative, gradients)]  # as many as Horovod returns

    try:
        trial()
    except (tf.errors.OpError, MemoryError) as error:
        if not devices.is_of_memory(error):
            raise
        return False
    finally:
        devices.forget_peak()  # that of a run is of its steps
    return True


def filled(batch: PaddedBatch) -> dict[str, tf.Tensor]:
    """A batch of a shape for `step.TrainingModel`, with no padding."""
    rows, source, target = batch
    return {
        "source": tf.fill([rows, source], EOS),
        "target": tf.fill([rows, target], EOS),
        "tokens": tf.constant([rows * source, rows * target, rows * target], tf.float32),
    }
