"""When the checkpoints of a run are written while it trains, in each directory that it has."""

from __future__ import annotations

import time

from hvd_nmt.checkpoints.background import Background
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.telemetry.events import EventStore
from hvd_nmt.training import heartbeat, horovod


class Saving:
    """Saves one checkpoint at a time, beside the training where that is wanted.

    What fails on any host is raised on all ranks, at the latest when the next save begins. `saver`
    is None on a rank that writes no checkpoints, `store` on one without records; `copies` is the
    number of directories that get one.
    """

    def __init__(self, saver: Saver | None, store: EventStore | None, copies: int = 1) -> None:
        self._saver, self._store, self._copies = saver, store, copies
        self.background = saver.background if saver is not None else Background()
        """where a checkpoint may be being written"""
        self._step: int | None = None
        """of the save that was not waited for yet"""
        self._in_background = False
        self._waited_s = 0.0

    def save(self, step: int, *, in_background: bool) -> None:
        """Save the state, which may change as soon as this returns; a collective.

        Raises RunError if this save, or the one before, failed on some host.
        """
        self.wait()
        began_s = time.monotonic()
        self._step, self._in_background = step, in_background
        with horovod.heartbeat.section(heartbeat.CHECKPOINT), horovod.raise_on_all_ranks():
            if self._saver is not None:
                (self._saver.begin if in_background else self._saver.save)(step)
        self._waited_s = time.monotonic() - began_s
        if not in_background:
            self.wait()

    def wait(self) -> None:
        """Wait until nothing is under way on any rank; a collective, and none if nothing is.

        Raises as `save` does.
        """
        if self._step is None:
            return
        step, self._step = self._step, None
        began_s = time.monotonic()
        with horovod.heartbeat.section(heartbeat.CHECKPOINT), horovod.raise_on_all_ranks():
            self.background.wait()
        self._waited_s += time.monotonic() - began_s
        if self._store is not None and self._saver is not None:
            background_s = self._saver.took_s if self._in_background else 0.0
            line = {"wait_s": self._waited_s, "background_s": background_s, "copies": self._copies}
            self._store.scalars(step, {}, kind="save", more=line)

    def note(self, step: int, val_loss: float, bleu: float, chrf: float) -> None:
        """Note the scores of a checkpoint, and keep it if it is a best one; no collective.

        Raises RunError if that failed on this rank.
        """
        if self._saver is not None:
            self._saver.note(step, val_loss, bleu, chrf)
