"""What the run is going to do, in numbers, printed before step 1."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_nmt.checkpoints.size import bytes_of_gradients, ring_bytes
from hvd_nmt.common.units import data_size, step_duration
from hvd_nmt.config import Config
from hvd_nmt.config.exchange import PLAIN, Exchange
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.corpus import DataDirectory, Manifest
from hvd_nmt.explain import machines
from hvd_nmt.explain.exchange_cost import name_of, sent_bytes_per_step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Derived numbers of a run."""

    config: Config
    """all settings of the run"""
    data: DataDirectory
    """prepared data"""
    batch_plan: BatchPlan
    """which sentences each step has"""
    parameters: int
    """weights of the model, frozen ones included"""
    hosts: list[str]
    """host of each rank"""
    devices: list[str]
    """what each rank computes with"""
    reduced_by: str
    """the library through which gradients are summed"""
    precision: str
    """arithmetic of the forward and backward pass"""
    start_step: int
    """steps done before this start"""
    all_reduce_s: float
    """seconds that one all-reduce of all gradients took, as measured"""
    latency_s: float = 0.0
    """seconds that one of a single number took"""
    exchange: Exchange = PLAIN
    """what travels between the hosts"""
    frozen: int = 0
    """weights that are not trained, and so have no gradient"""
    slices: int = 1
    """in which each rank computes its share of a step; None: in one"""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients of a step."""
        return bytes_of_gradients(self.parameters - self.frozen)

    @property
    def sent_bytes_per_step(self) -> float:
        """Bytes that each rank sends, and receives, in a step; see `ring_bytes`."""
        return ring_bytes(self.gradient_bytes, self.ranks)

    @property
    def ranks_by_host(self) -> tuple[int, ...]:
        """Number of ranks on each host."""
        return tuple(self.hosts.count(host) for host in dict.fromkeys(self.hosts))

    def flops(self, logs: Mapping[str, Any]) -> float:
        """Floating-point operations that the model needs for a step with these logs."""
        return machines.flops_of_step(
            self.config.model, self.data.manifest.vocabulary_size, logs["source_tokens"],
            logs["target_tokens"], logs["sentences"],
        )  # fmt: skip

    def exchange_lines(self) -> list[str]:
        """How the hosts exchange, for a reader; nothing on one host."""
        exchange, ranks_by_host = self.exchange, self.ranks_by_host
        if len(ranks_by_host) == 1:
            return []
        sent = sent_bytes_per_step(exchange, self.gradient_bytes, ranks_by_host)
        lines = [f"exchange    {name_of(exchange)}: {data_size(sent)} sent by each host a step"]
        if exchange.islands:
            every, due = exchange.sync_every, self.config.checkpoints.every_steps
            lines.append(
                f"barriers    checkpoints and evaluations wait for a step that {every:,} divides: "
                f"one due at {due:,} comes at {-(-due // every) * every:,}"
            )
        return lines

    def lines(self) -> list[str]:
        """The plan for a reader."""
        config, training = self.config, self.config.training
        counts = {host: self.hosts.count(host) for host in self.hosts}
        train = self.data.manifest.parts["train"]
        epochs = self.batch_plan.epochs_after(training.max_steps)
        trained = f" ({self.parameters - self.frozen:,} trained)" if self.frozen else ""
        average = [
            f"average     of the weights, decay {training.ema_decay:g}: what validation, BLEU and "
            "the best models are of"
        ]
        return [
            f"ranks       {self.ranks} on " + ", ".join(f"{h}:{n}" for h, n in counts.items()),
            f"devices     {self._devices()}",
            f"model       {self.parameters:,} parameters{trained}, {config.model.encoder_layers}+"
            f"{config.model.decoder_layers} layers, {config.model.width} wide, vocabulary "
            f"{_rows(self.data.manifest)}, {self.precision}",
            *(average if training.ema_decay else []),
            f"data        {self.data.path}: {train.pairs:,} pairs, {train.source.tokens:,} + "
            f"{train.target.tokens:,} tokens{self._copies()}",
            f"batches     {training.tokens_per_step:,} target tokens a step, "
            f"{training.tokens_per_step // self.ranks:,} a rank{self._steps_per_epoch()}",
            *self._corpora(),
            *self._slices(),
            *self._compiled(),
            f"run         steps {self.start_step:,} to {training.max_steps:,} "
            f"({epochs:.1f} epochs)",
            f"rate        {self._rate()}",
            f"all-reduce  {data_size(self.gradient_bytes)} of gradients, "
            f"{data_size(self.sent_bytes_per_step)} sent by each rank a step; just measured: "
            f"{step_duration(self.all_reduce_s)}",
            *self.exchange_lines(),
        ]

    def _devices(self) -> str:
        """What the ranks compute with, said once where hosts are alike."""
        by_host: dict[str, list[str]] = {}
        for host, device in zip(self.hosts, self.devices, strict=True):
            by_host.setdefault(host, []).append(device)
        said = {host: _counted(devices) for host, devices in by_host.items()}
        if len(set(said.values())) == 1:
            words = next(iter(said.values())) + (" on each host" if len(said) > 1 else "")
        else:
            words = "; ".join(f"{host}: {devices}" for host, devices in said.items())
        return f"{words}; gradients are summed by {self.reduced_by}"

    def _copies(self) -> str:
        copies = self.data.manifest.copies
        return f"; each epoch takes the next of {copies} copies" if copies else ""

    def _steps_per_epoch(self) -> str:
        """Where all epochs have the same; of stages their own lines tell."""
        if self.batch_plan.mixture is not None:
            return ""
        return f"; {self.batch_plan.steps_per_epoch:,} steps an epoch"

    def _corpora(self) -> list[str]:
        """How much of each of several corpora the steps hold, and how often each is seen."""
        mixture, last = self.batch_plan.mixture, self.config.training.max_steps
        if mixture is None:
            names = [corpus.name for corpus in self.data.manifest.corpora]
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

    def _compiled(self) -> list[str]:
        is_compiled = self.config.training.jit_compile and self.slices == 1
        return ["XLA         a program for each shape"] if is_compiled else []

    def _slices(self) -> list[str]:
        if self.slices == 1:
            return []
        tokens = self.config.training.tokens_per_step // self.ranks // self.slices
        return [
            f"slices      {self.slices} of {tokens:,} target tokens a rank, one after another, to "
            "need less memory"
        ]

    def _rate(self) -> str:
        """What the learning rate does in this run: a short one ends in the warm-up."""
        training = self.config.training
        warmup, last = training.warmup_steps, training.max_steps
        schedule = Schedule.of(self.config)
        peak_step, peak_rate = schedule.peak()
        peak = f"rises to {peak_rate:.2e}"
        if warmup > peak_step != last:
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
        return (
            f"{peak} over {warmup:,} steps "
            f"({self.batch_plan.epochs_after(warmup):.1f} epochs)"
            f"{then}{falls if training.cooldown_steps else ''}"
        )


def _rows(manifest: Manifest) -> str:
    """Rows of the matrix, or of both where the source has its own."""
    own = manifest.source_vocabulary_size
    of_source = f"{own:,} (source) + " if own else ""
    return f"{of_source}{manifest.vocabulary_size:,}"


def _counted(names: list[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def count_parameters(weights: list[tf.Variable]) -> int:
    """Number of values in some weights."""
    return sum(int(np.prod(weight.shape)) for weight in weights)
