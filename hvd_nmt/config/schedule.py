"""The learning rate of each step: the one place of its formulas and of its peak."""

import math
from dataclasses import dataclass

from hvd_nmt.config.schema import Config, Decay

FALLS = {
    "transformer_policy": "falls as one over the root of the step",
    "inverse_sqrt": "falls as one over the root of the step",
    "linear": "falls in a straight line to 0 at the end of the run",
    "cosine": "falls along half a cosine to 0 at the end of the run",
    "constant": "stays there",
    "warmup_stable_decay": "stays there",
}
"""what the rate does after the warm-up, as the end of a sentence"""


@dataclass(frozen=True)
class Schedule:
    """A warm-up in a straight line, then one of several decays, with a cool-down and a cap.

    Sources: Vaswani et al. 2017, eq. 3, counted in updates done, from 0 (`transformer_policy`, as
    OpenSeq2Seq calls it); Loshchilov and Hutter 2017 (`cosine`, without restarts); Hu et al. 2024
    (`warmup_stable_decay`).

    A new decay is a value of `Decay`, words in `FALLS`, and a case of `_rate_of_update` and of
    `formula`.
    """

    factor: float
    """factor of the whole schedule with `transformer_policy`; with the others the highest rate"""
    width: float
    """d, width of the model; only `transformer_policy` asks for it"""
    warmup_steps: float
    """w, steps over which the rate rises"""
    cooldown_steps: float = 0
    """last steps, over which the rate falls to 0 in a straight line; 0: none"""
    max_steps: float = math.inf
    """steps of the whole run; a cool-down, `linear` and `cosine` need it"""
    cap: float = math.inf
    """highest rate before the cool-down"""
    decay: Decay = "transformer_policy"
    """what follows the warm-up"""

    @staticmethod
    def of(config: Config) -> "Schedule":
        """The schedule of a run of this package."""
        training = config.training
        return Schedule(
            training.learning_rate, config.model.width, training.warmup_steps,
            training.cooldown_steps, training.max_steps, decay=training.decay,
        )  # fmt: skip

    @property
    def cools_down(self) -> bool:
        """Whether the rate falls to 0 over the last steps."""
        return self.cooldown_steps > 0 and self.max_steps < math.inf

    def rate(self, step: int) -> float:
        """Learning rate of the update that follows `step` updates."""
        rate = min(self._rate_of_update(step + 1), self.cap)
        if not self.cools_down:
            return rate
        return rate * min(1.0, max(0.0, (self.max_steps - step) / self.cooldown_steps))

    def peak(self) -> tuple[int, float]:
        """The highest rate of the run and the update that has it, counted from 1.

        After warm-up no rate rises; a cool-down or a cap may end its rise before that.
        """
        last = max(1, int(min(self.max_steps, math.ceil(self.warmup_steps))))
        update = max(range(1, last + 1), key=lambda update: self.rate(update - 1))
        return update, self.rate(update - 1)

    def cooling_steps(self) -> int:
        """Steps after the highest rate over which the cool-down takes it to 0."""
        return int(max(1, min(self.cooldown_steps, self.max_steps - self.peak()[0])))

    def cool_down(self) -> str:
        """What the cool-down does, as a sentence without its end."""
        falls = "also falls" if FALLS[self.decay].startswith("falls") else "falls"
        return f"over the last {self.cooling_steps():,} steps it {falls} in a straight line to 0"

    def formula(self) -> str:
        """The rate after s updates, with the numbers of this schedule."""
        warmup, left = f"{self.warmup_steps:g}", f"({self.max_steps:g} - s)"
        share_left = f"{left} / {self._falling_steps():g}"
        falls = {
            "inverse_sqrt": f"({warmup} / (s+1))^0.5",
            "linear": share_left,
            "cosine": f"(1 - cos(pi x {share_left})) / 2",
        }.get(self.decay, "1")
        text = f"{self.factor:g} x min((s+1) / {warmup}, {falls})"
        if self.decay == "transformer_policy":
            policy = f"min((s+1) x {warmup}^-1.5, (s+1)^-0.5)"
            text = f"{self.factor:g} x {self.width:g}^-0.5 x {policy}"
        if self.cap < math.inf:
            text = f"min({text}, {self.cap:g})"
        if self.cools_down:
            text += f" x min(1, {left} / {self.cooldown_steps:g})"
        return text

    def _rate_of_update(self, update: int) -> float:
        if self.decay == "transformer_policy":
            policy = min(update * self.warmup_steps**-1.5, update**-0.5)
            return self.factor * self.width**-0.5 * policy
        if update < self.warmup_steps:
            return self.factor * update / self.warmup_steps
        if self.decay == "inverse_sqrt":
            return self.factor * math.sqrt(self.warmup_steps / update)
        if self.decay not in ("linear", "cosine") or self.max_steps == math.inf:
            return self.factor
        left = min(1.0, max(0.0, (self.max_steps + 1 - update) / self._falling_steps()))
        share = left if self.decay == "linear" else (1 - math.cos(math.pi * left)) / 2
        return self.factor * share

    def _falling_steps(self) -> float:
        """Updates from the peak, that one counted, to the end of the run."""
        return max(1.0, self.max_steps + 1 - self.warmup_steps)
