"""What a run records arrives at the real libraries; what they do wrong stops nothing."""

import importlib.util
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import Config, TelemetryConfig, TrainingConfig
from hvd_nmt.telemetry import tracker as tracker_module
from hvd_nmt.telemetry.tracker import Tracker

SECRET = "canary-91"


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """The environment has no variable of these libraries, and the end waits as long as it takes."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(tracker_module, "_LIMIT_S", 300)


def started(name, run_dir, seed=1):
    """A tracker as rank 0 starts it."""
    run_dir.mkdir(exist_ok=True)
    config = Config(
        run_dir=run_dir, training=TrainingConfig(seed=seed), telemetry=TelemetryConfig(tracker=name)
    )
    tracker = Tracker(config, is_first=True)
    tracker.start("0123456789abcdef")
    return tracker


def track_twice(name, tmp_path):
    """Three steps of a run, and three when it resumes with another seed."""
    for seed, steps in ((1, range(1, 4)), (2, range(4, 7))):
        with started(name, tmp_path / "run", seed) as tracker:
            for step in steps:
                tracker.log(step, {"train_loss": 1 / step, "global_step/sec": 2.0})
        time.sleep(1.1)  # Weights & Biases names a folder by the second in which a run starts


def test_a_run_that_resumes_is_one_run_of_mlflow(tmp_path, monkeypatch, capfd):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    track_twice("mlflow", tmp_path)
    (run,) = mlflow.MlflowClient().search_runs(["0"])
    assert (run.info.status, run.data.params["evaluation.best_by"]) == ("FINISHED", "val_loss")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train_loss")
    assert [(point.step, point.value) for point in history] == [(n, 1 / n) for n in range(1, 7)]
    assert "global_step/sec" in run.data.metrics
    assert "tracker" not in capfd.readouterr().out


def test_a_run_that_resumes_is_one_run_of_wandb(tmp_path, monkeypatch, capfd):
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("needs wandb: pip install 'hvd_nmt[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", os.fspath(tmp_path))
    track_twice("wandb", tmp_path)
    # `wandb sync` joins the starts of a run by its id.
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-0123456789abcdef.wandb"))
    for file, steps in zip(files, ("123", "456"), strict=True):
        for text in ("evaluation.best_by", *(f"{1 / int(step)}" for step in steps)):
            assert text.encode() in file.read_bytes()
    assert "tracker" not in capfd.readouterr().out


def test_what_fails_is_said_once_and_holds_nobody(tmp_path, monkeypatch, capsys):
    calls = threading.Semaphore(0)

    def broken(config, run_id):
        calls.release()
        raise OSError(f"https://me:{SECRET}@tracking.invalid")

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://me:{SECRET}@tracking.invalid")
    monkeypatch.setattr(tracker_module, "_BEGIN", {"mlflow": broken})
    monkeypatch.setattr(
        tracker_module.importlib.util, "find_spec", lambda _: type("Spec", (), {"origin": "here"})
    )
    with started("mlflow", tmp_path) as tracker:
        for step in (1, 2):
            tracker.log(step, {"train_loss": 1.0})
            assert calls.acquire(timeout=20)
    warning, failure = capsys.readouterr().out.splitlines()
    assert "MLFLOW_TRACKING_URI holds a password" in warning
    assert SECRET not in warning
    assert failure == "tracker     mlflow fails (OSError): the run continues"
    monkeypatch.setattr(tracker_module, "_LIMIT_S", 0)
    monkeypatch.setattr(tracker_module, "_BEGIN", {"mlflow": lambda *_: threading.Event().wait()})
    with started("mlflow", tmp_path) as tracker:  # a server that never answers
        tracker.log(1, {"train_loss": 1.0})


def test_mlflow_without_an_address_is_said_before_the_run(tmp_path, monkeypatch):
    """Where there is no SQLAlchemy, with which it would open a database of its own."""
    monkeypatch.setattr(
        tracker_module.importlib.util,
        "find_spec", {"mlflow": type("Spec", (), {"origin": "here"})}.get,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI, such as"):
        started("mlflow", tmp_path)


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_library_is_said_before_the_run(name, tmp_path, monkeypatch):
    """Also where a folder of its name, which it made, is in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    paths = [path for path in sys.path if not (Path(path) / name / "__init__.py").is_file()]
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [os.fspath(tmp_path), *paths])
    config = Config(run_dir=tmp_path / "run", telemetry=TelemetryConfig(tracker=name))
    with pytest.raises(ConfigError, match=rf"pip install 'hvd_nmt\[{name}\]'"):
        Tracker(config, is_first=True)
    with Tracker(config, is_first=False) as other:
        other.start("id")
        other.log(1, {})
