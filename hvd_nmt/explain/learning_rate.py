"""The learning-rate plot, explained from the configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hvd_nmt.explain.learning import Points, finite, number
from hvd_nmt.records.record import Run

_SCHEDULE = ("learning_rate", "warmup_steps", "cooldown_steps", "max_steps", "max_learning_rate")


@dataclass(frozen=True)
class Warmup:
    """What the plan says of the rate, and what was recorded."""

    sentences: tuple[str, ...]
    formula: str | None = None
    """with the run's numbers; None if the configuration does not tell"""
    planned: Points = ()
    """rate of each recorded step by the formula; step N is the N-th update"""
    peak_planned: tuple[int, float] | None = None
    peak_seen: tuple[int, float] | None = None
    """step and rate, among the recorded steps"""
    largest_deviation: tuple[int, float] | None = None
    """step, and recorded rate over formula minus 1"""


def explain(run: Run) -> Warmup:
    """Explains the learning-rate plot: the formula with the run's numbers, its peak, what was seen.

    Args:
        run: with `training.learning_rate`, `training.warmup_steps` and `model.width` (or
            `training.schedule_width`) in its configuration; else only what was seen is told.

    Returns:
        The explanation.

    Source: Vaswani et al. 2017, eq. 3, counted as OpenSeq2Seq's `transformer_policy` does.
    """
    seen = finite((each.step, each.learning_rate) for each in run.intervals)
    peak_seen = max(seen, key=lambda point: point[1], default=None)
    training = run.config.get("training", {})
    factor, warm, cooldown, last, cap = (number(training.get(name)) for name in _SCHEDULE)
    width = number(training.get("schedule_width", run.config.get("model", {}).get("width")))
    if not (factor and warm and width) or min(factor, warm, width) < 0:
        unknown = "The configuration does not tell the schedule of the learning rate."
        return Warmup((unknown,), peak_seen=peak_seen)
    formula = f"{factor:g} x {width:g}^-0.5 x min((s+1) x {warm:g}^-1.5, (s+1)^-0.5)"
    words = (
        f"It rises in a straight line over {warm:,.0f} steps and then falls as one over the root "
        "of the step"
    )
    if cap:
        formula = f"min({formula}, {cap:g})"
    if cooldown and last:
        formula += f" x min(1, ({last:g} - s) / {cooldown:g})"
        words += f"; over the last {cooldown:,.0f} steps it also falls in a straight line to 0"

    def rate(step: int) -> float:
        value = factor * width**-0.5 * min(step * warm**-1.5, step**-0.5)
        left = (last - step + 1) / cooldown if cooldown and last else 1.0
        return min(value, cap or math.inf) * min(1.0, max(0.0, left))

    end = int(min(last or math.inf, math.ceil(warm)))
    peak = max(((step, rate(step)) for step in range(1, end + 1)), key=lambda point: point[1])
    planned = tuple((step, rate(step)) for step, _ in seen)
    off = [(step, value / rate(step) - 1) for step, value in seen if rate(step) > 0]
    largest = max(off, key=lambda point: abs(point[1]), default=None)
    compared = "No learning rate was recorded to compare with."
    if peak_seen is not None and largest is not None:
        compared = (
            f"The highest recorded rate is {peak_seen[1]:.3e}, in step {peak_seen[0]:,}. The "
            f"{len(seen)} recorded rates deviate from the formula by {abs(largest[1]):.1e} of it "
            f"at most (step {largest[0]:,})."
        )
    explained = f"Rate of the update after s updates: {formula}. {words}."
    peaked = f"By it the rate peaks at {peak[1]:.3e} in step {peak[0]:,}."
    return Warmup((explained, peaked, compared), formula, planned, peak, peak_seen, largest)
