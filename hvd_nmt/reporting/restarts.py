"""What `hvd_nmt.launch` did for a run: a part of the answer on its duration."""

from __future__ import annotations

from hvd_nmt.common.units import count, duration, percent
from hvd_nmt.explain.availability import Availability, Restart, availability
from hvd_nmt.records.record import Launch, Run
from hvd_nmt.reporting.answer import Table

_MOST_ROWS = 20
HOW = (
    " Restarts: from launch.jsonl. Steps lost are those from the checkpoint that the next start "
    "resumed from to the last one that was logged before the end; steps were made from the start "
    "record of a process to its last one, evaluations and checkpoints included."
)
"""how it was computed, for the end of the answer's own words"""


def evidence(run: Run) -> list[str]:
    """Sentences on starts, restarts and the time in which steps were made."""
    if not run.launches:
        return []
    found = availability(run.launches)
    text = f"hvd_nmt.launch started the ranks {count(len(run.launches), 'time')}"
    if found.restarts:
        idle_s = sum(restart.idle_s or 0.0 for restart in found.restarts)
        text += (
            f": {count(found.lost_steps, 'step')} had to be trained again, and {duration(idle_s)} "
            "passed from the last record before an end to the first step after it"
        )
    if found.share is not None:
        text += f". Steps were made in {percent(found.share)} of the time since its first start"
    return [f"{text}."]


def tables(run: Run) -> tuple[Table, ...]:
    """The newest starts, if there was a restart."""
    if len(run.launches) < 2:
        return ()
    found = availability(run.launches)
    rows = _rows(run, found)[-_MOST_ROWS:]
    newest = f", the newest {_MOST_ROWS}" if len(run.launches) > _MOST_ROWS else ""
    head = ("start", "where", "steps", "ended", "steps lost", "to the next step")
    return (Table(f"Starts by hvd_nmt.launch{newest}", head, tuple(rows)),)


def _rows(run: Run, found: Availability) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    restarts = [*found.restarts, Restart(None, None)]
    for number, (launch, restart) in enumerate(zip(run.launches, restarts, strict=True), start=1):
        where = ", ".join(f"{host}:{ranks}" for host, ranks in launch.ranks_by_host.items())
        if launch.left_out:
            where += f" (without {', '.join(launch.left_out)})"
        steps = "none"
        if launch.last_step is not None and launch.resumed_step is not None:
            steps = f"{launch.resumed_step + 1:,} to {launch.last_step:,}"
        lost = "" if restart.lost_steps is None else f"{restart.lost_steps:,}"
        idle = "" if restart.idle_s is None else duration(restart.idle_s)
        is_newest = number == len(run.launches)
        rows.append((str(number), where, steps, _end(launch, run.finished, is_newest), lost, idle))
    return rows


def _end(launch: Launch, finished: bool, is_newest: bool) -> str:
    """Without the launcher the newest start may be done before an end of it is recorded."""
    if launch.exit_code == 0 or (launch.ended_s is None and finished and is_newest):
        return "done"
    if launch.ended_s is None:
        return "not recorded yet" if is_newest else "its launcher was killed"
    said = launch.sentence.rpartition("hvd_nmt.train: ")[2]
    return f"code {launch.exit_code}" + (f": {said}" if said else "")
