"""Where a training step's time goes: waiting for input, computing, waiting for the network."""

from dataclasses import dataclass
from typing import final


def step_time(total_s: float, input_wait_s: float, communication_s: float) -> "StepTime":
    """Splits one step's wall time; what is neither input nor exposed communication is computation.

    Args:
        total_s: seconds from the end of the step before to the end of this one.
        input_wait_s: seconds in which the step had no batch.
        communication_s: seconds of *exposed* communication, that is, all-reduce during which this
            rank had nothing to compute. Communication hidden behind the backward pass is not in it.

    Returns:
        The split. `compute_s` is never below zero: the parts are read from clocks of their own and
        can overshoot the total by a rounding.

    Raises:
        ValueError: if one of the three is negative or not a number.
    """
    if not (total_s >= 0 and input_wait_s >= 0 and communication_s >= 0):
        raise ValueError(
            f"A step cannot take total_s={total_s}, input_wait_s={input_wait_s}, "
            f"communication_s={communication_s}: each must be a number of seconds from 0 on."
        )
    compute_s = max(0.0, total_s - input_wait_s - communication_s)
    return StepTime(input_wait_s, compute_s, communication_s, total_s)


@final
@dataclass(frozen=True)
class StepTime:
    """The wall time of one step, or the mean of several, in seconds."""

    input_wait_s: float
    """waiting for a batch"""
    compute_s: float
    """computing, with the communication that is hidden behind it"""
    communication_s: float
    """waiting for the all-reduce with nothing left to compute"""
    total_s: float
    """from the end of the step before to the end of this one"""


@final
class StepTimeMeans:
    """Collects the times of steps and gives their means since they were last taken."""

    def __init__(self) -> None:
        self._times: list[StepTime] = []

    def __len__(self) -> int:
        """The number of steps since the means were last taken."""
        return len(self._times)

    def add(self, time: StepTime) -> None:
        """Counts one step in."""
        self._times.append(time)

    def take(self) -> StepTime | None:
        """Gives the means since the last call and starts over.

        Returns:
            The mean of each part in seconds, or None when no step was added since.
        """
        times, self._times = self._times, []
        if not times:
            return None
        count = len(times)
        return StepTime(
            input_wait_s=sum(time.input_wait_s for time in times) / count,
            compute_s=sum(time.compute_s for time in times) / count,
            communication_s=sum(time.communication_s for time in times) / count,
            total_s=sum(time.total_s for time in times) / count,
        )
