"""Which sentences the steps were fed: what proves that a run saw each exactly once in an epoch."""

from __future__ import annotations

from typing import Any

from hvd_nmt.data import sentence_sum
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.mixed_epochs import MixedEpochs
from hvd_nmt.data.sentence_sum import SentenceSum
from hvd_nmt.telemetry.events import EventStore
from hvd_nmt.training.step_callback import StepCallback

SENTENCES = "sentences"
"""kind of a line, and the field of it and of each logged interval"""
LEFT_OUT = "left_out"
"""field for the sentences of steps that changed no weight"""
PLANNED = "planned"
"""kind of a line that says which sentences an epoch of several corpora is to have"""


class SentenceLog(StepCallback):
    """Adds up, epoch by epoch, the sentences that all ranks were fed since it was last asked.

    Those of steps whose updates are left out are counted by themselves.

    The line of a logged interval takes them. A run that resumes forgets the lines after its
    checkpoint, so at each checkpoint `close` writes down what no interval has taken yet.

    Args:
        start_step: steps done before `fit`.
        plan: of the batches.
        store: where values go; None except on rank 0.
    """

    def __init__(self, start_step: int, plan: BatchPlan, store: EventStore | None) -> None:
        super().__init__(start_step)
        self._plan, self._store = plan, store
        self._sums: dict[str, dict[int, SentenceSum]] = {}

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """Add those of a step to its epoch."""
        if self._store is not None:
            at = self._plan.position(step - 1)
            epoch = at.epoch + 1
            if self._plan.mixture is not None and at.step == 0:
                self._write_plan(self._plan.mixture, step, epoch)
            sums = self._sums.setdefault(LEFT_OUT if logs["left_out"] else SENTENCES, {})
            sums[epoch] = sums.get(epoch, SentenceSum()).plus(logs["sentences"])

    def take(self) -> dict[str, Any]:
        """The fields of a line: count and digest by epoch, from 1; begins anew."""
        fields = {
            name: {str(epoch): sentences.record() for epoch, sentences in sums.items()}
            for name, sums in self._sums.items()
        }
        self._sums.clear()
        return fields

    def _write_plan(self, mixture: MixedEpochs, step: int, epoch: int) -> None:
        """At its first step, write down which sentences an epoch, from 1, is to have."""
        assert self._store is not None
        planned = sentence_sum.of(mixture.draw(epoch - 1).sentences)
        of_epoch = {
            "number": epoch,
            "steps": mixture.place(epoch - 1).steps,
            "epoch_sentences": planned.record(),
        }
        self._store.scalars(step, {}, kind=PLANNED, more=of_epoch)

    def close(self, step: int) -> None:
        """Write down what no interval has taken yet; before the checkpoint of this step."""
        if self._store is not None and self._sums:
            self._store.scalars(step, {}, kind=SENTENCES, more=self.take())
