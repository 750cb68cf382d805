"""From a configuration to ranks that are ready for step 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from hvd_nmt.config import Config
from hvd_nmt.data.batches import BatchPlan, batches
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.training import cluster, devices, horovod, optimizer
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.plan import Plan, count_parameters
from hvd_nmt.training.step import TrainingModel


@dataclasses.dataclass(frozen=True)
class Cast:
    """Who takes part, with what: agreed on by all ranks."""

    me: Rank
    hosts: list[str]
    """host of each rank"""
    data: DataDirectory
    batch_plan: BatchPlan
    precision: str


def gather_cast(config: Config, me: Rank) -> Cast:
    """Prepare the data on each host and see that everything is equal on all of them.

    Raises:
        UserError: the data cannot be used, or hosts differ.
    """
    data = cluster.prepared_data(config.data, me)
    precision = devices.pick_precision(config.training.precision)
    everyone = cluster.require_equal(cluster.facts(config, data, precision), me)
    with horovod.together():
        plan = BatchPlan.of(data.train, config.training.tokens_per_step, config.training.seed)
    return Cast(me, [facts["host"] for facts in everyone], data, plan, precision)


def build(config: Config, cast: Cast) -> tuple[TrainingModel, tf.train.Checkpoint]:
    """The compiled model with fresh weights, and what a checkpoint of it holds."""
    transformer = Transformer(
        config.model, cast.data.manifest.vocabulary_size, cast.precision, config.training.seed
    )
    adam = optimizer.build(config.training, cast.precision, transformer.trainable_variables)
    model = TrainingModel(transformer, config.training, cast.me.rank, cast.me.size)
    model.compile(optimizer=adam)
    return model, tf.train.Checkpoint(model=transformer, optimizer=adam, step=model.step)


def check(config: Config, cast: Cast, model: TrainingModel) -> Plan:
    """Prove before step 1 that ranks hold equal weights and sum their gradients; give the plan.

    Raises:
        DivergedError: they do not.
    """
    weights, start_step = model.transformer.trainable_variables, int(model.step.numpy())
    all_reduce_s = cluster.check_averaging(model.optimizer, weights, cast.me)
    cluster.require_equal_weights(weights, start_step, cast.me)
    return Plan(
        config, cast.data, cast.batch_plan, count_parameters(weights), cast.hosts, cast.precision,
        start_step, all_reduce_s,
    )


def dataset(cast: Cast, start_step: int) -> tf.data.Dataset:
    """This rank's batches from a step on, without end, prepared beside the training."""

    def rows() -> Iterator[dict[str, np.ndarray]]:
        start = cast.batch_plan.position(start_step)
        for batch in batches(cast.data.train, cast.batch_plan, start, cast.me.rank, cast.me.size):
            yield {
                "source": batch.source_BxS,
                "target": batch.target_BxT,
                "tokens": np.array([batch.source_tokens, batch.target_tokens], np.float32),
            }

    ids = tf.TensorSpec([None, None], tf.int32)
    signature = {"source": ids, "target": ids, "tokens": tf.TensorSpec([2], tf.float32)}
    return tf.data.Dataset.from_generator(rows, output_signature=signature).prefetch(8)
