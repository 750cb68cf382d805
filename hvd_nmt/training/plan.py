"""The plan of a run: proved sums, sizes, speeds, and what a reader sees before step 1."""

import collections
import dataclasses

import numpy as np

from hvd_nmt.checkpoints.sizes import FLOAT_BYTES
from hvd_nmt.common import heartbeat
from hvd_nmt.common.units import data_size, percent, step_duration
from hvd_nmt.config.schedule import FALLS, Schedule
from hvd_nmt.data import bleu, language
from hvd_nmt.explain import flops
from hvd_nmt.explain.exchange_cost import name_of, ring_bytes, sent_bytes_per_step
from hvd_nmt.training import cluster, horovod, micro_batches, optimizer
from hvd_nmt.training.adam import Adam
from hvd_nmt.training.exchange.all_reduce import AllReduce
from hvd_nmt.training.setup import RunSetup
from hvd_nmt.training.step import TrainingModel
from hvd_nmt.training.step_result import StepResult


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
        return flops.flops_of_step(
            self.setup.config.model, self.setup.data.manifest.vocabulary_size,
            step.source_tokens, step.target_tokens, step.sentences,
        )  # fmt: skip

    def lines(self) -> list[str]:
        """The plan for a reader."""
        run, model, training = self.setup, self.setup.config.model, self.setup.config.training
        manifest, plan, ranks = run.data.manifest, run.batch_plan, len(run.hosts)
        hosts, on = (collections.Counter(names).items() for names in (run.hosts, run.devices))
        train, of_source = manifest.parts["train"], manifest.source_vocabulary_size
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
            f"vocabulary {f'{of_source:,} (source) + ' if of_source else ''}"
            f"{manifest.vocabulary_size:,}, {run.precision}",
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
            slices = f"{self.slices} of {share // self.slices:,} target tokens"
            lines.append(f"slices      {slices} a rank, one after another, to need less memory")
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
            rate += f", then {FALLS[schedule.decay]}"
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
        if exchange.trains_alone:
            divided = f"a step that {exchange.sync_every:,} divides"
            lines.append(f"barriers    checkpoints and evaluations wait for {divided}, or the last")
        return lines


def prove_and_plan(run_setup: RunSetup, model: TrainingModel) -> Plan:
    """Prove before step 1 that ranks hold equal weights and sum their gradients; give the plan.

    Raises DivergedError where they do not. On the way the model gets the number of slices in which
    it computes a step.
    """
    config, rank, start_step = run_setup.config, run_setup.rank, int(model.step.numpy())
    model.exchange.begin(model.trained, model.kept)
    plain, scale = model.exchange, optimizer.loss_scale(model.optimizer)
    if run_setup.groups is not None:  # what the plain sum takes is asked for, too
        plain = AllReduce()
        plain.wrapped(Adam(), model.trained)
    all_reduce_s = cluster.prove_sums(plain, model.trained, rank, scale)
    if run_setup.groups is not None:
        with horovod.heartbeat.section(heartbeat.EXCHANGE, waits=True):
            cluster.prove_sums(model.exchange, model.trained, rank, scale)
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
