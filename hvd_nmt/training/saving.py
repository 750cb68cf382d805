"""When the checkpoints of a run are written while it trains, on all hosts that keep them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from hvd_nmt.checkpoints import records
from hvd_nmt.checkpoints.background import Background
from hvd_nmt.checkpoints.names import SUFFIXES
from hvd_nmt.checkpoints.records import Records
from hvd_nmt.checkpoints.saver import Saver
from hvd_nmt.common.errors import DivergedError, RunError
from hvd_nmt.config import Config
from hvd_nmt.telemetry.events import EventStore
from hvd_nmt.training import heartbeat, horovod
from hvd_nmt.training.horovod import Rank


class Saving:
    """Saves one checkpoint at a time, beside the training where that is wanted.

    What fails on rank 0's host is raised on all ranks, at the latest when the next save begins. A
    copy on another host that cannot be written ends nothing: it is said, and the next save tries
    again.

    Args:
        config: of the run.
        rank: this rank.
        writers: see `HostDirectories`.
        saver: of a rank that writes; None on the others.
        store: gets a line for each save; None except on rank 0.
    """

    def __init__(
        self,
        config: Config,
        rank: Rank,
        writers: tuple[int, ...],
        saver: Saver | None,
        store: EventStore | None,
    ) -> None:
        self._config, self._rank, self._writers = config, rank, writers
        self._saver, self._store = saver, store
        self._records = Records(config.run_dir)
        self.background = saver.background if saver is not None else Background()
        """where a checkpoint may be being written"""
        self._step: int | None = None
        """of the save of which nothing was said yet"""
        self._is_busy, self._in_background = False, False
        """whether something may be under way on some rank; whether that save is, or was"""
        self._waited_s = 0.0
        self._failure = ""
        """why the copy on this host could not be written"""

    def save(self, step: int, *, in_background: bool, read_back: bool = True) -> None:
        """Save the state, which may change as soon as this returns; a collective.

        Args:
            step: steps done.
            in_background: whether training goes on meanwhile, unless the run has that switched off.
            read_back: see `Saver.save`.

        Raises:
            RunError: this save, or the one before, failed on rank 0's host.
            DivergedError: hosts have written different states.
        """
        self.wait(read_back=read_back)
        began_s = time.monotonic()
        self.send_records()
        self._step, self._is_busy = step, True
        self._in_background = in_background and self._config.checkpoints.background
        with (
            horovod.heartbeat.section(heartbeat.CHECKPOINT),
            horovod.raise_on_all_ranks(),
            self._bearing_with_copies(),
        ):
            if self._saver is None:
                pass
            elif self._in_background:
                self._saver.begin(step)
            else:
                self._saver.save(step, read_back=read_back)
        self._waited_s = time.monotonic() - began_s
        if not self._in_background:
            self.wait(read_back=read_back)

    def wait(self, *, read_back: bool = True) -> None:
        """Wait until nothing is under way on any rank; a collective, and none if nothing is.

        Args:
            read_back: whether what is under way is still read back; see `Saver.wait`.

        Raises:
            RunError, DivergedError: as `save`.
        """
        if not self._is_busy:
            return
        self._is_busy = False
        began_s = time.monotonic()
        with (
            horovod.heartbeat.section(heartbeat.CHECKPOINT),
            horovod.raise_on_all_ranks(),
            self._bearing_with_copies(),
        ):
            if self._saver is not None:
                self._saver.wait(read_back=read_back)
        self._waited_s += time.monotonic() - began_s
        if self._step is not None:
            step, self._step = self._step, None
            self._close(step)

    def note(
        self, step: int, val_loss: float, bleu: float, chrf: float, ter: float | None = None
    ) -> None:
        """Note the loss of an evaluation, and keep the model if it is a best one; no collective.

        Args:
            step: steps done; nothing is under way.
            val_loss: validation loss, equal on all ranks.
            bleu: of the dev sentences.
            chrf: of the dev sentences.
            ter: of the dev sentences; None: not computed.

        Raises:
            RunError: that failed on this rank.
        """
        self._is_busy = True
        with self._bearing_with_copies():
            if self._saver is not None:
                self._saver.note_loss(step, val_loss)
                if self._rank.is_first:
                    in_background = self._config.checkpoints.background
                    self._saver.save_best(
                        step, val_loss, bleu, chrf, ter, in_background=in_background
                    )

    def send_records(self) -> None:
        """Have the copies hold what the run has recorded until now; a collective.

        Before each checkpoint, which is then a run with all that came before, and at the end.
        """
        if len(self._writers) == 1:
            return
        with horovod.raise_on_all_ranks():
            changes = self._records.changes() if self._rank.is_first else None
        changes = horovod.gather(changes)[0]
        with self._bearing_with_copies():
            if self._rank.index in self._writers[1:]:
                records.put(self._config.run_dir, changes)

    def _close(self, step: int) -> None:
        """Say how a save went, and compare what the hosts have written."""
        last = self._saver.last if self._saver is not None else None
        written = last if last is not None and last.checkpoint.step == step else None
        complete = 1
        if len(self._writers) > 1:
            sha256 = written and written.checkpoint.manifest.files[SUFFIXES[0]]["sha256"]
            told = horovod.gather([self._rank.host, sha256, self._failure])
            self._failure = ""
            complete = self._compare(step, [told[index] for index in self._writers])
        if self._store is not None and written is not None:
            background_s = written.took_s if self._in_background else 0.0
            line = {"wait_s": self._waited_s, "background_s": background_s, "copies": complete}
            self._store.scalars(step, {}, kind="save", more=line)

    def _compare(self, step: int, told: list[tuple[str, str | None, str]]) -> int:
        """See that the hosts wrote the same; how many did."""
        for host, _, failure in told:
            if failure and self._rank.is_first:
                print(
                    f"copies      {host}: {failure} The run goes on without that copy.", flush=True
                )
        if any(failure for *_, failure in told):
            self._records = Records(self._config.run_dir)  # whatever arrived is sent again
        complete = [(host, sha256) for host, sha256, _ in told if sha256 is not None]
        first, wanted = complete[0]
        for host, sha256 in complete[1:]:
            if sha256 != wanted:
                raise DivergedError(
                    f"The checkpoints of step {step:,} on {first} and {host} differ, so their "
                    "ranks did not hold equal states any more: look for a faulty GPU or memory; "
                    f"the same command goes on from the checkpoint on {first}."
                )
        return len(complete)

    @contextlib.contextmanager
    def _bearing_with_copies(self) -> Iterator[None]:
        """Remember an error of a copy instead of raising it."""
        try:
            yield
        except (RunError, OSError) as error:
            if self._rank.is_first:
                raise
            self._failure = str(error)
