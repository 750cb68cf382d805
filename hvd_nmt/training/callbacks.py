"""The base of a run's callbacks, and the small ones: learning rate, guards, telemetry."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tf_keras as keras

from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common import jsonl
from hvd_nmt.common.errors import DivergedError
from hvd_nmt.common.progress import say
from hvd_nmt.common.units import count
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.data import batches
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.telemetry import host
from hvd_nmt.telemetry.sampler import Sampler
from hvd_nmt.training import cluster, horovod
from hvd_nmt.training.exchange.base import LOWEST_LOSS_SCALE
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.setup import RunSetup
from hvd_nmt.training.step_result import StepResult

MOST_IN_A_ROW, MOST_IN_AN_EPOCH = 3, 10
"""steps with NaN or Inf that end the run, in one start of it"""


class StepCallback(keras.callbacks.Callback):
    """What is done after each step of the run.

    Every rank runs every callback at the same step; inside, rank 0 alone writes and prints. A step
    is counted from 1 when it is done: step 500 is the state after 500 updates.
    """

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Call `after_step`."""
        self.after_step(logs["result"])

    def after_step(self, result: StepResult) -> None:
        """What to do after a step of the run."""


class LearningRate(keras.callbacks.Callback):
    """Sets the learning rate before each step, a pure function of the step."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self._schedule = schedule

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the rate."""
        self.model.optimizer.learning_rate.assign(self._schedule.rate(int(self.model.step)))


class ReplicaCheck(StepCallback):
    """Compares the weights of all ranks after the first step and then every so many steps."""

    EVERY_STEPS = 100

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self._rank, self._is_first = rank, True

    def after_step(self, result: StepResult) -> None:
        """Compare."""
        is_first, self._is_first = self._is_first, False
        if result.step % self.EVERY_STEPS and not is_first:
            return
        for weights, within_hosts in self.model.exchange.replicas(self.model.replicated):
            cluster.require_equal_weights(
                weights, result.step, self._rank, within_hosts=within_hosts
            )


class NotFiniteGuard(StepCallback):
    """Names the sentences of a step whose gradient is NaN or Inf; after too many the run ends.

    The optimizer has skipped such a step on every rank that sums with it. In float16 an overflow
    halves the loss scale, as it should; one at the lowest scale counts as NaN.
    """

    def __init__(self, run_setup: RunSetup) -> None:
        super().__init__()
        self._setup = run_setup
        self._path = RunDirectory(run_setup.config.run_dir).not_finite
        self._epoch, self._in_epoch, self._in_a_row = 0, 0, 0

    def after_step(self, result: StepResult) -> None:
        """Decide from values that are equal on all ranks."""
        if not result.is_left_out:
            self._in_a_row = 0
            return
        step = result.step
        hosts, what = self._setup.hosts, "the gradient became NaN or Inf"
        ranks = [rank for rank, not_finite in enumerate(result.rank_not_finite) if not_finite]
        if ranks:
            named = ", ".join(f"rank {rank} ({hosts[rank]})" for rank in ranks)
            what = f"the loss became NaN or Inf on {named}"
        with horovod.raise_on_all_ranks():
            if self._setup.rank.is_first:
                self._name_sentences(step, what, ranks or range(len(hosts)))
        epoch = self._setup.batch_plan.position(step - 1).epoch
        self._in_epoch = self._in_epoch + 1 if epoch == self._epoch else 1
        self._epoch, self._in_a_row = epoch, self._in_a_row + 1
        if self._in_a_row >= MOST_IN_A_ROW:
            times = f"step {self._in_a_row} in a row"
        elif self._in_epoch >= MOST_IN_AN_EPOCH:
            times = f"step {self._in_epoch} of this epoch"
        else:
            return
        scale, advice = "", "set training.clip_norm"
        if result.loss_scale:
            scale = f" at a loss scale of {LOWEST_LOSS_SCALE:.0f}, the lowest"
            advice = "train in another training.precision"
        raise DivergedError(
            f"At step {step} {what}{scale}, {times}. These steps were skipped, the checkpoints "
            f"are good. See {self._path}, lower training.learning_rate or {advice}."
        )

    def _name_sentences(self, step: int, what: str, ranks: Sequence[int]) -> None:
        """Each sentence that these ranks were fed in a step, as a line of not_finite.jsonl."""
        plan, data = self._setup.batch_plan, self._setup.data
        position = plan.position(step - 1)
        of_step = plan.epoch(position.epoch).sentences(position.step)
        tokenizers = Tokenizers.of(data.source_spm_path, data.spm_path)
        sides = data.epochs.source, data.epochs.target
        file, sentences = jsonl.JsonlFile(self._path), []
        for rank in ranks:
            fed = batches.dealt(of_step, rank, len(self._setup.hosts)).tolist()
            texts = (
                tokenizer.decode(side[index] for index in fed)
                for tokenizer, side in zip(tokenizers, sides, strict=True)
            )
            for index, source, target in zip(fed, *texts, strict=True):
                number = index // plan.copies
                line = {"step": step, "rank": rank, "sentence": number, "source": source}
                file.append({"time_s": time.time(), **line, "target": target})
                sentences.append(f"{number:,}: {source!r}")
        file.close()
        say(
            f"not finite  step {step:,}: {what}; it is skipped. Its "
            f"{count(len(sentences), 'sentence')} are in {self._path}, the first of them is "
            f"{sentences[0]}"
        )


def telemetry(run_dir: Path, every_s: float, rank: Rank, now_s: float) -> keras.callbacks.Callback:
    """Samples each host's GPUs, network and load every `every_s` (0: never) while `fit` runs.

    A collective: ranks tell who and where they are, and the first the unix time of all, `now_s`.
    """
    space, here_s, mine = host.process_space(), jsonl.uptime_s(), host.addresses()
    by_rank = horovod.gather((space, os.getpid(), now_s, mine))
    pids = [pid for where, pid, *_ in by_rank if where == space]
    peers = {address for *_, theirs in by_rank for address in theirs}.difference(mine)
    if not rank.is_first_on_host or every_s == 0:
        return keras.callbacks.Callback()
    run, zero_s = RunDirectory(run_dir), by_rank[0][2] - here_s
    path, charts = run.telemetry / f"{rank.host}.jsonl", run.tensorboard / rank.host
    sampler = Sampler(path, charts, every_s, pids, zero_s, peers)
    return keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: sampler.start(), on_train_end=lambda logs: sampler.stop()
    )
