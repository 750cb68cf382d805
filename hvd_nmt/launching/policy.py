"""What is done when the ranks have ended: a pure function of how their starts ended until now."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_nmt.common import errors, signals
from hvd_nmt.common.units import count
from hvd_nmt.launching.culprit import SSH_FAILED

STARTS_WITHOUT_PROGRESS = 5
"""failures in a row after which nothing is started any more"""
LONGEST_PAUSE_S = 300.0
_HOUR_S = 3600.0
_WOULD_FAIL_AGAIN = frozenset(
    kind.exit_code
    for kind in (errors.ConfigError, errors.DataError, errors.RunError, errors.DivergedError)
)
_PASSES = frozenset((errors.Preempted.exit_code, errors.ClusterError.exit_code, SSH_FAILED))
"""exit codes of ranks that may do better the next time, as those that a signal killed"""


@dataclass(frozen=True)
class AttemptEnd:
    """How a start ended."""

    exit_code: int
    progressed: bool
    """whether there is a newer complete checkpoint than before it"""
    time_s: float
    """time of the end, on a clock that is never set"""


@dataclass(frozen=True)
class Decision:
    """What is to be done now."""

    restarts: bool
    exit_code: int
    """exit code of the launcher, where it ends"""
    pause_s: float = 0.0
    """seconds before the ranks are started again"""
    why: str = ""
    """reason, one sentence, for starting nothing any more; "" where the code explains it"""


def decide(
    ends: Sequence[AttemptEnd], restarts_per_hour: int, asked_to_stop: bool = False
) -> Decision:
    """Whether the ranks are started again, and after which pause."""
    code = ends[-1].exit_code
    if code == 0 or code in _WOULD_FAIL_AGAIN:
        return Decision(False, code)
    if asked_to_stop:
        return Decision(False, errors.Preempted.exit_code)
    in_vain = len(list(itertools.takewhile(lambda end: not end.progressed, reversed(ends))))
    if why := _hopeless(code, in_vain, restarts_per_hour):
        return Decision(False, code, why=why)
    wait_s = pause_s(in_vain)
    if len(ends) > restarts_per_hour:  # after each end before this one there was a restart
        wait_s = max(wait_s, ends[-1 - restarts_per_hour].time_s + _HOUR_S - ends[-1].time_s)
    return Decision(True, code, wait_s)


def pause_s(failures: int) -> float:
    """Seconds to wait after so many failures in a row: 0, 0, 2, 4, 8 and so on to 5 minutes."""
    return min(LONGEST_PAUSE_S, 2.0 ** min(failures - 1, 30)) if failures > 1 else 0.0


def _hopeless(code: int, in_vain: int, restarts_per_hour: int) -> str:
    """Why a restart would not help; "" where it may."""
    if restarts_per_hour == 0:
        return "No restart is allowed (--restarts-per-hour 0)."
    if in_vain >= STARTS_WITHOUT_PROGRESS:
        return (
            f"{count(in_vain, 'start')} in a row made no new checkpoint: fix the cause, or save "
            "more often (--checkpoints.every-steps), then run the same command again."
        )
    if in_vain and code not in _PASSES and code < signals.EXIT_CODE_BASE:
        return (
            f"The start ended with code {code}, a defect, before a new checkpoint: another start "
            "would not help."
        )
    return ""
