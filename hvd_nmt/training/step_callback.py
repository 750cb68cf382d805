"""The base of callbacks that count the steps of a run."""

from __future__ import annotations

from typing import Any

import tf_keras as keras


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
