"""Where a training step's time goes: input, computing, the slowest rank, the network."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple


class StepTime(NamedTuple):
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


def step_time(
    total_s: float,
    waited_s: float,
    rank: int,
    rank_ready_s: Sequence[float],
    rank_input_wait_s: Sequence[float],
) -> StepTime:
    """Splits the wall time of one step into its parts, as means over the ranks.

    All ranks leave a step together, with the sum of its gradients, so they begin the next one
    together too. A rank that has its gradients `ready_s` later then waits: until the slowest rank
    has them, that is the fault of that rank; after it, that of the network. No part is below zero:
    clocks of their own can overshoot the total by a rounding.

    Args:
        total_s: seconds this rank's step took.
        waited_s: seconds of it in which this rank had its gradients, but not yet their sum.
        rank: this rank.
        rank_ready_s: for each rank, seconds from the start of its step to its gradients.
        rank_input_wait_s: for each rank, seconds of that in which it had no batch.
    """
    slowest_s = max(rank_ready_s)
    input_wait_s = min(fmean(rank_input_wait_s), total_s)
    left_s = total_s - input_wait_s
    communication_s = min(max(0.0, waited_s - (slowest_s - rank_ready_s[rank])), left_s)
    left_s -= communication_s
    straggler_wait_s = min(slowest_s - fmean(rank_ready_s), left_s)
    compute_s = left_s - straggler_wait_s
    return StepTime(input_wait_s, compute_s, straggler_wait_s, communication_s, total_s)


def mean_time(times: Sequence[StepTime]) -> StepTime:
    """The mean of each part over some steps."""
    return StepTime(*map(fmean, zip(*times, strict=True)))
