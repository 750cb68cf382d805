"""What restarts cost a run: steps that were trained again, and time in which none was made."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_nmt.records.record import Launch


@dataclass(frozen=True)
class Restart:
    """From a start that ended to the next one."""

    lost_steps: int | None
    """steps that the next start made again; None: it came to none, or it is not recorded"""
    idle_s: float | None
    """from the last record before the end to the first step after it; None: likewise"""


@dataclass(frozen=True)
class Availability:
    """Of a run as a whole."""

    restarts: tuple[Restart, ...]
    """one for each start but the last"""
    share: float | None
    """of the wall time in which steps were made; None where it was no time"""

    @property
    def lost_steps(self) -> int:
        """In all restarts together."""
        return sum(restart.lost_steps or 0 for restart in self.restarts)


def availability(launches: Sequence[Launch]) -> Availability:
    """Of a run by its starts, in their order; evaluations and checkpoints count as steps.

    A start that came to no step lost none; what the one before it lost, the next one that did
    made again.
    """
    wall_s = max(map(_last_s, launches)) - launches[0].started_s
    made_s = sum(_made_s(launch) for launch in launches)
    return Availability(
        tuple(itertools.starmap(_restart, _pairs(launches))),
        min(1.0, made_s / wall_s) if wall_s > 0 else None,
    )


def _pairs(launches: Sequence[Launch]) -> list[tuple[Launch, Launch | None]]:
    """Each start but the last, with the next one that came to a step."""
    return [
        (launch, next((later for later in launches[n:] if later.first_s is not None), None))
        for n, launch in enumerate(launches[:-1], start=1)
    ]


def _restart(before: Launch, after: Launch | None) -> Restart:
    if before.first_s is None or after is None or after.first_s is None:
        return Restart(None, None)
    reached, resumed = before.last_step, after.resumed_step
    known = reached is not None and resumed is not None
    lost = max(0, (reached or 0) - (resumed or 0)) if known else None
    return Restart(lost, max(0.0, after.first_s - (before.last_s or before.first_s)))


def _made_s(launch: Launch) -> float:
    if launch.first_s is None or launch.last_s is None:
        return 0.0
    return max(0.0, launch.last_s - launch.first_s)


def _last_s(launch: Launch) -> float:
    return launch.ended_s or launch.last_s or launch.started_s
