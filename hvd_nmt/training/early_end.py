"""Why a run ends before its last step: no gain, fully trained, or out of time."""

from __future__ import annotations

import time
from functools import reduce
from typing import Any

from hvd_nmt import config as configuration
from hvd_nmt.config import Config
from hvd_nmt.explain import stopping
from hvd_nmt.records import metrics
from hvd_nmt.records.record import Run
from hvd_nmt.telemetry.events import read_metrics
from hvd_nmt.training import horovod

_SECONDS = 3600
_LAST_STEP = "training.max_steps"


class EarlyEnd:
    """Decides on rank 0 whether the run ends; how the others hear of it is the callers' matter.

    `trained_s` are seconds of training before this start.
    """

    def __init__(self, config: Config, trained_s: float) -> None:
        self._config, self._trained_s = config, trained_s
        self._began_s = time.monotonic()
        self._option = _LAST_STEP
        self.because = ""
        """why, in words; "" if the run goes on"""

    def is_out_of_time(self) -> bool:
        """Whether all starts together have trained for `training.max_hours`."""
        hours = self._config.training.max_hours
        trained_s = self._trained_s + time.monotonic() - self._began_s
        if 0 < hours * _SECONDS <= trained_s and not self.because:
            self._option = "training.max_hours"
            self.because = f"it has trained for {hours:g} hours"
        return bool(self.because)

    def is_enough(self, step: int) -> bool:
        """Whether the newest evaluation in the records is of this step, and the last."""
        config, run_dir = self._config, self._config.run_dir
        if not (config.evaluation.stop_after or config.evaluation.stop_when_trained):
            return False
        lines = read_metrics(run_dir)
        evaluations = metrics.evaluations(lines)
        if not evaluations or evaluations[-1].step != step:
            return False
        run = Run(
            run_dir.name, run_dir, "hvd_nmt", max_steps=config.training.max_steps,
            config=configuration.as_plain(config), intervals=metrics.intervals(lines),
            evaluations=evaluations,
        )  # fmt: skip
        found = stopping.enough(run, config.evaluation)
        if found is not None:
            self._option, self.because = found
        return found is not None

    def record(self, step: int) -> dict[str, Any]:
        """The fields of the line `end`, after the last step that was done."""
        option, because = self._option, self.because
        if step >= self._config.training.max_steps:
            option, because = _LAST_STEP, ""
        value = _value_of(self._config, option)
        return {"steps": step, "reason": option, "value": value, "because": because}


def ended_before(config: Config, step: int) -> str:
    """One sentence if an earlier start has ended the run by an option that is unchanged; else "".

    A collective: the records of rank 0 count.
    """
    sentence = ""
    with horovod.raise_on_all_ranks():
        lines = [line for line in read_metrics(config.run_dir) if line["kind"] in ("start", "end")]
        end = lines[-1] if lines else {}
        option = end.get("reason", _LAST_STEP)
        ended = option != _LAST_STEP and end["steps"] == step
        if ended and _value_of(config, option) == end["value"]:
            sentence = (
                f"{config.run_dir} has stopped at step {step:,} because {end['because']}; to go "
                f"on, change {option}, which is {end['value']}."
            )
    return str(horovod.gather(sentence)[0])


def _value_of(config: Config, option: str) -> Any:
    return reduce(getattr, option.split("."), config)
