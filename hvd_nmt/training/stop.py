"""What ends a run before its last step: signals, the clock, and what evaluations say."""

import contextlib
import os
import signal
import time
from operator import attrgetter
from typing import Any

import tensorflow as tf

from hvd_nmt import config as configuration
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common import progress
from hvd_nmt.config import Config
from hvd_nmt.explain import learning
from hvd_nmt.records import metrics
from hvd_nmt.records.record import End
from hvd_nmt.training import horovod
from hvd_nmt.training.resume import LAST_STEP

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STDERR = 2
_SECONDS = 3600


class StopRequest:
    """Whether SIGTERM or SIGINT asked this process to stop, and the line for the reader.

    Python runs a handler between two operations of its own, and a step is one. A second SIGINT then
    ends the process at once, a second SIGTERM does nothing: launchers send it more than once.
    """

    LINE = "stopping    after a signal, once this step is saved; a second Ctrl-C ends it at once\n"

    def __init__(self, announces: bool) -> None:
        self.requested = False
        """whether a signal has asked this rank"""
        self.in_step = False
        """then nothing is said: horovodrun signals when a rank is gone, and the step fails"""
        self._lines = [self.LINE] if announces else []
        self._before: dict[int, Any] = {}

    def listen(self) -> None:
        """From now on signals only ask."""
        self._before = {number: signal.signal(number, self._ask) for number in _SIGNALS}

    def stop_listening(self) -> None:
        """From now on signals do what they did before; harmless when it never listened."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def hold_back(self) -> None:
        """After an error: SIGTERM does nothing any more, and SIGINT what it did before.

        When one rank has ended, the launcher sends SIGTERM to the others, which must not keep the
        first from its sentence. `common.signals.restored` ends this.
        """
        self.stop_listening()
        # Not SIG_IGN, which a process that is started now would inherit.
        signal.signal(signal.SIGTERM, lambda number, frame: None)

    def agreed(self, ends: bool = False) -> tuple[bool, bool]:
        """Whether any rank was asked up to now, and whether any wants to end; for all ranks.

        `ends` says that this rank wants the run to end, with nothing left to do.
        """
        wishes = tf.constant([float(self.requested), float(ends)])
        with horovod.heartbeat.waiting():
            asked, enough = horovod.sum_over_ranks(wishes, name="stop").numpy() > 0
        return bool(asked), bool(enough)

    def announce(self) -> None:
        """Print the line, once. `print` cannot: the signal may have come inside of a `print`."""
        with contextlib.suppress(IndexError, OSError):  # printed already; no one reads any more
            clear = progress.CLEAR if os.isatty(_STDERR) else ""
            os.write(_STDERR, f"{clear}{self._lines.pop()}".encode())

    def _ask(self, number: int, frame: Any) -> None:
        self.requested, horovod.heartbeat.asked = True, number
        if not self.in_step:
            self.announce()
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)


class EarlyStopping:
    """Decides on rank 0 whether the run ends; `trained_s` are seconds of training before."""

    def __init__(self, config: Config, trained_s: float) -> None:
        self._config, self._trained_s = config, trained_s
        self._began_s = time.monotonic()
        self._option = LAST_STEP
        self.because = ""
        """why, in words; "" if the run continues"""

    def is_out_of_time(self) -> bool:
        """Whether all starts together have trained for `training.max_hours`."""
        hours = self._config.training.max_hours
        trained_s = self._trained_s + time.monotonic() - self._began_s
        if 0 < hours * _SECONDS <= trained_s and not self.because:
            self._option = "training.max_hours"
            self.because = f"it has trained for {hours:g} hours"
        return bool(self.because)

    def is_enough(self) -> bool:
        """Whether the newest evaluation in the records is the last."""
        config, run_dir = self._config, self._config.run_dir
        if not (config.evaluation.stop_after or config.evaluation.stop_when_trained):
            return False
        plain, last = configuration.as_plain(config), config.training.max_steps
        records = metrics.records(RunDirectory(run_dir).read_metrics())
        run = metrics.run_of(run_dir, records, max_steps=last, config=plain)
        reason = learning.ends_early(run, config.evaluation)
        if reason is not None:
            self._option, self.because = reason
        return reason is not None

    def end(self, step: int) -> End:
        """What to record after the last step that was done."""
        option, because = self._option, self.because
        if step >= self._config.training.max_steps:
            option, because = LAST_STEP, ""
        value = attrgetter(option)(self._config)
        return End(step, option=option, value=value, because=because)
