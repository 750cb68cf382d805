"""A run shown in MLflow or Weights & Biases while it trains.

Their own environment variables say where; no address is printed, as it may hold a password. A
thread talks to the library, so that no server can slow or end a step. A run that resumes is found
again by its own id. What a server does not take is in metrics.jsonl.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import threading
import time
from collections.abc import Mapping
from typing import Protocol, final

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import Config, as_plain
from hvd_nmt.config.serialization import flat

_LIMIT_S = 15
"""for a library to begin, to take a value, and for what it has not taken when the run ends"""
_RUN_TAG = "hvd_nmt.run_id"


@final
class Tracker:
    """Does nothing if `telemetry.tracker` is none, or on another rank; a context manager.

    ConfigError: the library is not installed.
    """

    def __init__(self, config: Config, is_first: bool) -> None:
        self._name = config.telemetry.tracker if is_first else "none"
        self._config, self._run_id = config, ""
        self._waiting: queue.SimpleQueue[tuple[int, float, dict[str, float]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._send, name="tracker", daemon=True)
        self._finished = False
        if self._name != "none":
            spec = importlib.util.find_spec(self._name)
            if spec is None or spec.origin is None:  # without: a folder of that name, no more
                raise ConfigError(
                    f"telemetry.tracker {self._name} needs a package that is not installed here: "
                    f"run pip install 'hvd_nmt[{self._name}]', or leave telemetry.tracker at none."
                )

    def start(self, run_id: str) -> None:
        """Begin, or go on with the run of this id."""
        if self._name != "none":
            self._run_id = run_id
            self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show the values of a step."""
        if self._thread.is_alive():
            self._waiting.put((step, time.time(), dict(values)))

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread.is_alive():
            self._finished = kind is None
            self._waiting.put(None)
            self._thread.join(_LIMIT_S if kind is None else 1.0)

    def _send(self) -> None:
        open_run, run, said = _OPEN[self._name], None, False
        while True:
            line = self._waiting.get()
            try:
                run = run or open_run(self._config, self._run_id)
                if line is None:
                    run.finish(self._finished)
                else:
                    run.log(*line)
            except Exception as error:  # its text may hold an address
                if not said:
                    said = True
                    print(
                        f"tracker     {self._name} fails ({type(error).__name__}): the run goes on",
                        flush=True,
                    )
            if line is None:
                return


class _Run(Protocol):
    """What a library shows; every method may raise anything, or hang."""

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None: ...
    def finish(self, finished: bool) -> None: ...


class _MlflowRun:
    def __init__(self, config: Config, run_id: str) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(_LIMIT_S))
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        # It would print the address of the run, with the password that may be in it.
        os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
        import mlflow

        # Not mlflow.start_run: that one also talks to the server when Python exits.
        experiment_id = os.environ.get("MLFLOW_EXPERIMENT_ID") or mlflow.set_experiment(
            os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        ).experiment_id  # fmt: skip
        self._client = mlflow.MlflowClient()
        found = self._client.search_runs([experiment_id], f"tags.`{_RUN_TAG}` = '{run_id}'")
        name = os.environ.get("MLFLOW_RUN_NAME", config.run_dir.name)
        run = found[0] if found else self._client.create_run(
            experiment_id, run_name=name, tags={_RUN_TAG: run_id}
        )  # fmt: skip
        self._id = run.info.run_id
        self._client.update_run(self._id, status="RUNNING")
        params = [
            mlflow.entities.Param(key, str(value)) for key, value in flat(as_plain(config))
            if key not in run.data.params  # which never changes there
        ]  # fmt: skip
        self._client.log_batch(self._id, params=params)

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(tag, value, int(time_s * 1000), step) for tag, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, finished: bool) -> None:
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


class _WandbRun:
    def __init__(self, config: Config, run_id: str) -> None:
        import wandb

        self._run = wandb.init(
            id=run_id,
            resume="allow",
            name=os.environ.get("WANDB_NAME", config.run_dir.name),
            dir=os.environ.get("WANDB_DIR", os.fspath(config.run_dir)),
            settings=wandb.Settings(
                silent=True, console="off", init_timeout=_LIMIT_S, finish_timeout=_LIMIT_S
            ),
        )
        self._run.config.update(dict(flat(as_plain(config))), allow_val_change=True)
        # The library's own count drops what comes again after a resume.
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def finish(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


_OPEN: dict[str, type[_MlflowRun] | type[_WandbRun]] = {"mlflow": _MlflowRun, "wandb": _WandbRun}
