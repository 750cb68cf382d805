"""The learning-rate plot, explained from the configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import numpy as np

from hvd_nmt.config.schedule import Schedule
from hvd_nmt.config.schema import Decay
from hvd_nmt.explain.learning import Points, finite
from hvd_nmt.records.record import Run

_CURVE_POINTS = 300
_SCHEDULE = ("learning_rate", "warmup_steps", "cooldown_steps", "max_steps", "max_learning_rate")


@dataclass(frozen=True)
class RateExplanation:
    """What the plan says of the rate, and what was recorded."""

    schedule: Schedule | None = None
    """that of the run's configuration; None if it does not tell"""
    seen: Points = ()
    curve: Points = ()
    """rate by the formula at some hundred steps from the first to the last of the run"""
    peak_planned: tuple[int, float] | None = None
    peak_seen: tuple[int, float] | None = None
    """step and rate, among the recorded steps"""
    largest_deviation: tuple[int, float] | None = None
    """step, and recorded rate over formula minus 1"""


def explain(run: Run) -> RateExplanation:
    """The formula of the learning rate with the run's numbers, its peak, and what was recorded.

    Step N is the N-th update.
    """
    seen = finite((each.step, each.learning_rate) for each in run.intervals)
    peak_seen = max(seen, key=lambda point: point[1], default=None)
    schedule = _schedule(run)
    if schedule is None:
        return RateExplanation(seen=seen, peak_seen=peak_seen)
    off = [(n, value / rate - 1) for n, value in seen if (rate := schedule.rate(n - 1)) > 0]
    largest = max(off, key=lambda point: abs(point[1]), default=None)
    end = max(run.max_steps or 0, run.steps_done, 1)
    steps = np.unique(np.linspace(1, end, _CURVE_POINTS, dtype=int)).tolist()
    curve = tuple((step, schedule.rate(step - 1)) for step in steps)
    return RateExplanation(schedule, seen, curve, schedule.peak(), peak_seen, largest)


def _schedule(run: Run) -> Schedule | None:
    """That of a run's configuration, foreign ones too; None if a number is missing."""
    training = run.config.get("training", {})
    factor, warmup, cooldown, last, cap = (training.get(name) for name in _SCHEDULE)
    width = training.get("schedule_width", run.config.get("model", {}).get("width"))
    decay = training.get("decay", "transformer_policy")
    if not (factor and warmup and width) or decay not in get_args(Decay):
        return None
    return Schedule(factor, width, warmup, cooldown or 0, last or math.inf, cap or math.inf, decay)
