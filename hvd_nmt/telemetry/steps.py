"""Where a training step's time goes: input, computing, the slowest rank, the network."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import final


def step_time(
    total_s: float,
    waited_s: float,
    rank: int,
    rank_ready_s: Sequence[float],
    rank_input_wait_s: Sequence[float],
) -> "StepTime":
    """Splits the wall time of one step into its parts, as means over the ranks.

    All ranks leave a step together, with the sum of its gradients, so they begin the next one
    together too. A rank that has its gradients `ready_s` later then waits: until the slowest rank
    has them, that is the fault of that rank; after it, that of the network. No part is below zero:
    clocks of their own can overshoot the total by a rounding.

    Args:
        total_s: seconds this rank's step took.
        waited_s: seconds of it in which this rank had its gradients, but not yet their sum.
        rank_ready_s: for each rank, seconds from the start of its step to its gradients.
        rank_input_wait_s: for each rank, seconds of that in which it had no batch.
    """
    ranks, slowest_s = len(rank_ready_s), max(rank_ready_s)
    communication_s = max(0.0, waited_s - (slowest_s - rank_ready_s[rank]))
    straggler_wait_s = slowest_s - sum(rank_ready_s) / ranks
    input_wait_s = sum(rank_input_wait_s) / ranks
    left_s = total_s
    parts = []
    for part_s in (input_wait_s, communication_s, straggler_wait_s):
        parts.append(min(part_s, left_s))
        left_s -= parts[-1]
    return StepTime(parts[0], left_s, parts[2], parts[1], total_s)


@final
@dataclass(frozen=True)
class StepTime:
    """The wall time of one step, or the mean of several, in seconds; of all ranks, the mean."""

    input_wait_s: float
    """waiting for a batch"""
    compute_s: float
    """computing, with the communication that is hidden behind it"""
    straggler_wait_s: float
    """waiting, with nothing left to compute, for the gradients of the slowest rank"""
    communication_s: float
    """waiting for the all-reduce though every rank has its gradients"""
    total_s: float
    """wall time from the end of the step before to the end of this one"""


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
        """Gives the mean of each part since the last call, None without a step, and starts over."""
        times, self._times = self._times, []
        if not times:
            return None
        return StepTime(
            *(sum(part) / len(times) for part in zip(*map(astuple, times), strict=True))
        )
