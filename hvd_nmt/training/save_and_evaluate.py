"""Whether a run stops, saves or evaluates after a step: one callback decides all three."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from hvd_nmt.common.errors import Preempted
from hvd_nmt.common.files import write_atomically
from hvd_nmt.config import Config
from hvd_nmt.config.exchange import Joined, is_due
from hvd_nmt.telemetry.events import EventStore, read_metrics
from hvd_nmt.training import evaluation, heartbeat, horovod
from hvd_nmt.training.early_end import EarlyEnd
from hvd_nmt.training.evaluation import Evaluator
from hvd_nmt.training.saving import Saving
from hvd_nmt.training.step_callback import StepCallback
from hvd_nmt.training.stop import StopRequest

BEGUN_FILE = "evaluating.json"
"""in the run directory until an evaluation has ended: its step, and how often it was begun"""
_TIMES_BEGUN = 2
"""how often an evaluation is begun, after which the run goes on without it"""


class SaveAndEvaluate(StepCallback):
    """Saves and evaluates every so many steps and after the last one; stops when a rank was asked.

    On SIGTERM or SIGINT to any rank, all ranks finish the same step, rank 0 saves, and all leave.
    Training goes on while a checkpoint is written; a stop and the end wait for it.
    At a step that has both, the checkpoint comes first. It is written while the evaluation goes on,
    but before the first evaluation of a start: if one ends the run, by its memory or an error, it
    is that, and it costs no step. One that was left out, or did not end, is made when the run
    resumes, before its first step; one that was begun twice and never ended is passed over.

    Args:
        config: of the run.
        start_step: steps done before `fit`.
        evaluator: does the work on all ranks.
        saving: writes checkpoints.
        store: where scores go; None except on rank 0.
        early_end: decides on rank 0 whether the run ends before its last step.
        stop_request: of this rank.
    """

    def __init__(
        self,
        config: Config,
        start_step: int,
        evaluator: Evaluator,
        saving: Saving,
        store: EventStore | None,
        *,
        early_end: EarlyEnd,
        stop_request: StopRequest,
    ) -> None:
        super().__init__(start_step)
        self._config, self._evaluator = config, evaluator
        self._saving, self._store = saving, store
        self._early_end = early_end
        self._stop_request = stop_request
        self._has_evaluated = False
        self._passed_over: list[int] = []

    def make_up(self, sync_every: int) -> bool:
        """Make the evaluation that the last start has left out or did not end; before `fit`.

        Args:
            sync_every: see `Exchange`.

        Returns:
            Whether its scores say that the run ends.

        Raises:
            Preempted: a rank was asked to stop meanwhile.
        """
        with horovod.raise_on_all_ranks():
            begun = _times_begun(self._config.run_dir) if self._store is not None else {}
        never_ended = [step for step, times in begun.items() if times >= _TIMES_BEGUN]
        self._passed_over = horovod.gather(never_ended)[0]
        is_first = self._store is not None
        if not evaluation_is_missing(self._config, self._start_step, is_first, sync_every):
            return self._has_ended()
        self._stop_request.listen()
        stop, ends = self._evaluate(self._start_step)
        if stop and not ends:
            raise _preempted(self._start_step)
        return ends

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Listen to signals."""
        self._stop_request.listen()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Stop listening."""
        self._stop_request.stop_listening()

    def on_failure(self) -> None:
        """Let no launcher interrupt the end; Keras calls nothing after an error."""
        self._stop_request.hold_back()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Tell the others with the next step's all-reduce."""
        if self._stop_request.requested:
            self.model.stop_requested.assign(1.0)
        if self._store is not None and self._early_end.is_out_of_time():
            self.model.end_requested.assign(1.0)

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Decide, alike on all ranks.

        Raises:
            Preempted: a rank was asked to stop; the checkpoint of this step is saved.
        """
        last = step == self._config.training.max_steps
        ends = logs["end"] > 0
        sync_every = self.model.exchange.sync_every
        evaluate = ends or _is_evaluated(self._config, step, sync_every)
        save = last or ends or is_due(step, self._config.checkpoints.every_steps, sync_every)
        # The step's own sum does not know of a signal that came since the step began.
        stop = logs["stop"] > 0 or ((save or evaluate) and self._is_to_stop())
        saved = save or stop
        if saved:
            self._save(step, stop, in_background=not stop)
            stop = stop or (evaluate and self._is_to_stop())  # a save takes seconds
        left_out = evaluate and stop
        if evaluate and not stop:
            stop, enough = self._evaluate(step)
            ends = ends or enough
            if (stop or ends) and not saved:
                self._save(step, stop)
        if left_out or (stop and not (last or ends)):
            self._saving.wait(read_back=False)
            self._stop_request.announce()
            raise _preempted(step)
        self.model.stop_training = ends

    def _has_ended(self) -> bool:
        """Whether the scores of the last start say so, which a kill kept from saying it."""
        with horovod.raise_on_all_ranks():
            is_first = self._store is not None
            enough = is_first and self._early_end.is_enough(self._start_step)
        return bool(horovod.gather(enough)[0])

    def _is_to_stop(self) -> bool:
        return self._stop_request.agreed()[0]

    def _save(self, step: int, stop: bool, *, in_background: bool = False) -> None:
        """Save; when the run stops, the launcher kills it soon."""
        if stop:
            self._stop_request.announce()  # it may be another rank than this one that was asked
        self.model.join(step, Joined.EVERYTHING)
        self._saving.save(step, in_background=in_background, read_back=not stop)

    def _evaluate(self, step: int) -> tuple[bool, bool]:
        """Evaluate on all ranks; rank 0 writes the scores down and keeps the best checkpoints.

        Returns:
            Whether a rank was asked to stop by now, and whether the scores say that the run ends.
        """
        run_dir = self._config.run_dir
        if step in self._passed_over:
            if self._store is not None:
                print(
                    f"evaluation  of step {step:,} was begun {_TIMES_BEGUN} times and never ended: "
                    "the run goes on without it",
                    flush=True,
                )
            return self._stop_request.agreed()
        if not self._has_evaluated:
            self._saving.wait()
        with horovod.raise_on_all_ranks():
            if self._store is not None:
                times = _times_begun(run_dir).get(step, 0) + 1
                text = json.dumps({"step": step, "times": times})
                write_atomically(run_dir / BEGUN_FILE, text + "\n")
        with horovod.heartbeat.section(heartbeat.EVALUATION):
            scores = self._evaluator()
        self._has_evaluated = True
        with horovod.raise_on_all_ranks():
            if self._store is not None:
                (run_dir / BEGUN_FILE).unlink(missing_ok=True)
        self._saving.wait()
        enough = False
        with horovod.raise_on_all_ranks(), horovod.heartbeat.section(heartbeat.CHECKPOINT):
            self._saving.note(step, scores.val_loss, scores.bleu, scores.chrf, scores.ter)
            if self._store is not None:
                samples = self._evaluator.samples(scores)
                # Last: with its scores in the records an evaluation is not made again.
                evaluation.write(scores, step, samples, run_dir, self._store)
                enough = self._early_end.is_enough(step)
        return self._stop_request.agreed(enough)


def evaluation_is_missing(config: Config, step: int, is_first: bool, sync_every: int = 1) -> bool:
    """Whether an evaluation of the step before this start was due and is still to be made.

    Args:
        config: of the run.
        step: steps done.
        is_first: whether this is rank 0, whose files count; all ranks must call this.
        sync_every: see `Exchange`.
    """
    if step == 0 or not _is_evaluated(config, step, sync_every):
        return False
    missing = False
    with horovod.raise_on_all_ranks():
        if is_first:
            lines = read_metrics(config.run_dir)
            missing = step not in {line["step"] for line in lines if line["kind"] == "eval"}
    return horovod.gather(missing)[0]


def _preempted(step: int) -> Preempted:
    return Preempted(
        f"Stopped by a signal after step {step}; the checkpoint is saved: the same command goes on "
        "from here."
    )


def _is_evaluated(config: Config, step: int, sync_every: int) -> bool:
    every_steps = config.evaluation.every_steps
    return step == config.training.max_steps or is_due(step, every_steps, sync_every)


def _times_begun(run_dir: Path) -> dict[int, int]:
    """By its step, how often the evaluation was begun that has not ended."""
    path = run_dir / BEGUN_FILE
    with contextlib.suppress(FileNotFoundError, ValueError, LookupError, TypeError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return {int(content["step"]): int(content["times"])}
    return {}  # none, or somebody wrote into the file
