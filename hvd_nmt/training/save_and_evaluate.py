"""Whether a run stops, saves or evaluates after a step: one callback decides all three."""

import time
from collections.abc import Sequence
from typing import Any

from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.common import heartbeat
from hvd_nmt.common.errors import Preempted
from hvd_nmt.common.progress import say
from hvd_nmt.common.units import duration
from hvd_nmt.config.exchange import is_due
from hvd_nmt.records import metrics
from hvd_nmt.records.event_store import EventStore
from hvd_nmt.records.record import Evaluation, Record, Save
from hvd_nmt.training import evaluation, horovod
from hvd_nmt.training.callbacks import StepCallback
from hvd_nmt.training.evaluation import Evaluator
from hvd_nmt.training.setup import RunSetup
from hvd_nmt.training.step_result import StepResult
from hvd_nmt.training.stop import EarlyStopping, StopRequest

_STOPPED = (
    "Stopped by a signal after step {step}; the checkpoint is saved: run the same command to "
    "continue."
)


def is_owed(run_setup: RunSetup, step: int, before: Sequence[Record]) -> bool:
    """Whether an earlier start was killed between the save of a step and the end of its evaluation.

    `before`: what earlier starts recorded.
    """
    config, sync_every = run_setup.config, run_setup.exchange.sync_every
    is_last = step == config.training.max_steps
    due = is_last or is_due(step, config.evaluation.every_steps, sync_every)
    done = any(of.step == step for of in metrics.of_kind(Evaluation, before))
    return bool(step and before and due and not done)


class SaveAndEvaluate(StepCallback):
    """Saves and evaluates every so many steps and after the last one; stops when a rank was asked.

    On SIGTERM or SIGINT to any rank, all ranks finish the same step, save, and leave; the next
    start makes up for an evaluation that is due then. A step that is evaluated is saved first, so
    the best models are checkpoints with a second name, and an evaluation that fails costs no step.

    `saver` and `store` are None on a rank that writes nothing; `copies` is the number of
    directories that get each checkpoint, `trained_s` what earlier starts have trained. Rank 0
    decides and prints.
    """

    def __init__(
        self,
        run_setup: RunSetup,
        evaluator: Evaluator,
        saver: Saver | None,
        store: EventStore | None,
        *,
        copies: int,
        trained_s: float,
    ) -> None:
        super().__init__()
        self._config, self._evaluator = run_setup.config, evaluator
        self._sync_every = run_setup.exchange.sync_every  # for which saves and evaluations wait
        self._saver, self._store, self._copies = saver, store, copies
        self._is_first = run_setup.rank.is_first
        self.evaluation_s = 0.0
        """what an evaluation takes"""
        self.early_end = EarlyStopping(self._config, trained_s)
        self.stop_request = StopRequest(announces=self._is_first)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Listen to signals."""
        self.stop_request.listen()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop listening."""
        self.stop_request.stop_listening()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Tell the others with the next step's all-reduce."""
        self.stop_request.in_step = True
        if self.stop_request.requested:
            self.model.stop_requested.assign(1.0)
        if self._is_first and self.early_end.is_out_of_time():
            self.model.end_requested.assign(1.0)

    def after_step(self, result: StepResult) -> None:
        """Decide, alike on all ranks; raises Preempted, once saved, if a rank was asked to stop."""
        self.stop_request.in_step = False
        step = result.step
        ends = result.end > 0 or step == self._config.training.max_steps
        evaluate = ends or is_due(step, self._config.evaluation.every_steps, self._sync_every)
        save = evaluate or is_due(step, self._config.checkpoints.every_steps, self._sync_every)
        # The step's own sum does not know of a signal that came since the step began.
        stop = result.stop > 0 or (save and self.stop_request.agreed()[0])
        if stop or self.stop_request.requested:
            self.stop_request.announce()  # it may be another rank than this one that was asked
        if save or stop:
            self._save(step)
        if evaluate and (ends or not stop):  # at the end all is saved: a kill loses nothing more
            stop, enough = self._evaluate(step)
            ends = ends or enough
        if stop and not ends:
            self.stop_request.announce()
            raise Preempted(_STOPPED.format(step=step))
        self.model.stop_training = ends

    def make_up(self, step: int) -> bool:
        """Save and evaluate where an earlier start was killed before it had; whether the run ends.

        For all ranks, before the first step of this start; raises Preempted if a rank is asked.
        """
        self.stop_request.listen()
        prefix = self._config.run_dir / f"{names.NEWEST}{step}"
        with horovod.heartbeat.section(heartbeat.CHECKPOINT), horovod.raise_on_all_ranks():
            if self._saver is not None and not names.manifest_file(prefix).exists():
                self._saver.save(step)
        stop, enough = self._evaluate(step)
        self.stop_request.stop_listening()
        ends = enough or step == self._config.training.max_steps
        if stop and not ends:
            raise Preempted(_STOPPED.format(step=step))
        return ends

    def _save(self, step: int) -> None:
        """Save on all ranks that write, and record how long they waited."""
        asked_s = time.monotonic()
        self.model.exchange.join(step)
        began_s = time.monotonic()
        with horovod.heartbeat.section(heartbeat.CHECKPOINT), horovod.raise_on_all_ranks():
            if self._saver is not None:
                self._saver.save(step)
            own_s = time.monotonic() - began_s
        wait_s = max(horovod.gather(own_s))
        others_s = max(0.0, time.monotonic() - began_s - wait_s)
        if self._is_first:
            late = f", other ranks heard of it {duration(others_s)} later" * (others_s > 1 + wait_s)
            say(f"checkpoint  step {step:,}  saved in {duration(wait_s)}{late}")
        if self._store is not None:
            join_s = began_s - asked_s
            self._store.write(Save(step, wait_s, self._copies, join_s=join_s, others_s=others_s))

    def _evaluate(self, step: int) -> tuple[bool, bool]:
        """Evaluate on all ranks, write the scores down, keep the best checkpoints.

        Returns whether a rank was asked to stop by now, and whether the run ends by the scores.
        """
        if self._is_first:
            say(f"evaluation  step {step:,} ...", moves=True, in_files=False)
        began_s, label = time.monotonic(), f"evaluation  step {step:,}" if self._is_first else ""
        with horovod.heartbeat.section(heartbeat.EVALUATION):
            scores = self._evaluator(step, label)
        scored_s = time.monotonic()
        enough = False
        with horovod.raise_on_all_ranks(), horovod.heartbeat.section(heartbeat.CHECKPOINT):
            if scores is not None and self._saver is not None and self._store is not None:
                of = scores.evaluation
                self._saver.note(step, of.loss, of.bleu, of.chrf)
                keep_s = time.monotonic() - scored_s
                evaluation.write(scores, self._config.run_dir, self._store, self._is_first, keep_s)
            if self._is_first:
                enough = self.early_end.is_enough()
        took_s, before_s = time.monotonic() - began_s, self.evaluation_s
        self.evaluation_s = min(took_s, before_s or took_s)  # the first builds its graph
        return self.stop_request.agreed(enough)
