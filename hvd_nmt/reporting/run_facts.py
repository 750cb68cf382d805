"""A recorded run with what is worked out of its record: the base of all answers."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import final

from hvd_nmt.checkpoints import contents
from hvd_nmt.common.errors import UserError
from hvd_nmt.explain import bottleneck, durations
from hvd_nmt.records.record import Run
from hvd_nmt.reporting import phrases

_PATIENCE_S = 600.0  # longest silence, as in an evaluation, of a run that continues


class RunState(StrEnum):
    """Whether a run continues."""

    RUNNING = "running"
    FINISHED = "finished"
    STOPPED = "stopped"
    """ended before its last step, with a record of it"""
    SILENT = "silent"
    """ended without a record of its end"""
    NO_CLOCK = "no clock"


@final
@dataclass(frozen=True)
class RunFacts:
    """A run, and what follows from its record, computed at the first use."""

    record: Run
    now_s: float
    """unix time of the report"""
    has_ended: bool = False
    """whether the caller knows that the run has ended, finished or not"""

    @cached_property
    def verdict(self) -> bottleneck.Verdict:
        """What bound the steps, with its numbers and what would make them shorter."""
        return bottleneck.verdict(self.record)

    @cached_property
    def sentence(self) -> str:
        """The verdict in words, with its numbers."""
        longer = phrases.longer_than_steps(self.record)
        return longer + phrases.sentence(self.verdict, self.record)

    @property
    def silent_s(self) -> float | None:
        """Seconds since the last sign of life; None without a clock."""
        last_s = durations.last_record_s(self.record)
        return None if last_s is None else max(0.0, self.now_s - last_s)

    @property
    def state(self) -> RunState:
        """Whether the run continues."""
        if self.record.finished:
            return RunState.FINISHED
        if self.has_ended or self.record.stopped:
            return RunState.STOPPED
        lives = self.record.locked
        if lives is None and self.silent_s is not None:
            lives = self.silent_s <= _PATIENCE_S
        if lives is None:
            return RunState.NO_CLOCK
        return RunState.RUNNING if lives else RunState.SILENT

    @cached_property
    def anatomy(self) -> contents.Anatomy | str:
        """The newest checkpoint, taken apart; without one a sentence with the reason."""
        path = self.record.path
        # OpenSeq2Seq's folder of checkpoints, next to its log, has any name, often this one.
        for folder in [path] if path.is_dir() else [path.parent, path.parent / "checkpoint"]:
            try:
                if prefixes := contents.readable(folder):
                    return contents.read(prefixes[-1])
            except UserError as error:
                return str(error)
            except OSError as error:  # a run that continues removes its older checkpoints
                return f"Cannot read {error.filename or folder} ({error.strerror or error})."
        if self.record.source == "hvd_nmt":
            return f"{path} has none yet; the first is written at checkpoints.every_steps."
        return "no checkpoint is next to the log; copy its files (*.index, *.data-*) there."
