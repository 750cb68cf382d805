"""What a run records arrives at the real libraries; what they do wrong stops nothing."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

import trackers
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import Config, TelemetryConfig, TrainingConfig
from hvd_nmt.telemetry import tracker as tracker_module
from hvd_nmt.telemetry.tracker import Tracker

SECRET = "canary-91"


@pytest.fixture
def use(monkeypatch):
    """Sets variables of the environment, from no others of these libraries."""

    def set_variables(environment):
        for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return set_variables


def started(name, run_dir, seed=1):
    """A tracker as rank 0 starts it."""
    run_dir.mkdir(exist_ok=True)
    config = Config(
        run_dir=run_dir, training=TrainingConfig(seed=seed), telemetry=TelemetryConfig(tracker=name)
    )
    tracker = Tracker(config, is_first=True)
    tracker.start("0123456789abcdef")
    return tracker


@pytest.mark.parametrize("name", trackers.LIBRARIES)
def test_a_run_that_resumes_is_one_run_there(name, use, tmp_path, monkeypatch, capfd):
    trackers.require(name)
    monkeypatch.setattr(tracker_module, "_LIMIT_S", 300)
    library = trackers.Library(name, tmp_path)
    use(library.environment)
    for seed, steps in ((1, range(1, 4)), (2, range(4, 7))):
        with started(name, tmp_path / "run", seed) as tracker:
            for step in steps:
                tracker.log(step, {"train_loss": 1 / step, "global_step/sec": 2.0})
        time.sleep(1.1)  # Weights & Biases names a folder by the second in which a run starts
    (shown,) = library.runs()
    assert shown.finished
    assert shown.values["train_loss"] == [(step, 1 / step) for step in range(1, 7)]
    assert shown.values["global_step/sec"] == [(step, 2.0) for step in range(1, 7)]
    assert shown.config["evaluation.best_by"] == "val_loss"
    assert "tracker" not in capfd.readouterr().out


@pytest.mark.long
def test_a_server_that_never_answers_holds_nobody(use, tmp_path, monkeypatch, capfd):
    trackers.require("mlflow")
    monkeypatch.setattr(tracker_module, "_LIMIT_S", 2)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        address = f"http://me:{SECRET}@127.0.0.1:{server.getsockname()[1]}"
        use({"MLFLOW_TRACKING_URI": address})
        began_s = time.monotonic()
        with started("mlflow", tmp_path / "run") as tracker:
            for step in range(2000):
                tracker.log(step, {"train_loss": 1.0})
            assert time.monotonic() - began_s < 1
            said = ""
            while "\n" not in said:
                said += capfd.readouterr().out
        assert time.monotonic() - began_s < 60
    assert said.startswith("tracker     mlflow fails (")
    assert said.count("\n") == 1
    assert SECRET not in said


def test_what_fails_is_said_once(tmp_path, monkeypatch, capsys):
    calls = threading.Semaphore(0)

    class Broken:
        def __init__(self, config, run_id):
            calls.release()
            raise OSError(f"https://me:{SECRET}@tracking.invalid")

    monkeypatch.setattr(tracker_module, "_OPEN", {"mlflow": Broken})
    monkeypatch.setattr(
        tracker_module.importlib.util, "find_spec", lambda _: type("Spec", (), {"origin": "here"})
    )
    with started("mlflow", tmp_path) as tracker:
        tracker.log(1, {"train_loss": 1.0})
        tracker.log(2, {"train_loss": 1.0})
        assert calls.acquire(timeout=20)
        assert calls.acquire(timeout=20)
    assert capsys.readouterr().out == "tracker     mlflow fails (OSError): the run goes on\n"


@pytest.mark.parametrize("name", trackers.LIBRARIES)
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
