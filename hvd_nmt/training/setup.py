"""From a configuration to ranks that have agreed, a model, and the batches that it is fed."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints.state import run_state, weights_to_train
from hvd_nmt.common.errors import ClusterError, ConfigError
from hvd_nmt.config import Config
from hvd_nmt.config.exchange import PLAIN, Exchange
from hvd_nmt.data import bleu
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import batches
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.model import device
from hvd_nmt.model.transformer import Transformer, build_transformer
from hvd_nmt.telemetry.host import cpu_flags
from hvd_nmt.training import cluster, devices, horovod, optimizer
from hvd_nmt.training import exchange as exchanges
from hvd_nmt.training.exchange import over_hosts
from hvd_nmt.training.exchange.over_hosts import HostGroups
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.step import TrainingModel


@dataclasses.dataclass(frozen=True)
class RunSetup:
    """What all ranks have agreed on before step 1."""

    config: Config
    rank: Rank
    hosts: list[str]
    """host of each rank"""
    devices: list[str]
    """what each rank computes with"""
    data: DataDirectory
    batch_plan: BatchPlan
    """which sentences each step has"""
    precision: str
    """arithmetic of the forward and backward pass: float32, bfloat16 or float16"""
    exchange: Exchange = PLAIN
    """what travels between the hosts"""
    groups: HostGroups | None = None
    """ranks that sum among themselves; None: all ranks sum float32 gradients together"""
    tokenizers: Mapping[str, str] = dataclasses.field(default_factory=lambda: {"": bleu.USUAL})
    """of BLEU: by corpus, and "" for all text"""


def agree_on_setup(config: Config, rank: Rank) -> RunSetup:
    """Prepare the data on each host; UserError if they cannot be used, or hosts differ."""
    data = cluster.prepared_data(config.data, rank)
    with horovod.raise_on_all_ranks():
        precision = device.precision(config.training.precision, cpu_flags())
    facts_by_rank = cluster.require_equal(cluster.facts(config, data, precision), rank)
    with horovod.raise_on_all_ranks():
        _require_places(config, data)
        hosts = [facts["host"] for facts in facts_by_rank]
        batching = config.training.tokens_per_step, config.training.seed
        batch_plan = BatchPlan.of_data(data, config.data.stages, *batching)
    exchange = Exchange.of(config.training, len(set(hosts)))
    groups = None if exchange.kind == "float32" else over_hosts.form_host_groups(hosts, rank.index)
    by_rank = horovod.gather(devices.description(rank))
    if config.training.optimizer == "muon":
        require_equal_devices(by_rank[rank.index])
    return RunSetup(config, rank, hosts, by_rank, data, batch_plan, precision, exchange, groups)


def require_equal_devices(description: str) -> None:
    """See that the matrix products of Muon, which each rank makes alone, end in the same digits."""
    # Threads share out a wide product, and so decide the order of its sums.
    kind = f"{description} {sorted(cpu_flags())}" if description.startswith("CPU") else description
    if len(set(horovod.gather(kind))) > 1:
        raise ClusterError(
            "training.optimizer muon needs ranks with the same processors, threads or GPUs, and "
            "these differ: use training.optimizer adam and a lower training.learning_rate."
        ).of_all_ranks()


def _require_places(config: Config, data: DataDirectory) -> None:
    """See that learned positions reach to the end of every sentence: a GPU reads zeros beyond."""
    model = config.model
    if model.positions != "learned":
        return
    sides = (data.epochs.source, data.epochs.target, data.dev.source, data.dev.target)
    longest = max(int(side.lengths.max(initial=0)) for side in sides)
    if longest > model.max_length:
        raise ConfigError(
            f"model.max_length is {model.max_length}, but {data.path} has sentences of {longest} "
            f"tokens: raise --model.max-length to {longest}, or prepare the data with a smaller "
            "--max-length."
        )


def build(run_setup: RunSetup) -> tuple[TrainingModel, tf.train.Checkpoint]:
    """The compiled model with fresh weights, and what a checkpoint of it holds.

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
    exchange = exchanges.of(run_setup.exchange, run_setup.groups, config.training.optimizer)
    model = TrainingModel(transformer, config.training, run_setup.rank, exchange, average)
    model.corpora = len(manifest.corpora)
    keras_optimizer = optimizer.build(config.training, run_setup.precision, model.trained, exchange)
    model.compile(optimizer=keras_optimizer)
    weights = weights_to_train(transformer, config.training.freeze)
    model.kept = optimizer.state(keras_optimizer, list(weights))
    return model, run_state(transformer, model.step, model.kept, average)


def dataset(
    run_setup: RunSetup, start_step: int, steps: int, *, rounded: bool = False
) -> tf.data.Dataset:
    """Batches of this rank after `start_step`; `rounded`: padded to few shapes, for XLA."""
    data, plan, rank = run_setup.data.epochs, run_setup.batch_plan, run_setup.rank
    ranges = run_setup.data.manifest.by_corpus("train").values()
    ends = np.array([pairs.stop for pairs in ranges])
    together = [index for index, host in enumerate(run_setup.hosts) if host == rank.host]

    def rows() -> Iterator[dict[str, np.ndarray]]:
        endless = batches(data, plan, plan.position(start_step), rank.index, rank.size, rounded)
        for batch in itertools.islice(endless, steps):
            host_tokens = max(1, sum(batch.rank_target_tokens[index] for index in together))
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
    # Nothing here needs tuning, and destroying an iterator with autotuning may take a minute:
    # `CancellationManager` calls its callbacks before `IsCancelled` is true. One of them wakes the
    # tuning thread (`Model::OptimizeLoop`), which may then sleep for one more period.
    options = tf.data.Options()
    options.autotune.enabled = False
    rows_ahead = tf.data.Dataset.from_generator(rows, output_signature=signature).prefetch(8)
    return rows_ahead.with_options(options)
