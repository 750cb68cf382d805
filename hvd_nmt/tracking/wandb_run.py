"""A run in Weights & Biases; where it is, the library's own environment variables say.

The library wants its own count of steps to grow, and drops what comes for an earlier one. So the
run's step is a value of its own, by which all charts are drawn.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import wandb

from hvd_nmt.tracking.tracked_run import Line, TrackedRun, scalars, texts

_STEP = "step"
_LASTS_AFTER_S = 20.0
"""measured with version 0.31: what is 6 s old is lost with the machine, what is 16 s old is not"""


@final
class WandbRun(TrackedRun):
    """See `TrackedRun`.

    Args:
        run_dir: run directory, whose name is that of a new run, and which holds the library's
            files where WANDB_DIR names no other place.
        run_id: of the run to go on with; None: a new one.
    """

    lasts_after_s = _LASTS_AFTER_S

    def __init__(self, run_dir: Path, run_id: str | None) -> None:
        self._run = wandb.init(
            id=run_id,
            resume="allow",
            name=None if "WANDB_NAME" in os.environ else run_dir.name,
            dir=os.environ.get("WANDB_DIR", str(run_dir)),
            reinit="return_previous",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.run_id = self._run.id
        self._run.define_metric("*", step_metric=_STEP)

    def describe(self, config: Mapping[str, Any], files: Sequence[Path]) -> None:
        """The configuration can be changed there."""
        self._run.config.update(dict(config), allow_val_change=True)
        self._save(files)

    def send(self, lines: Sequence[Line]) -> None:
        """Each line is a row of the run's history."""
        for line in lines:
            values: dict[str, Any] = dict(scalars(line))
            if line["kind"] == "text":
                values = {
                    tag: wandb.Html(f"<pre>{html.escape(text)}</pre>")
                    for tag, text in texts(line).items()
                }
            self._run.log({_STEP: line["step"], **values})

    def end(self, finished: bool, report: Path | None) -> None:
        """Also sends what the library still holds, or leaves it in its own files."""
        self._save([report] if report is not None else [])
        self._run.finish(exit_code=0 if finished else 1)

    def _save(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self._run.save(str(path), base_path=str(path.parent), policy="now")
