"""What happens around the steps of a run, as Keras callbacks.

Every rank runs every callback at the same step; inside, rank 0 alone writes and prints. A step is
counted from 1 when it is done: step 500 is the state after 500 updates.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.common.errors import DivergedError, Preempted
from hvd_nmt.common.units import duration
from hvd_nmt.config import Config
from hvd_nmt.config.schedule import Schedule
from hvd_nmt.telemetry.events import EventStore, read_metrics
from hvd_nmt.telemetry.gpu import GpuProbe
from hvd_nmt.telemetry.sampler import Sampler
from hvd_nmt.telemetry.steps import StepTimeMeans
from hvd_nmt.training import cluster, horovod
from hvd_nmt.training.evaluation import Evaluator, Scores
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.step_callback import StepCallback
from hvd_nmt.training.stop import StopRequest

SKIPPED_STEPS_IN_A_ROW = 50
"""float16: so many steps without a finite gradient mean that no loss scale helps any more"""


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


class StepLog(StepCallback):
    """Writes and prints means over the last steps.

    Args:
        config: of the run.
        start_step: steps done before `fit`.
        steps_per_epoch: of the batch plan.
        store: where values go; None except on rank 0.
    """

    def __init__(
        self,
        config: Config,
        start_step: int,
        steps_per_epoch: int,
        store: EventStore | None,
    ) -> None:
        super().__init__(start_step)
        self._config, self._schedule, self._store = config, Schedule.of(config), store
        self._steps_per_epoch = steps_per_epoch
        self._times = StepTimeMeans()
        self._sums: dict[str, float] = {}
        self._ranks: dict[str, list[float]] = {}

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Collect; every `log_every` steps, and at the end, write and print."""
        if self._store is None:
            return
        for name in ("loss", "nll", "source_tokens", "target_tokens"):
            self._sums[name] = self._sums.get(name, 0.0) + logs[name]
        self._times.add(logs["step_time"])
        for name in ("rank_ready_s", "rank_input_wait_s"):
            before = self._ranks.get(name, [0.0] * len(logs[name]))
            self._ranks[name] = [a + b for a, b in zip(before, logs[name], strict=True)]
        last = self._config.training.max_steps
        if step % self._config.training.log_every == 0 or step == last:
            self._write(step, logs["gradient_norm"])

    def _write(self, step: int, gradient_norm: float) -> None:
        count, times = len(self._times), self._times.take()
        assert self._store is not None
        assert times is not None
        mean = {name: total / count for name, total in self._sums.items()}
        of_ranks = {name: [total / count for total in totals]
                    for name, totals in self._ranks.items()}  # fmt: skip
        self._sums.clear()
        self._ranks.clear()
        tokens_per_s = (mean["source_tokens"] + mean["target_tokens"]) / times.total_s
        rate = self._schedule.rate(step - 1)
        self._store.scalars(
            step,
            {
                "train_loss": mean["loss"],
                "train_nll": mean["nll"],
                "learning_rate": rate,
                "Loss_Optimization/global_gradient_norm": gradient_norm,
                "global_step/sec": 1 / times.total_s,
                "epoch": step / self._steps_per_epoch,
                "tokens_per_s": tokens_per_s,
                "step_time/total_s": times.total_s,
                "step_time/input_wait_s": times.input_wait_s,
                "step_time/compute_s": times.compute_s,
                "step_time/straggler_wait_s": times.straggler_wait_s,
                "step_time/communication_s": times.communication_s,
            },
            more={**of_ranks, "steps": count},
        )
        left_s = (self._config.training.max_steps - step) * times.total_s
        print(
            f"step {step:,}/{self._config.training.max_steps:,}  "
            f"epoch {step / self._steps_per_epoch:.2f}  loss {mean['loss']:.4f}  "
            f"rate {rate:.2e}  norm {gradient_norm:.2f}  {tokens_per_s:,.0f} tokens/s  "
            f"{times.total_s:.3f} s/step (input {times.input_wait_s / times.total_s:.0%}, "
            f"slowest rank {times.straggler_wait_s / times.total_s:.0%}, "
            f"communication {times.communication_s / times.total_s:.0%})  {duration(left_s)} left",
            flush=True,
        )


class Timeline(StepCallback):
    """Records what Horovod does with each tensor, for some steps after the graph has settled.

    Args:
        path: of the timeline; rank 0 writes it.
        start_step: steps done before `fit`.
        steps: how many to record.
    """

    _SETTLED = 10

    def __init__(self, path: Path, start_step: int, steps: int) -> None:
        super().__init__(start_step)
        self._path, self._steps = path, steps

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Start or stop recording."""
        done = step - self._start_step - self._SETTLED + 1
        if done == 0:
            horovod.start_timeline(self._path)
        elif done == self._steps:
            horovod.stop_timeline()


class StopIfNotFinite(StepCallback):
    """Ends the run, on all ranks alike, when a gradient is NaN or Inf.

    The update of such a step was skipped on every rank, so the weights are as before it. With a
    loss scale (float16) single overflows are normal and only a long row of them ends the run.

    Args:
        start_step: steps done before `fit`.
        rank: this rank.
        with_loss_scale: whether overflows are expected.
    """

    def __init__(self, start_step: int, rank: Rank, with_loss_scale: bool) -> None:
        super().__init__(start_step)
        self._rank = rank
        self._allowed = SKIPPED_STEPS_IN_A_ROW if with_loss_scale else 0
        self._in_a_row = 0

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Decide from values that are equal on all ranks."""
        finite = math.isfinite(logs["gradient_norm"]) and not logs["not_finite"]
        self._in_a_row = 0 if finite else self._in_a_row + 1
        if self._in_a_row <= self._allowed:
            return
        guilty = [
            f"rank {rank} ({host})"
            for rank, (host, mine) in enumerate(
                horovod.gather([self._rank.host, logs["own_not_finite"]])
            )
            if mine
        ]
        raise DivergedError(
            f"At step {step} the {'loss' if guilty else 'gradient'} became NaN or Inf"
            f"{' on ' + ', '.join(guilty) if guilty else ''}. No weight was changed by it; the "
            "last checkpoint is good. Lower training.learning_rate or set training.clip_norm."
        )


class ReplicaCheck(StepCallback):
    """Compares the weights of all ranks after the first step and then now and again."""

    def __init__(self, start_step: int, every_steps: int, rank: Rank) -> None:
        super().__init__(start_step)
        self._every_steps, self._rank = every_steps, rank

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Compare."""
        if step == self._start_step + 1 or step % self._every_steps == 0:
            cluster.require_equal_weights(self.model.replicated, step, self._rank)


class Evaluation(StepCallback):
    """Validation loss and BLEU; keeps the best checkpoints.

    A launcher kills its ranks seconds after the signal (horovodrun: 5 s), and an evaluation takes
    longer: where a rank was asked to stop, none is made before the checkpoint is saved. The one
    that was due is made when the run resumes, before its first step; the one of the last step,
    after which nothing resumes, is made after the save.

    Args:
        config: of the run.
        start_step: steps done before `fit`.
        evaluator: does the work on all ranks.
        saver: on rank 0.
        store: on rank 0.
    """

    def __init__(
        self,
        config: Config,
        start_step: int,
        evaluator: Evaluator,
        saver: Saver | None,
        store: EventStore | None,
    ) -> None:
        super().__init__(start_step)
        self._config, self._evaluator = config, evaluator
        self._saver, self._store = saver, store
        self.latest: tuple[int, Scores] | None = None
        """the last step that was evaluated, and its scores"""
        self.request = StopRequest(speaks=saver is not None)
        """what signals ask of this rank; `Checkpoints` listens to them"""
        self.stops = False
        """whether the run ends with this step; the same on all ranks"""
        self.saved_step = 0
        """the last step, if it was saved before its evaluation"""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Make up for the evaluation that a stop has left out."""
        step = self._start_step
        if step == 0 or step % self._config.evaluation.every_steps:
            return
        missing = False
        with horovod.raise_on_all_ranks():
            if self._saver is not None:
                lines = read_metrics(Path(self._config.run_dir))
                evaluated = (line["step"] for line in lines if line["kind"] == "eval")
                missing = step not in evaluated
        if horovod.gather(missing)[0]:  # what rank 0 has read counts: it alone writes
            self._evaluate(step)

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Evaluate every `every_steps` steps and after the last one."""
        last = step == self._config.training.max_steps
        self.stops = logs["stop"] > 0
        if step % self._config.evaluation.every_steps and not last:
            return
        self.stops = self.stops or self._any_rank_was_asked()
        if self.stops and not last:
            return
        if self.stops:
            with horovod.raise_on_all_ranks():
                if self._saver is not None:
                    self._saver.save(step)
            self.saved_step = step
        self._evaluate(step)
        self.stops = self.stops or self._any_rank_was_asked()

    def _any_rank_was_asked(self) -> bool:
        """Since the step began, which told the others of what was asked before it."""
        mine = tf.constant(float(self.request.asked))
        return float(horovod.sum_over_ranks(mine, name="stop")) > 0

    def _evaluate(self, step: int) -> None:
        scores = self._evaluator()
        self.latest = step, scores
        with horovod.raise_on_all_ranks():
            if self._saver is not None and self._store is not None:
                self._write(step, scores, self._saver, self._store)

    def _write(self, step: int, scores: Scores, saver: Saver, store: EventStore) -> None:
        store.scalars(
            step,
            {
                "eval_loss": scores.val_loss,
                "eval_nll": scores.val_nll,
                "eval_perplexity": math.exp(min(scores.val_nll, 700)),
                "Eval_BLEU_Score": scores.pseudo_bleu,
                "sacrebleu": scores.bleu,
                "chrf": scores.chrf,
                "eval_seconds": scores.seconds,
            },
            kind="eval",
            more={"sacrebleu_margin": scores.bleu_margin},
        )
        samples = self._evaluator.samples(scores)
        store.text(step, "samples", samples)
        folder = Path(self._config.run_dir) / "hypotheses"
        folder.mkdir(exist_ok=True)
        text = "".join(line + "\n" for line in scores.hypotheses)
        (folder / f"dev.{step}.txt").write_text(text, encoding="utf-8")
        print(
            f"step {step:,}  validation loss {scores.val_loss:.4f}  BLEU {scores.bleu:.2f} "
            f"+- {scores.bleu_margin:.2f}  "
            f"chrF {scores.chrf:.2f}  ({len(scores.hypotheses)} sentences in "
            f"{duration(scores.seconds)}; pseudo-BLEU {scores.pseudo_bleu:.3f})\n{samples}",
            flush=True,
        )
        saver.save_best(step, scores.val_loss)


class Checkpoints(StepCallback):
    """Saves every so many steps, at the end, and when a rank was asked to stop.

    On SIGTERM or SIGINT to any rank, all ranks finish the same step, rank 0 saves, and all leave.

    Args:
        config: of the run.
        start_step: steps done before `fit`.
        saver: on rank 0.
        evaluation: comes before this callback; knows the validation loss of a step, and whether the
            run stops.
    """

    def __init__(
        self, config: Config, start_step: int, saver: Saver | None, evaluation: Evaluation
    ) -> None:
        super().__init__(start_step)
        self._config, self._saver, self._evaluation = config, saver, evaluation

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Listen to signals."""
        self._evaluation.request.listen()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop listening."""
        self._evaluation.request.ignore()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Tell the others with the next step's all-reduce."""
        if self._evaluation.request.asked:
            self.model.stop_requested.assign(1.0)

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Save if it is time; leave if any rank was asked to."""
        stop = self._evaluation.stops
        last = step == self._config.training.max_steps
        if stop:
            self._evaluation.request.say()  # another rank than this one was asked
        if stop or last or step % self._config.checkpoints.every_steps == 0:
            evaluated = self._evaluation.latest
            val_loss = evaluated[1].val_loss if evaluated and evaluated[0] == step else None
            with horovod.raise_on_all_ranks():
                if self._saver is not None and self._evaluation.saved_step != step:
                    self._saver.save(step, val_loss)
        if stop and not last:
            raise Preempted(
                f"Stopped by a signal after step {step}; the checkpoint is saved: the same "
                "command goes on from here."
            )


class Telemetry(keras.callbacks.Callback):
    """Samples GPUs, network cards and host while `fit` runs; on the first rank of each host."""

    def __init__(self, run_dir: Path, interval_s: float, rank: Rank) -> None:
        super().__init__()
        self._sampler = None
        if rank.is_first_on_host and interval_s > 0:
            self._sampler = Sampler(
                run_dir / "telemetry" / f"{rank.host}.jsonl",
                interval_s,
                event_dir=run_dir / "tensorboard" / rank.host,
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
