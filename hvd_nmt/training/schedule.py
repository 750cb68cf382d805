"""Callbacks count the steps of the run; the first of them sets the learning rate of each."""

from __future__ import annotations

from typing import Any

import tf_keras as keras

from hvd_nmt.config import Config
from hvd_nmt.training.optimizer import transformer_policy


class StepCallback(keras.callbacks.Callback):
    """Base of callbacks that count the steps of the run, not of this `fit`.

    Args:
        start_step: steps done before `fit`.
    """

    def __init__(self, start_step: int) -> None:
        super().__init__()
        self._start_step = start_step

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Call `after_step` with the number of steps done."""
        self.after_step(self._start_step + batch + 1, logs or {})

    def after_step(self, step: int, logs: dict[str, Any]) -> None:
        """What to do after a step."""


class WarmupSchedule(StepCallback):
    """Sets the learning rate before each step, a pure function of the step."""

    def __init__(self, config: Config, start_step: int) -> None:
        super().__init__(start_step)
        self._config = config

    def rate(self, step: int) -> float:
        """Learning rate of the update that follows `step` updates."""
        training = self._config.training
        rate = transformer_policy(
            step, training.learning_rate, self._config.model.width, training.warmup_steps
        )
        left = training.max_steps - step
        return rate * min(1.0, left / training.cooldown_steps) if training.cooldown_steps else rate

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Set the rate."""
        self.model.optimizer.learning_rate.assign(self.rate(self._start_step + batch))
