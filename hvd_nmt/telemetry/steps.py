"""Where a training step's time goes: input, computing, the slowest rank, the network."""

import threading
import time
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple, final

_NAP_S, _LATE_S = 0.02, 0.02
"""how long the thread of `Pauses` sleeps, and by how much a busy host may wake it too late"""


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
    total_s: float, waited_s: float, rank: int, ready_s: Sequence[float],
    input_wait_s: Sequence[float],
) -> StepTime:  # fmt: skip
    """Splits the `total_s` of one step into its parts, as means over the ranks.

    All ranks leave a step together, with the sum of its gradients, so they begin the next one
    together too. Each then has no batch for its `input_wait_s`, and `ready_s` after the beginning
    its gradients. This `rank` waited `waited_s` for their sum: until the slowest rank has its own,
    that is the fault of that rank; after it, that of the network. No part is below zero: clocks of
    their own can overshoot the total by a rounding.
    """
    slowest_s, input_s = max(ready_s), min(fmean(input_wait_s), total_s)
    left_s = total_s - input_s
    communication_s = min(max(0.0, waited_s - (slowest_s - ready_s[rank])), left_s)
    left_s -= communication_s
    straggler_wait_s = min(slowest_s - fmean(ready_s), left_s)
    return StepTime(input_s, left_s - straggler_wait_s, straggler_wait_s, communication_s, total_s)


@final
class Pauses:
    """Notes in a thread how long this process was kept from running: a nap takes that much longer.

    It was stopped, its container had used up its quota, or its processor ran another machine.
    """

    def __init__(self) -> None:
        self._seconds, self._taken_s = 0.0, 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def taken_s(self) -> float:
        """Seconds since the call before."""
        before_s, self._taken_s = self._taken_s, self._seconds
        return self._taken_s - before_s

    def _watch(self) -> None:
        while True:
            began_s = time.perf_counter()
            time.sleep(_NAP_S)
            late_s = time.perf_counter() - began_s - _NAP_S
            self._seconds += late_s if late_s > _LATE_S else 0.0
