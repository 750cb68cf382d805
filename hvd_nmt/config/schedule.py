"""The learning rate of each step: the one place of its formula and of its peak."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hvd_nmt.config.schema import Config


@dataclass(frozen=True)
class Schedule:
    """OpenSeq2Seq's `transformer_policy`, with a cool-down and a cap, as plain numbers.

    Source: Vaswani et al. 2017, eq. 3, counted in updates done, from 0.
    """

    factor: float
    """factor of the whole schedule"""
    width: float
    """d, width of the model"""
    warmup_steps: float
    """w, steps over which the rate rises"""
    cooldown_steps: float = 0
    """last steps, over which the rate falls to 0 in a straight line; 0: none"""
    max_steps: float = math.inf
    """steps of the whole run; a cool-down needs it"""
    cap: float = math.inf
    """highest rate before the cool-down"""

    @staticmethod
    def of(config: Config) -> Schedule:
        """The schedule of a run of this package."""
        training = config.training
        return Schedule(
            training.learning_rate,
            config.model.width,
            training.warmup_steps,
            training.cooldown_steps,
            training.max_steps,
        )

    @property
    def cools_down(self) -> bool:
        """Whether the rate falls to 0 over the last steps."""
        return self.cooldown_steps > 0 and self.max_steps < math.inf

    def rate(self, step: int) -> float:
        """Learning rate of the update that follows `step` updates."""
        update = step + 1
        policy = min(update * self.warmup_steps**-1.5, update**-0.5)
        rate = min(self.factor * self.width**-0.5 * policy, self.cap)
        if not self.cools_down:
            return rate
        return rate * min(1.0, max(0.0, (self.max_steps - step) / self.cooldown_steps))

    def peak(self) -> tuple[int, float]:
        """The highest rate of the run and the update that has it, counted from 1.

        After warm-up the rate only falls; a cool-down or a cap may end its rise before that.
        """
        last = max(1, int(min(self.max_steps, math.ceil(self.warmup_steps))))
        update = max(range(1, last + 1), key=lambda update: self.rate(update - 1))
        return update, self.rate(update - 1)

    def formula(self) -> str:
        """The rate after s updates, with the numbers of this schedule."""
        text = (
            f"{self.factor:g} x {self.width:g}^-0.5 x "
            f"min((s+1) x {self.warmup_steps:g}^-1.5, (s+1)^-0.5)"
        )
        if self.cap < math.inf:
            text = f"min({text}, {self.cap:g})"
        if self.cools_down:
            text += f" x min(1, ({self.max_steps:g} - s) / {self.cooldown_steps:g})"
        return text
