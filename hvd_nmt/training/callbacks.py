"""The base of a run's callbacks, and the small ones: learning rate, replicas, telemetry."""

from pathlib import Path
from typing import Any

import tf_keras as keras

from hvd_nmt.checkpoints.run_files import TELEMETRY_DIR
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.telemetry.events import TENSORBOARD_DIR
from hvd_nmt.telemetry.gpu import GpuProbe
from hvd_nmt.telemetry.sampler import Sampler
from hvd_nmt.training import cluster
from hvd_nmt.training.horovod import Rank


class StepCallback(keras.callbacks.Callback):
    """Counts the steps of the run, of which `start_step` were done before this `fit`.

    Every rank runs every callback at the same step; inside, rank 0 alone writes and prints. A step
    is counted from 1 when it is done: step 500 is the state after 500 updates.
    """

    def __init__(self, start_step: int) -> None:
        super().__init__()
        self._start_step = start_step

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Call `after_step` with the number of steps done."""
        self.after_step(self._start_step + batch + 1, logs or {})

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """What to do after a step of the run; `logs`: see `step.TrainingModel`."""


class LearningRate(StepCallback):
    """Sets the learning rate before each step, a pure function of the step."""

    def __init__(self, start_step: int, schedule: Schedule) -> None:
        super().__init__(start_step)
        self._schedule = schedule

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the rate."""
        self.model.optimizer.learning_rate.assign(self._schedule.rate(self._start_step + batch))


class ReplicaCheck(StepCallback):
    """Compares the weights of all ranks after the first step and then every so many steps.

    Islands differ between exchanges: then the ranks of each host are compared, and on all hosts the
    weights that they have in common.
    """

    EVERY_STEPS = 100

    def __init__(self, start_step: int, rank: Rank) -> None:
        super().__init__(start_step)
        self._rank = rank

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Compare."""
        if step % self.EVERY_STEPS and step != self._start_step + 1:
            return
        islands = self.model.islands
        apart = islands is not None
        cluster.require_equal_weights(self.model.replicated, step, self._rank, within_hosts=apart)
        if apart:
            cluster.require_equal_weights(islands.common, step, self._rank)


class Telemetry(keras.callbacks.Callback):
    """Samples GPUs, network cards and host while `fit` runs; on the first rank of each host.

    The run directory gets the samples, every `interval_s` seconds (0: none), and their charts.
    """

    def __init__(self, run_dir: Path, interval_s: float, rank: Rank) -> None:
        super().__init__()
        self._sampler = None
        if rank.is_first_on_host and interval_s > 0:
            self._sampler = Sampler(
                run_dir / TELEMETRY_DIR / f"{rank.host}.jsonl",
                run_dir / TENSORBOARD_DIR / rank.host,
                interval_s,
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
