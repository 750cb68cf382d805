"""How a run ends before its last step: one sentence, and a report that outlives the ranks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from hvd_nmt.checkpoints.background import Background
from hvd_nmt.checkpoints.find import newest_first
from hvd_nmt.common.errors import ClusterError, reported
from hvd_nmt.config import Config
from hvd_nmt.telemetry.events import METRICS_FILE
from hvd_nmt.training import horovod
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.stop import StopRequest

WriteReport = Callable[[Path, bool], None]
"""gets the run directory, and whether a process of its own is to do it, which outlives this one"""


_SAVE_S = 2.0
"""for a save that is under way, of the 5 s until horovodrun kills who has not spoken"""


class Ending:
    """What a rank says and does when the run ends before its last step.

    horovodrun kills its ranks 5 s after one has ended, and a report takes as long: with several
    ranks it is left to a process of its own.

    Args:
        config: of the run.
        rank: this rank.
        write_report: see `WriteReport`.
    """

    def __init__(self, config: Config, rank: Rank, write_report: WriteReport) -> None:
        self.step = 0
        """steps of the run that are done"""
        self.background = Background()
        """where a checkpoint may be being written"""
        self.stop_request = StopRequest(announces=rank.is_first)
        self._config, self._rank, self._write_report = config, rank, write_report
        self._reported = False
        self._leaving = threading.Lock()

    def report(self, stopped: bool) -> None:
        """Write the report if one is wanted; `stopped`: the run did not come to its last step."""
        if self._config.telemetry.report and not self._reported:
            self._reported = True
            self._write_report(self._config.run_dir, stopped and self._rank.size > 1)

    def outlook(self) -> str:
        """The end of the sentence on a lost rank: where the run ends and how it goes on."""
        step = f"the run ends after step {self.step:,}" if self.step else "the run ends"
        is_known = self.background.has_ended(_SAVE_S)
        checkpoints = newest_first(self._config.run_dir)
        if not is_known:
            last = "the last checkpoint"
        elif checkpoints:
            last = f"the checkpoint of step {checkpoints[0].step:,}"
        elif self._rank.is_first:
            return f"{step}, before its first checkpoint; the same command begins again."
        else:
            last = "the last checkpoint"
        return f"{step}; the same command goes on from {last}."

    def leave(self, error: ClusterError) -> NoReturn:
        """End this process because a rank was lost, whatever its main thread waits for.

        The next rank speaks where the first is the one that is gone.
        """
        self._leaving.acquire()  # for good: of two threads that come here, one ends both
        speaks = horovod.speaks_for_lost_rank(self._rank)
        with reported("hvd_nmt.train", speak=speaks):
            raise error.of_all_ranks()
        horovod.leave_peers()
        if speaks and (self._config.run_dir / METRICS_FILE).exists():
            self.report(stopped=True)
        self.background.has_ended()
        os._exit(error.exit_code)
