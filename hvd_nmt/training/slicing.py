"""In how many slices each rank computes its share of a step: as many as the memory asks for."""

from __future__ import annotations

import functools

import tensorflow as tf

from hvd_nmt.config import Config
from hvd_nmt.config.exchange import copies_of_weights
from hvd_nmt.config.schema import AUTO, EOS
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.model import device
from hvd_nmt.training import devices, horovod, memory
from hvd_nmt.training.memory import Need, Slices
from hvd_nmt.training.step import TrainingModel

_SURE_SHARE = 0.5
"""of a GPU's memory: what is predicted to need no more is not tried, which takes seconds"""


def choose(config: Config, plan: BatchPlan, precision: str, model: TrainingModel) -> Slices | None:
    """The same number on all ranks: what is configured, or what the rank with least memory needs.

    A collective. On a GPU where the prediction is near the limit, the largest batch is computed
    once; if that fails on any rank, all take twice the number.

    Args:
        config: of the run.
        plan: of the training corpus.
        precision: float32, bfloat16 or float16.
        model: compiled, with all that it holds in memory.

    Returns:
        None where one is configured: nothing is to be found out.
    """
    if config.training.micro_batches == 1:
        return None
    batch = memory.worst_batch(config.model, plan, model.rank.size)
    on_gpu = device.is_gpu()
    hosts = len(set(horovod.gather(model.rank.host)))
    saves = config.checkpoints.background and model.rank.is_first_on_host
    need_of = functools.partial(need, config, precision, model, batch, hosts=hosts, saves=saves)
    slices = model.micro_batches
    if config.training.micro_batches == AUTO:
        available = devices.available_memory_bytes(model.rank)
        slices = 1
        if available is not None:
            usable = int(memory.USABLE_SHARE * available)
            slices = memory.slices_to_take(need_of, batch.rows, usable)
        slices = max(horovod.gather(slices))
        needed = need_of(slices).total_bytes
        unsure = on_gpu and (available is None or needed > _SURE_SHARE * available)
        if any(horovod.gather(unsure)) and not all(horovod.gather(computes(model, batch, slices))):
            slices = min(2 * slices, memory.powers_of_two(batch.rows)[-1])
    return Slices(slices, need_of(slices).total_bytes, need_of(1).total_bytes)


def need(
    config: Config, precision: str, model: TrainingModel, batch: PaddedBatch, slices: int, *,
    hosts: int, saves: bool,
) -> Need:  # fmt: skip
    """Memory of this rank at its peak, as predicted.

    Args:
        config: of the run.
        precision: float32, bfloat16 or float16.
        model: that is trained.
        batch: of the step that needs most.
        slices: in which the batch is computed.
        hosts: of the run.
        saves: whether this rank writes checkpoints in the background.
    """
    return memory.need(
        config.model, model.transformer.vocabulary_size, precision, batch, device.is_gpu(),
        freeze=config.training.freeze, averaged=config.training.ema_decay > 0,
        copies=copies_of_weights(config.training, hosts), micro_batches=slices, snapshot=saves,
        source_vocabulary_size=model.transformer.source_vocabulary_size,
    )  # fmt: skip


def computes(model: TrainingModel, batch: PaddedBatch, slices: int) -> bool:
    """Whether a forward and backward pass in slices fits into this rank's memory, by doing it.

    No collective and no update: another rank may fail.

    Args:
        model: compiled.
        batch: its shape.
        slices: how many.
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
