"""From a configuration to ranks with equal data, a model and batches."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints.state import AdamState, run_state, weights_to_train
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import Config
from hvd_nmt.config.exchange import PLAIN, Exchange
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import batches
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.model.transformer import Transformer, build_transformer
from hvd_nmt.training import cluster, devices, gradient_sums, horovod, optimizer
from hvd_nmt.training.gradient_sums import GradientSums, HostGroups
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.step import TrainingModel


@dataclasses.dataclass(frozen=True)
class RunSetup:
    """What all ranks have agreed on before step 1."""

    config: Config
    """all settings of the run"""
    rank: Rank
    """this process among the ranks"""
    hosts: list[str]
    """host of each rank"""
    devices: list[str]
    """what each rank computes with"""
    data: DataDirectory
    """prepared data, equal on all hosts"""
    batch_plan: BatchPlan
    """which sentences each step has"""
    precision: str
    """arithmetic of the forward and backward pass: float32, bfloat16 or float16"""
    exchange: Exchange = PLAIN
    """what travels between the hosts"""
    groups: HostGroups | None = None
    """ranks that sum among themselves; None: all ranks sum float32 gradients together"""

    @property
    def together(self) -> list[int]:
        """Ranks on this host."""
        return [index for index, host in enumerate(self.hosts) if host == self.rank.host]


def agree_on_setup(config: Config, rank: Rank) -> RunSetup:
    """Prepare the data on each host and see that everything is equal on all of them.

    Raises UserError if the data cannot be used, or hosts differ.
    """
    data = cluster.prepared_data(config.data, rank)
    with horovod.raise_on_all_ranks():
        precision = devices.pick_precision(config.training.precision)
    facts_by_rank = cluster.require_equal(cluster.facts(config, data, precision), rank)
    with horovod.raise_on_all_ranks():
        _require_places(config, data)
        hosts = [facts["host"] for facts in facts_by_rank]
        batching = config.training.tokens_per_step, config.training.seed
        batch_plan = BatchPlan.of_data(data, config.data.stages, *batching)
    exchange = Exchange.of(config.training, len(set(hosts)))
    groups = None if exchange.kind == "float32" else gradient_sums.meet(hosts, rank.index)
    by_rank = horovod.gather(devices.description(rank))
    return RunSetup(config, rank, hosts, by_rank, data, batch_plan, precision, exchange, groups)


def _require_places(config: Config, data: DataDirectory) -> None:
    """See that learned positions reach to the end of every sentence: a GPU reads zeros beyond."""
    model = config.model
    if model.positions != "learned":
        return
    sides = (data.epochs.source, data.epochs.target, data.dev.source, data.dev.target)
    longest = max(int(side.lengths.max(initial=0)) for side in sides)
    if longest > model.max_length:
        raise ConfigError(
            f"model.positions learned has {model.max_length} places (model.max_length), and the "
            f"data in {data.path} have sentences of {longest} tokens: raise --model.max-length to "
            "that, or prepare the data with a smaller --max-length."
        )


def build(run_setup: RunSetup) -> tuple[TrainingModel, tf.train.Checkpoint, AdamState]:
    """The compiled model with fresh weights, what a checkpoint of it holds, and Adam's variables.

    Raises ConfigError if `training.freeze` names no weight, or leaves none to train.
    """
    config, manifest = run_setup.config, run_setup.data.manifest

    def fresh() -> Transformer:
        return build_transformer(
            config.model, manifest.vocabulary_size, run_setup.precision, config.training.seed,
            source_vocabulary_size=manifest.source_vocabulary_size,
        )  # fmt: skip

    # The average is made of the same seed, so it begins with the same weights.
    transformer, average = fresh(), fresh() if config.training.ema_decay else None
    sums = GradientSums()
    model = TrainingModel(transformer, config.training, run_setup.rank, average, sums)
    model.corpora = len(manifest.corpora)
    keras_optimizer = optimizer.build(config.training, run_setup.precision, model.trained, sums)
    model.compile(optimizer=keras_optimizer)
    weights = weights_to_train(transformer, config.training.freeze)
    adam = optimizer.state(keras_optimizer, list(weights))
    return model, run_state(transformer, model.step, adam, average), adam


def dataset(
    run_setup: RunSetup, start_step: int, steps: int, *, rounded: bool = False
) -> tf.data.Dataset:
    """Batches of this rank after `start_step`; `rounded`: padded to few shapes, for XLA."""
    data, plan, rank = run_setup.data.epochs, run_setup.batch_plan, run_setup.rank
    ranges = run_setup.data.manifest.by_corpus("train").values()
    ends = np.array([pairs.stop for pairs in ranges])

    def rows() -> Iterator[dict[str, np.ndarray]]:
        start = plan.position(start_step)
        endless = batches(data, plan, start, rank.index, rank.size, rounded)
        for batch in itertools.islice(endless, steps):
            host_tokens = max(
                1, sum(batch.rank_target_tokens[index] for index in run_setup.together)
            )
            tokens = [batch.source_tokens, batch.target_tokens, host_tokens]
            corpora = np.searchsorted(ends, batch.sentences, side="right")
            by_corpus = np.bincount(corpora, minlength=len(ends))[: len(ends)]
            yield {
                "source": batch.source_BxS,
                "target": batch.target_BxT,
                "tokens": np.array(tokens, np.float32),
                "sentences": np.array([len(batch.sentences), *by_corpus], np.float32),
            }

    ids = tf.TensorSpec([None, None], tf.int32)
    tokens_3 = tf.TensorSpec([3], tf.float32)
    counts = tf.TensorSpec([1 + len(ends)], tf.float32)
    signature = {"source": ids, "target": ids, "tokens": tokens_3, "sentences": counts}
    # There is nothing to tune here, and destroying an iterator with autotuning may take a minute:
    # TensorFlow's `CancellationManager` calls its callbacks before `IsCancelled` is true, so the
    # tuning thread (`Model::OptimizeLoop`) that one of them wakes may sleep for one more period.
    options = tf.data.Options()
    options.autotune.enabled = False
    rows_ahead = tf.data.Dataset.from_generator(rows, output_signature=signature).prefetch(8)
    return rows_ahead.with_options(options)
