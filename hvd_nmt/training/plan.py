"""What the run is going to do, in numbers: measured and proved, then printed before step 1."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from hvd_nmt.checkpoints.size import bytes_of_gradients, ring_bytes
from hvd_nmt.checkpoints.state import AdamState
from hvd_nmt.common.units import data_size, step_duration
from hvd_nmt.config.exchange import joined_at
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.explain import machines
from hvd_nmt.explain.exchange_cost import name_of, sent_bytes_per_step
from hvd_nmt.training import cluster, heartbeat, horovod, micro_batches
from hvd_nmt.training.islands import Islands
from hvd_nmt.training.setup import RunSetup
from hvd_nmt.training.step import TrainingModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What the ranks have agreed on, and numbers that follow from it or were measured."""

    setup: RunSetup
    """what the ranks have agreed on"""
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
    reduced_by: str
    """the library through which gradients are summed"""
    slices: int = 1
    """in which each rank computes its share of a step"""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients of a step."""
        return bytes_of_gradients(self.parameters - self.frozen)

    @property
    def sent_bytes_per_step(self) -> float:
        """Bytes that each rank sends, and receives, in a step; see `ring_bytes`."""
        return ring_bytes(self.gradient_bytes, len(self.setup.hosts))

    @property
    def ranks_by_host(self) -> tuple[int, ...]:
        """Number of ranks on each host."""
        hosts = self.setup.hosts
        return tuple(hosts.count(host) for host in dict.fromkeys(hosts))

    def flops(self, logs: Mapping[str, Any]) -> float:
        """Floating-point operations that the model needs for a step with these logs."""
        return machines.flops_of_step(
            self.setup.config.model, self.setup.data.manifest.vocabulary_size,
            logs["source_tokens"], logs["target_tokens"], logs["sentences"],
        )  # fmt: skip

    def lines(self) -> list[str]:
        """The plan for a reader."""
        setup, model, training = self.setup, self.setup.config.model, self.setup.config.training
        manifest, batches, ranks = setup.data.manifest, setup.batch_plan, len(setup.hosts)
        by_host = zip(dict.fromkeys(setup.hosts), self.ranks_by_host, strict=True)
        train, own = manifest.parts["train"], manifest.source_vocabulary_size
        share = training.tokens_per_step // ranks
        lines = [
            f"ranks       {ranks} on " + ", ".join(f"{host}:{n}" for host, n in by_host),
            f"devices     {self._devices()}; gradients are summed by {self.reduced_by}",
            f"model       {self.parameters:,} parameters"
            + (f" ({self.parameters - self.frozen:,} trained)" if self.frozen else "")
            + f", {model.encoder_layers}+{model.decoder_layers} layers, {model.width} wide, "
            f"vocabulary {f'{own:,} (source) + ' if own else ''}{manifest.vocabulary_size:,}, "
            f"{setup.precision}",
        ]
        if training.ema_decay:
            lines.append(
                f"average     of the weights, decay {training.ema_decay:g}: what validation, BLEU "
                "and the best models are of"
            )
        copies = f"; each epoch takes the next of {manifest.copies} copies"
        steps = f"; {batches.steps_per_epoch:,} steps an epoch" if batches.mixture is None else ""
        lines += [
            f"data        {setup.data.path}: {train.pairs:,} pairs, {train.source.tokens:,} + "
            f"{train.target.tokens:,} tokens{copies if manifest.copies else ''}",
            f"batches     {training.tokens_per_step:,} target tokens a step, {share:,} a rank"
            f"{steps}",
            *self._corpora(),
        ]
        if self.slices > 1:
            lines.append(
                f"slices      {self.slices} of {share // self.slices:,} target tokens a rank, one "
                "after another, to need less memory"
            )
        elif training.jit_compile:
            lines.append("XLA         a program for each shape")
        epochs = batches.epochs_after(training.max_steps)
        return [
            *lines,
            f"run         steps {self.start_step:,} to {training.max_steps:,} "
            f"({epochs:.1f} epochs)",
            f"rate        {self._rate()}",
            f"all-reduce  {data_size(self.gradient_bytes)} of gradients, "
            f"{data_size(self.sent_bytes_per_step)} sent by each rank a step; just measured: "
            f"{step_duration(self.all_reduce_s)}",
            *self._exchange(),
        ]

    def _devices(self) -> str:
        """What the ranks compute with, said once where hosts are alike."""
        by_host: dict[str, list[str]] = {}
        for host, device in zip(self.setup.hosts, self.setup.devices, strict=True):
            by_host.setdefault(host, []).append(device)
        said = {
            host: ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
            for host, names in by_host.items()
        }
        if len(set(said.values())) == 1:
            return next(iter(said.values())) + (" on each host" if len(said) > 1 else "")
        return "; ".join(f"{host}: {devices}" for host, devices in said.items())

    def _corpora(self) -> list[str]:
        """How much of each of several corpora the steps hold, and how often each is seen."""
        mixture, last = self.setup.batch_plan.mixture, self.setup.config.training.max_steps
        if mixture is None:
            names = [corpus.name for corpus in self.setup.data.manifest.corpora]
            return [f"corpora     {', '.join(names)}: every pair once an epoch"] if names else []
        lines = []
        for number, stage in enumerate(mixture.stages):
            until = last if isinstance(stage.until, str) else stage.until
            seen, shares = mixture.times_seen(number, last), mixture.shares(number)
            if not seen:
                lines.append(f"stage {number + 1}     begins after the last step")
                continue
            words = (
                f"{name} {float(share):.1%} (each pair {seen[name]:.2f} times)"
                for name, share in shares.items()
            )
            lines.append(
                f"stage {number + 1}     to step {min(until, last):,}, "
                f"{mixture.steps_per_epoch[number]:,} steps an epoch: {', '.join(words)}"
            )
        return lines

    def _rate(self) -> str:
        """What the learning rate does in this run: a short one ends in the warm-up."""
        training, schedule = self.setup.config.training, Schedule.of(self.setup.config)
        warmup, (peak_step, peak_rate) = training.warmup_steps, schedule.peak()
        peak = f"rises to {peak_rate:.2e}"
        if warmup > peak_step != training.max_steps:
            return (
                f"{peak} at step {peak_step:,}, within the warm-up of {warmup:,} steps: from there "
                "the cool-down takes it to 0"
            )
        if warmup > peak_step:
            return (
                f"{peak} at the last step: the warm-up of {warmup:,} steps is longer than the run"
            )
        falls = f", falls to 0 over the last {schedule.cooling_steps():,} steps"
        then = "" if training.decay == "transformer_policy" else f", then {schedule.words()}"
        epochs = self.setup.batch_plan.epochs_after(warmup)
        return (
            f"{peak} over {warmup:,} steps ({epochs:.1f} epochs)"
            f"{then}{falls if training.cooldown_steps else ''}"
        )

    def _exchange(self) -> list[str]:
        """How the hosts exchange; nothing on one host."""
        exchange, ranks_by_host = self.setup.exchange, self.ranks_by_host
        if len(ranks_by_host) == 1:
            return []
        sent = sent_bytes_per_step(exchange, self.gradient_bytes, ranks_by_host)
        lines = [f"exchange    {name_of(exchange)}: {data_size(sent)} sent by each host a step"]
        if exchange.islands:
            every, due = exchange.sync_every, self.setup.config.checkpoints.every_steps
            lines.append(
                f"barriers    checkpoints and evaluations wait for a step that {every:,} divides: "
                f"one due at {due:,} comes at {-(-due // every) * every:,}"
            )
        return lines


def check(run_setup: RunSetup, model: TrainingModel, adam: AdamState) -> Plan:
    """Prove before step 1 that ranks hold equal weights and sum their gradients; give the plan.

    Raises DivergedError where they do not. On the way the model gets what it does between hosts,
    proven likewise, and the number of slices in which it computes a step.
    """
    config, rank, start_step = run_setup.config, run_setup.rank, int(model.step.numpy())
    all_reduce_s = cluster.check_averaging(model.optimizer, model.trained, rank)
    cluster.require_equal_weights(model.replicated, start_step, rank)
    if run_setup.groups is not None:
        together = None
        model.sums.hosts = run_setup.groups
        if run_setup.exchange.islands:
            together, model.sums.within_hosts = run_setup.together, True
            model.islands = Islands(model.trained, adam, run_setup.groups)
            model.joined_at = functools.partial(joined_at, config, run_setup.exchange)
        with horovod.heartbeat.section(heartbeat.EXCHANGE), horovod.heartbeat.waiting():
            cluster.check_averaging(model.optimizer, model.trained, rank, together)
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
        reduced_by=horovod.reduced_by(),
        slices=model.micro_batches,
    )
