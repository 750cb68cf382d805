"""A run in MLflow; where it is, MLflow's own environment variables say.

MLflow keeps every value it was ever given, also two of one step, and offers no way to take one
back. So what a run has there is asked for first, and no step is sent a second time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import mlflow
from mlflow.entities import Metric, Param, RunTag

from hvd_nmt.tracking.tracked_run import Line, TrackedRun, scalars, texts

_METRICS, _PARAMS = 1000, 100
"""values that MLflow takes in one request"""


@final
class MlflowRun(TrackedRun):
    """See `TrackedRun`.

    Args:
        run_dir: run directory, whose name is that of a new run.
        run_id: of the run to go on with; None: a new one.
    """

    def __init__(self, run_dir: Path, run_id: str | None) -> None:
        if run_id is None:
            name = None if "MLFLOW_RUN_NAME" in os.environ else run_dir.name
            # Of an attempt that failed after it, the run is still there.
            active = mlflow.active_run() or mlflow.start_run(
                run_name=name, log_system_metrics=False
            )
            run_id = active.info.run_id
        self.run_id = run_id
        self._client = mlflow.MlflowClient()
        self._client.update_run(run_id, status="RUNNING")
        self._last_steps = {
            tag: max((m.step for m in self._client.get_metric_history(run_id, tag)), default=-1)
            for tag in self._client.get_run(run_id).data.metrics
        }

    def describe(self, config: Mapping[str, Any], files: Sequence[Path]) -> None:
        """A parameter cannot change in MLflow, so a changed value becomes a tag."""
        known = self._client.get_run(self.run_id).data.params
        wanted = {name: str(value) for name, value in config.items()}
        new = [Param(name, value) for name, value in wanted.items() if name not in known]
        for at in range(0, len(new), _PARAMS):
            self._client.log_batch(self.run_id, params=new[at : at + _PARAMS])
        changed = [RunTag(name, text) for name, text in wanted.items()
                   if known.get(name, text) != text]  # fmt: skip
        self._client.log_batch(self.run_id, tags=changed)
        for path in files:
            self._store(self._client.log_artifact, str(path))

    def send(self, lines: Sequence[Line]) -> None:
        """Values of a tag at steps up to the last that is there are left out."""
        metrics = [
            Metric(tag, value, int(line["time_s"] * 1000), line["step"])
            for line in lines if line["kind"] != "text"
            for tag, value in scalars(line).items() if line["step"] > self._last_steps.get(tag, -1)
        ]  # fmt: skip
        for at in range(0, len(metrics), _METRICS):
            self._client.log_batch(self.run_id, metrics=metrics[at : at + _METRICS])
        for line in lines:
            if line["kind"] == "text":
                for tag, text in texts(line).items():
                    self._store(self._client.log_text, text, f"{tag}/step-{line['step']}.md")

    def end(self, finished: bool, report: Path | None) -> None:
        """The report is an artifact."""
        if report is not None:
            self._store(self._client.log_artifact, str(report))
        self._client.set_terminated(self.run_id, "FINISHED" if finished else "KILLED")

    def _store(self, store: Callable[..., None], *what: str) -> None:
        """Files go elsewhere than values, often to a place that needs a key: values go on."""
        try:
            store(self.run_id, *what)
        except Exception as error:
            self.takes_no_files = error
