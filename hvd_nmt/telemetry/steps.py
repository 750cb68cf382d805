"""Where a training step's time goes: input, computing, the slowest rank, the network."""

import functools
import threading
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

_NAP_S, _LATE_S = 0.02, 0.02
"""seconds that the thread of `pause_clock` sleeps, and that a busy host may wake it too late"""


class StepTime(NamedTuple):
    """The wall time of one step, or the mean of several, in seconds; of all ranks, the mean."""

    input_wait_s: float
    """seconds of waiting for a batch"""
    compute_s: float
    """seconds of computing, with the communication that is hidden behind it"""
    straggler_wait_s: float
    """seconds of waiting, with nothing left to compute, for the gradients of the slowest rank"""
    communication_s: float
    """seconds of waiting for the all-reduce though every rank has its gradients"""
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


@functools.cache
def pause_clock() -> Callable[[], float]:
    """Gives the seconds that this process was kept from running since the first call.

    It was stopped, its container had used up its quota, or its processor ran another machine: a nap
    of a thread takes that much longer, and no other thread computes meanwhile.
    """
    seconds = 0.0

    def watch() -> None:
        nonlocal seconds
        while True:
            began_s = time.perf_counter() - time.process_time()
            time.sleep(_NAP_S)
            late_s = time.perf_counter() - time.process_time() - began_s - _NAP_S
            seconds += late_s if late_s > _LATE_S else 0.0

    threading.Thread(target=watch, daemon=True).start()
    return lambda: seconds
