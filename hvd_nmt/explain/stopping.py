"""When a run has learned enough to end before its last step, from its own records."""

import math
from collections.abc import Sequence
from typing import Literal

from hvd_nmt.checkpoints.names import badness
from hvd_nmt.common.units import count
from hvd_nmt.config import EvaluationConfig
from hvd_nmt.explain import learning
from hvd_nmt.records.record import Evaluation, Run

LOSS_GAIN = 1e-4
"""share of the validation loss by which it must fall to count as a gain"""
_NAMES = {"val_loss": "the validation loss", "bleu": "BLEU", "chrf": "chrF"}

Option = Literal["evaluation.stop_after", "evaluation.stop_when_trained"]
"""the value of the configuration that ends a run"""


def enough(run: Run, config: EvaluationConfig) -> tuple[Option, str] | None:
    """Whether a run ends after its newest evaluation; which option says so, and why, in words."""
    if 0 < config.stop_after <= _without_gain(run.evaluations, config.best_by):
        evaluations = count(config.stop_after, "evaluation")
        name = _NAMES[config.best_by]
        return "evaluation.stop_after", f"{evaluations} in a row brought no gain in {name}"
    if config.stop_when_trained:
        fit = learning.fully_trained(run)  # a curve of losses says little about translations
        if fit.measure == "BLEU" and fit.verdict == "trained":
            gain = learning.GAIN_THAT_COUNTS["BLEU"]
            return (
                "evaluation.stop_when_trained",
                f"twice the steps would surely bring less than {gain:g} BLEU",
            )
    return None


def _without_gain(evaluations: Sequence[Evaluation], best_by: str) -> int:
    """How many of the newest evaluations in a row brought no gain.

    A gain beats the value of the last gain by more than chance: for BLEU and chrF by the half
    width of the 95 % interval, for the validation loss by `LOSS_GAIN` of it.
    """
    best, fruitless = -math.inf, 0
    for evaluation in evaluations:
        if best_by == "val_loss":
            value = evaluation.loss
            margin = LOSS_GAIN * abs(value or 0.0)
        else:
            value = getattr(evaluation, best_by)
            margin = getattr(evaluation, f"{best_by}_margin") or 0.0
        fruitless += 1
        if value is not None and -badness(best_by, value) > best + margin:
            best, fruitless = -badness(best_by, value), 0
    return fruitless
