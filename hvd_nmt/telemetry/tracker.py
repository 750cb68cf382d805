"""A run shown in MLflow or Weights & Biases while it trains.

Their own environment variables say where. A thread talks to the library, so that no server can slow
or end a step. What a server does not take is in metrics.jsonl.
"""

import contextlib
import importlib.util
import os
import queue
import re
import threading
from collections.abc import Callable, Mapping
from typing import final

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import Config, as_plain
from hvd_nmt.config.serialization import flat

_LIMIT_S = 15
"""seconds for a library to begin, to take a value, and for the rest when the run ends"""
_PASSWORD = re.compile("//[^/@]*:[^/@]+@")  # in an address
_RUN_TAG = "hvd_nmt.run_id"
Values = Mapping[str, float]
Calls = tuple[Callable[[int, Values], object], Callable[[bool], object]]
"""functions that take the values of a step, and that end the run, finished or not"""


@final
class Tracker(contextlib.AbstractContextManager["Tracker"]):
    """Does nothing if `telemetry.tracker` is none, or on another rank; ConfigError: it cannot."""

    def __init__(self, config: Config, is_first: bool) -> None:
        self._config, self._name = config, config.telemetry.tracker if is_first else "none"
        self._waiting: queue.SimpleQueue[tuple[int, Values] | bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if self._name != "none":
            spec = importlib.util.find_spec(self._name)
            if spec is None or spec.origin is None:  # without: a folder of that name, no more
                raise ConfigError(
                    f"telemetry.tracker {self._name} needs a package that is not installed here: "
                    f"run pip install 'hvd_nmt[{self._name}]', or set telemetry.tracker to none."
                )
        uri = os.environ.get("MLFLOW_TRACKING_URI") or importlib.util.find_spec("sqlalchemy")
        if self._name == "mlflow" and not uri:  # it would open a database, without SQLAlchemy
            remedy = "set MLFLOW_TRACKING_URI, such as to http://mlflow:5000"
            raise ConfigError(f"telemetry.tracker mlflow needs an address: {remedy}.")

    def start(self, run_id: str) -> None:
        """Begin, or continue, the run of this id."""
        if self._name == "mlflow" and _PASSWORD.search(os.environ.get("MLFLOW_TRACKING_URI", "")):
            words = "holds a password, which all programs of this user can read"
            print(f"tracker     MLFLOW_TRACKING_URI {words}: write it into ~/.mlflow/credentials")
        if self._name != "none":
            self._thread = threading.Thread(target=self._send, args=(run_id,), daemon=True)
            self._thread.start()

    def log(self, step: int, values: Values) -> None:
        """Show the values of a step."""
        if self._thread is not None:
            self._waiting.put((step, values))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is not None:
            self._waiting.put(kind is None)
            self._thread.join(_LIMIT_S if kind is None else 1.0)

    def _send(self, run_id: str) -> None:
        calls, is_warned = None, False
        while True:
            line = self._waiting.get()
            try:
                calls = calls or _BEGIN[self._name](self._config, run_id)
                log, finish = calls
                finish(line) if isinstance(line, bool) else log(*line)
            except Exception as error:  # its text may hold an address, and that a password
                if not is_warned:
                    is_warned, why = True, type(error).__name__
                    print(f"tracker     {self._name} fails ({why}): the run continues", flush=True)
            if isinstance(line, bool):
                return


def _begin_mlflow(config: Config, run_id: str) -> Calls:
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", str(_LIMIT_S))
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    # It would print the address of the run, with the password that may be in it.
    os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
    import mlflow

    known = mlflow.search_runs(
        filter_string=f"tags.`{_RUN_TAG}` = '{run_id}'",
        search_all_experiments=True, output_format="list",
    )  # fmt: skip
    name = os.environ.get("MLFLOW_RUN_NAME", config.run_dir.name)
    known_id = known[0].info.run_id if known else None
    run = mlflow.start_run(known_id, run_name=name, tags={_RUN_TAG: run_id})
    settings = dict(flat(as_plain(config)))  # which never change there
    mlflow.log_params({key: settings[key] for key in settings.keys() - run.data.params.keys()})
    return (
        lambda step, values: mlflow.log_metrics(dict(values), step=step),
        lambda finished: mlflow.end_run("FINISHED" if finished else "KILLED"),
    )


def _begin_wandb(config: Config, run_id: str) -> Calls:
    import wandb

    run = wandb.init(
        id=run_id,
        resume="allow",
        name=os.environ.get("WANDB_NAME", config.run_dir.name),
        dir=os.environ.get("WANDB_DIR", os.fspath(config.run_dir)),
        settings=wandb.Settings(
            silent=True, console="off", init_timeout=_LIMIT_S, finish_timeout=_LIMIT_S
        ),
    )
    run.config.update(dict(flat(as_plain(config))), allow_val_change=True)
    # The library's own count drops what comes again after a resume.
    run.define_metric("*", step_metric="step")
    return (
        lambda step, values: run.log({"step": step, **values}),
        lambda finished: run.finish(exit_code=0 if finished else 1),
    )


_BEGIN: dict[str, Callable[[Config, str], Calls]] = {
    "mlflow": _begin_mlflow, "wandb": _begin_wandb,
}  # fmt: skip
