"""The small callbacks of a run: learning rate, guards against divergence, telemetry, timeline.

`step_log.py` has the one that logs, `save_and_evaluate.py` the one that saves and evaluates.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import tf_keras as keras

from hvd_nmt.checkpoints.run_files import TELEMETRY_DIR
from hvd_nmt.common.errors import DivergedError
from hvd_nmt.common.units import count
from hvd_nmt.config import Config
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.telemetry.events import TENSORBOARD_DIR
from hvd_nmt.telemetry.gpu import GpuProbe
from hvd_nmt.telemetry.sampler import Sampler
from hvd_nmt.training import cluster, horovod
from hvd_nmt.training.going_back import GoingBack
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.step import LOWEST_LOSS_SCALE
from hvd_nmt.training.step_callback import StepCallback


class LearningRate(StepCallback):
    """Sets the learning rate before each step, a pure function of the step.

    Args:
        start_step: steps done before `fit`.
        schedule: of the run.
    """

    def __init__(self, start_step: int, schedule: Schedule) -> None:
        super().__init__(start_step)
        self._schedule = schedule

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the rate."""
        self.model.optimizer.learning_rate.assign(self._schedule.rate(self._start_step + batch))


class StopIfNotFinite(StepCallback):
    """Sends the run back, on all ranks alike, when a gradient is NaN or Inf; the second time in an
    epoch it ends.

    The update of such a step was skipped on every rank, so the weights are as before it. In float16
    an overflow halves the loss scale, as it should; one at the lowest scale counts as NaN.

    Of islands a single host may go wrong: it then takes the weights of the others at the next
    exchange. If it goes wrong before the one after that, too, the run ends.

    Args:
        start_step: steps done before `fit`.
        rank: this rank.
        going_back: sends the run back; None: the first time ends it.
    """

    def __init__(self, start_step: int, rank: Rank, going_back: GoingBack | None = None) -> None:
        super().__init__(start_step)
        self._rank, self._going_back = rank, going_back
        self._mended: dict[str, int] = {}
        """step by which a host that went wrong has taken all weights of the others"""

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Decide from values that are equal on all ranks."""
        if logs["left_out"]:
            return
        of_hosts = logs.get("host_not_finite")
        if of_hosts is not None and not all(of_hosts):
            self._forgive(step, of_hosts)
            return
        finite = math.isfinite(logs["gradient_norm"]) and not logs["not_finite"]
        if finite or logs["loss_scale"] > LOWEST_LOSS_SCALE:
            return
        by_rank = horovod.gather([self._rank.host, logs["own_not_finite"]])
        ranks = [index for index, (_, not_finite) in enumerate(by_rank) if not_finite]
        named = ", ".join(f"rank {index} ({by_rank[index][0]})" for index in ranks)
        what = "the loss became NaN or Inf on " + named
        if not ranks:
            what = "the gradient became NaN or Inf"
        again = ""
        # Islands have gone on by themselves; their last checkpoint may be far behind.
        if self._going_back is not None and self.model.islands is None:
            before = self._going_back.before(step)
            if before is None:
                self._going_back.go_back(step, what, ranks)
            else:
                again = f", after the run had gone back for step {before.step:,} of this epoch"
        raise DivergedError(
            f"At step {step} {what}"
            + (
                f" in float16 at a loss scale of {LOWEST_LOSS_SCALE:.0f}, the lowest{again}; "
                f"{count(int(logs['skipped_steps']), 'step')} of this run changed no weight. The "
                "checkpoints are good. Lower training.learning_rate, or train in another "
                "training.precision."
                if logs["loss_scale"]
                else f"{again}. No weight was changed by it; the checkpoints are good. Lower "
                "training.learning_rate or set training.clip_norm."
            )
        )

    def _forgive(self, step: int, of_hosts: list[bool]) -> None:
        """Warn of hosts that go wrong for the first time.

        Raises:
            DivergedError: one did before the last exchange, too.
        """
        names = self.model.islands.hosts.names
        exchange = self.model.exchange
        every = exchange.sync_every
        for host in (name for name, bad in zip(names, of_hosts, strict=True) if bad):
            mended = self._mended.get(host, -every)
            if mended < step <= mended + every:
                raise DivergedError(
                    f"At step {step:,} the gradient became NaN or Inf on {host}, again after it "
                    "had taken the weights of the other hosts: see whether its GPU or memory "
                    "fails; the checkpoints are good."
                )
            if step <= mended:
                continue
            # Streamed, a fragment comes in each step; else all come with the next exchange.
            self._mended[host] = step + every if exchange.streaming else -(-step // every) * every
            if self._rank.is_first:
                print(
                    f"not finite  step {step:,}: the gradient became NaN or Inf on {host}; what it "
                    "learned since the last exchange is left out, and it goes on with the weights "
                    "of the other hosts",
                    flush=True,
                )


class ReplicaCheck(StepCallback):
    """Compares the weights of all ranks after the first step and then every so many steps.

    Islands differ between exchanges: then the ranks of each host are compared, and on all hosts the
    weights that they have in common.

    Args:
        start_step: steps done before `fit`.
        every_steps: steps between two comparisons.
        rank: this rank.
    """

    def __init__(self, start_step: int, every_steps: int, rank: Rank) -> None:
        super().__init__(start_step)
        self._every_steps, self._rank = every_steps, rank

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Compare."""
        if step % self._every_steps and step != self._start_step + 1:
            return
        islands = self.model.islands
        apart = islands is not None
        cluster.require_equal_weights(self.model.replicated, step, self._rank, within_hosts=apart)
        if islands is not None:
            cluster.require_equal_weights(islands.common, step, self._rank)


class Telemetry(keras.callbacks.Callback):
    """Samples GPUs, network cards and host while `fit` runs; on the first rank of each host.

    Args:
        run_dir: gets the samples, and their charts for TensorBoard.
        interval_s: seconds between two samples; 0: none are taken.
        rank: this rank.
    """

    def __init__(self, run_dir: Path, interval_s: float, rank: Rank) -> None:
        super().__init__()
        self._sampler = None
        if rank.is_first_on_host and interval_s > 0:
            self._sampler = Sampler(
                run_dir / TELEMETRY_DIR / f"{rank.host}.jsonl",
                interval_s,
                event_dir=run_dir / TENSORBOARD_DIR / rank.host,
            )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Start sampling, and say once what of this host is sampled."""
        if self._sampler is not None:
            gpus = GpuProbe()
            names = ", ".join(gpu.name for gpu in gpus.gpus) or f"no GPU ({gpus.unavailable})"
            gpus.close()
            print(f"telemetry   {self._sampler.host}: {names}; network, CPU, memory", flush=True)
            self._sampler.start()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop; harmless when it never started."""
        if self._sampler is not None:
            self._sampler.stop()


class Timeline(StepCallback):
    """Records what Horovod does with each tensor, for some steps once the graph has settled.

    Args:
        config: of the run; how many steps to record. Rank 0 writes the file.
        start_step: steps done before `fit`.
    """

    _SETTLED = 10

    def __init__(self, config: Config, start_step: int) -> None:
        super().__init__(start_step)
        self._path = config.run_dir / "horovod-timeline.json"
        self._steps = config.telemetry.timeline_steps

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Start or stop recording."""
        done = step - self._start_step - self._SETTLED + 1
        if done == 0 < self._steps:
            horovod.start_timeline(self._path)
        elif done == self._steps > 0:
            horovod.stop_timeline()
