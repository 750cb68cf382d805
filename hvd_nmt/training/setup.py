"""From a configuration to ranks that have agreed, a model that is proved, and the plan of a run."""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints.contents import FLOAT_BYTES
from hvd_nmt.checkpoints.state import run_state, weights_to_train
from hvd_nmt.common.errors import ClusterError, ConfigError
from hvd_nmt.common.units import data_size, percent, step_duration
from hvd_nmt.config import Config
from hvd_nmt.config.exchange import PLAIN, Exchange
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.data import bleu, language
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import batches
from hvd_nmt.data.corpus import DataDirectory
from hvd_nmt.explain import machines
from hvd_nmt.explain.exchange_cost import name_of, ring_bytes, sent_bytes_per_step
from hvd_nmt.model import device
from hvd_nmt.model.transformer import Transformer, build_transformer
from hvd_nmt.telemetry.host import cpu_flags
from hvd_nmt.training import (
    cluster,
    devices,
    heartbeat,
    horovod,
    micro_batches,
    optimizer,
)
from hvd_nmt.training import exchange as exchanges
from hvd_nmt.training.adam import Adam
from hvd_nmt.training.exchange import over_hosts
from hvd_nmt.training.exchange.all_reduce import AllReduce
from hvd_nmt.training.exchange.over_hosts import HostGroups
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.step import TrainingModel
from hvd_nmt.training.step_result import StepResult


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
    exchange = exchanges.of(run_setup.exchange, run_setup.groups)
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
        start = plan.position(start_step)
        endless = batches(data, plan, start, rank.index, rank.size, rounded)
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


def check(run_setup: RunSetup, model: TrainingModel) -> "Plan":
    """Prove before step 1 that ranks hold equal weights and sum their gradients; give the plan.

    Raises DivergedError where they do not. On the way the model gets the number of slices in which
    it computes a step.
    """
    config, rank, start_step = run_setup.config, run_setup.rank, int(model.step.numpy())
    model.exchange.begin(model.trained, model.kept)
    proven = [model.exchange]
    if run_setup.groups is not None:  # what the plain sum takes is asked for, too
        proven.insert(0, plain := AllReduce())
        plain.wrapped(Adam(), model.trained)
    scale = optimizer.loss_scale(model.optimizer)
    with horovod.heartbeat.section(heartbeat.EXCHANGE, waits=True):
        all_reduce_s, *_ = [
            cluster.prove_sums(exchange, model.trained, rank, scale) for exchange in proven
        ]
    cluster.require_equal_weights(model.replicated, start_step, rank)
    model.micro_batches = micro_batches.choose(
        config.training, run_setup.batch_plan, rank.size, model.own_gradients
    )
    parameters, trained = (
        sum(weight.shape.num_elements() for weight in weights)
        for weights in (model.transformer.trainable_variables, model.trained)
    )
    return Plan(
        setup=run_setup,
        parameters=parameters,
        frozen=parameters - trained,
        start_step=start_step,
        all_reduce_s=all_reduce_s,
        latency_s=cluster.latency_s(),
        slices=model.micro_batches,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What the ranks have agreed on, and numbers that follow from it or were measured."""

    setup: RunSetup
    parameters: int
    """weights of the model, frozen ones included"""
    frozen: int = 0
    """weights that are not trained, and so have no gradient"""
    start_step: int
    """steps done before this start"""
    all_reduce_s: float
    """seconds that one all-reduce of all gradients took, as measured"""
    latency_s: float = 0.0
    """seconds that one of a single number took"""
    slices: int = 1
    """in which each rank computes its share of a step"""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients of a step."""
        return FLOAT_BYTES * (self.parameters - self.frozen)

    @property
    def ranks_by_host(self) -> tuple[int, ...]:
        """Number of ranks on each host."""
        hosts = self.setup.hosts
        return tuple(hosts.count(host) for host in dict.fromkeys(hosts))

    def flops(self, step: StepResult) -> float:
        """Floating-point operations that the model needs for a step."""
        return machines.flops_of_step(
            self.setup.config.model, self.setup.data.manifest.vocabulary_size,
            step.source_tokens, step.target_tokens, step.sentences,
        )  # fmt: skip

    def lines(self) -> list[str]:
        """The plan for a reader."""
        run, model, training = self.setup, self.setup.config.model, self.setup.config.training
        manifest, plan, ranks = run.data.manifest, run.batch_plan, len(run.hosts)
        hosts, on = (collections.Counter(each).items() for each in (run.hosts, run.devices))
        train, own = manifest.parts["train"], manifest.source_vocabulary_size
        share = training.tokens_per_step // ranks
        trained = f" ({self.parameters - self.frozen:,} trained)" if self.frozen else ""
        copies = f"; each epoch takes the next of {manifest.copies} copies"
        steps = f"; {plan.steps_per_epoch:,} steps an epoch" if plan.mixture is None else ""
        lines = [
            f"ranks       {ranks} on " + ", ".join(f"{host}:{number}" for host, number in hosts),
            "devices     "
            + ", ".join(f"{number} x {name}" for name, number in on)
            + f"; gradients are summed by {horovod.reduced_by()}",
            f"model       {self.parameters:,} parameters{trained}, "
            f"{model.encoder_layers}+{model.decoder_layers} layers, {model.width} wide, "
            f"vocabulary {f'{own:,} (source) + ' if own else ''}{manifest.vocabulary_size:,}, "
            f"{run.precision}",
            f"data        {run.data.path}: {train.pairs:,} pairs, {train.source.tokens:,} + "
            f"{train.target.tokens:,} tokens{copies if manifest.copies else ''}",
            f"batches     {training.tokens_per_step:,} target tokens a step, {share:,} a rank"
            f"{steps}",
            *self._longer(),
            *self._corpora(),
            f"run         steps {self.start_step:,} to {training.max_steps:,} "
            f"({plan.epochs_after(training.max_steps):.1f} epochs)",
            f"rate        {self._rate()}",
        ]
        if ranks > 1:
            sent = data_size(ring_bytes(self.gradient_bytes, ranks))
            lines.append(
                f"all-reduce  {data_size(self.gradient_bytes)} of gradients, {sent} sent by each "
                f"rank a step; just measured: {step_duration(self.all_reduce_s)}"
            )
        lines += self._exchange()
        if (tokenizer := run.tokenizers[""]) != bleu.USUAL:
            code = language.base(manifest.target_language)
            better = f"; pip install 'sacrebleu[{code}]' and a new run would compare words"
            mecab = tokenizer == "char" and code in ("ja", "ko")
            lines.append(f"BLEU        by sacreBLEU's tokenizer {tokenizer}{better * mecab}")
        if training.max_steps < (needed := training.warmup_steps + training.cooldown_steps):
            lines += [
                f"warning     Warm-up and cool-down take {needed:,} steps: raise",
                "            training.max_steps, or lower training.warmup_steps (raises the peak)",
                "            and training.cooldown_steps.",
            ]
        if training.ema_decay:
            lines.append(f"average     of the weights is evaluated: decay {training.ema_decay:g}")
        if self.slices > 1:
            each = f"{self.slices} of {share // self.slices:,} target tokens"
            lines.append(f"slices      {each} a rank, one after another, to need less memory")
        elif training.jit_compile:
            lines.append("XLA         a program for each shape")
        return lines

    def _longer(self) -> list[str]:
        """What `translate` would split: training reads sentences of any length."""
        limit, train = self.setup.config.model.max_length, self.setup.data.train
        lengths = np.maximum(train.source.lengths, train.target.lengths)
        if share := float((lengths > limit).mean()):
            return [
                f"longer      {percent(share)} of the pairs are longer than model.max_length, "
                f"{limit:,} tokens: translate splits such lines"
            ]
        return []

    def _corpora(self) -> list[str]:
        """How much of each of several corpora the steps hold, and how often each is seen."""
        mixture, last = self.setup.batch_plan.mixture, self.setup.config.training.max_steps
        if mixture is None:
            names = [corpus.name for corpus in self.setup.data.manifest.corpora]
            return [f"corpora     {', '.join(names)}: every pair once an epoch"] if names else []
        lines = []
        for number, stage in enumerate(mixture.stages):
            until = last if isinstance(stage.until, str) else min(stage.until, last)
            if seen := mixture.times_seen(number, last):
                words = ", ".join(
                    f"{name} {float(share):.1%} (each pair {seen[name]:.2f} times)"
                    for name, share in mixture.shares(number).items()
                )
                label = f"stage {number + 1}" if len(mixture.stages) > 1 else "corpora"
                epoch = f"{mixture.steps_per_epoch[number]:,} steps an epoch"
                lines.append(f"{label}     to step {until:,}, {epoch}; until then: {words}")
        return lines

    def _rate(self) -> str:
        """What the learning rate does in this run: a short one ends in the warm-up."""
        training, schedule = self.setup.config.training, Schedule.of(self.setup.config)
        peak_step, peak_rate = schedule.peak()
        epochs = self.setup.batch_plan.epochs_after(peak_step)
        rate = f"rises to {peak_rate:.2e} at step {peak_step:,} ({epochs:.1f} epochs)"
        if training.warmup_steps > peak_step:
            rate += f", within the warm-up of {training.warmup_steps:,} steps"
        elif training.decay != "transformer_policy":
            rate += f", then {schedule.words()}"
        if training.cooldown_steps:
            rate += f", falls to 0 over the last {schedule.cooling_steps():,} steps"
        return rate

    def _exchange(self) -> list[str]:
        """How the hosts exchange; nothing on one host."""
        exchange, ranks_by_host = self.setup.exchange, self.ranks_by_host
        if len(ranks_by_host) == 1:
            return []
        sent = sent_bytes_per_step(exchange, self.gradient_bytes, ranks_by_host)
        lines = [f"exchange    {name_of(exchange)}: {data_size(sent)} sent by each host a step"]
        if exchange.islands:
            divided = f"a step that {exchange.sync_every:,} divides"
            lines.append(f"barriers    checkpoints and evaluations wait for {divided}, or the last")
        return lines
