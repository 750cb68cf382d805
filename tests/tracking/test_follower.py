"""What a run records arrives at the real libraries once; what they do wrong stops nothing."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import trackers
from hvd_nmt import config as configuration
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import Config, TelemetryConfig, TrainingConfig
from hvd_nmt.telemetry.events import EventStore
from hvd_nmt.tracking import follower
from hvd_nmt.tracking import tracker as tracker_module
from hvd_nmt.tracking.tracker import Tracker


@pytest.fixture(params=trackers.LIBRARIES)
def library(request, tmp_path):
    """Each of them, in an empty folder."""
    trackers.require(request.param)
    folder = tmp_path / "library"
    folder.mkdir()
    return trackers.Library(request.param, folder)


@pytest.fixture
def use(monkeypatch):
    """Sets variables of the environment, from no others of these libraries."""

    def set_variables(environment):
        for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """On a busy machine the import of a library alone may take longer than a run would wait."""
    monkeypatch.setattr(tracker_module, "END_S", 600.0)
    monkeypatch.setattr(tracker_module, "_STOPPED_S", 600.0)


def config_of(name, run_dir, seed=1):
    return Config(
        run_dir=run_dir, training=TrainingConfig(seed=seed), telemetry=TelemetryConfig(tracker=name)
    )


def started(name, run_dir, seed=1):
    """A tracker that follows, as rank 0 starts it."""
    run_dir.mkdir(exist_ok=True)
    config = config_of(name, run_dir, seed)
    configuration.save(config, run_dir / "config.yaml")
    (run_dir / "environment.json").write_text("{}")
    tracker = Tracker(config, is_first=True)
    tracker.start()
    return tracker


def train(store, steps):
    for step in steps:
        store.scalars(step, {"train_loss": 1 / step, "global_step/sec": 2.0}, more={"steps": 1})


def sent(run_dir, name):
    """The last step of kind train that is known to have arrived; -1: the run is there, no more."""
    path = run_dir / follower.STATE_FILE
    return json.loads(path.read_text())[name]["sent"].get("train", -1) if path.exists() else None


def wait_until(holds, limit_s=600):
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_what_a_run_records_is_shown_once_over_a_kill_and_a_way_back(library, use, tmp_path):
    """Values while it trains, text, configuration, report; then a second start from step 3."""
    use(library.environment)
    run_dir, name = tmp_path / "run", library.name
    # Weights & Biases writes what it has in memory every few seconds, so that is sent again.
    arrived = list if name == "mlflow" else lambda values: sorted(set(values))
    with started(name, run_dir) as tracker, EventStore(run_dir) as store:
        store.record("start", {"first_step": 1})
        train(store, range(1, 6))
        store.scalars(3, {"ter": math.nan, "sacrebleu": 7.5}, kind="eval", more={"margin": 0.5})
        store.text(3, "samples", "| <b> |\n|---|")
        wait_until(lambda: sent(run_dir, name) == (5 if name == "mlflow" else -1))
        tracker._process.kill()  # as a host that is lost
    (begun,) = library.runs()
    assert not begun.finished
    if name == "mlflow":  # killed after it had sent, before it could write that down
        state = json.loads((run_dir / follower.STATE_FILE).read_text())
        state["mlflow"]["sent"]["train"] = 1
        (run_dir / follower.STATE_FILE).write_text(json.dumps(state))

    with started(name, run_dir, seed=2), EventStore(run_dir) as store:
        store.truncate_after(3)
        store.record("start", {"first_step": 4})
        train(store, range(4, 9))
        store.record("end", {"steps": 8})
        (run_dir / follower.REPORT_FILE).write_text("<p>")
    (shown,) = library.runs()
    assert shown.run_id == begun.run_id
    assert shown.finished
    assert arrived(shown.values["train_loss"]) == [(step, 1 / step) for step in range(1, 9)]
    assert arrived(shown.values["global_step/sec"]) == [(step, 2.0) for step in range(1, 9)]
    assert shown.values["sacrebleu"] == [(3, 7.5)]
    assert shown.values["margin"] == [(3, 0.5)]
    ((step, value),) = shown.values["ter"]
    assert (step, str(value).lower()) == (3, "nan")
    assert "steps" not in shown.values
    assert str(shown.config["training.seed"]) in "12"
    assert {"config.yaml", "environment.json", "report.html"} <= shown.files
    assert any("samples" in file for file in shown.files)


def test_what_fails_is_said_once_and_what_waits_follows_the_run_back(use, tmp_path, capsys):
    """The run goes back while nothing can be sent, and what it then does is what is shown."""
    trackers.require("mlflow")
    library = trackers.Library("mlflow", tmp_path)
    use(library.environment)
    (tmp_path / "store").write_text("")  # where its folder should be
    with started("mlflow", tmp_path / "run"), EventStore(tmp_path / "run") as store:
        train(store, range(1, 4))
        wait_until(lambda: "mlflow fails (" in capsys.readouterr().out)
        store.truncate_after(1)
        store.scalars(2, {"train_loss": 7.0})
        (tmp_path / "store").unlink()
    (shown,) = library.runs()
    assert shown.values["train_loss"] == [(1, 1.0), (2, 7.0)]
    assert not shown.finished  # nothing said that the run had ended
    assert "fails" not in capsys.readouterr().out


@pytest.mark.long
def test_a_place_that_takes_no_files_costs_no_value(use, tmp_path, capsys):
    """MLflow keeps files elsewhere than values, here where nothing can be written."""
    trackers.require("mlflow")
    library = trackers.Library("mlflow", tmp_path)
    use({**library.environment, "MLFLOW_EXPERIMENT_NAME": "toy"})
    code = "import mlflow; mlflow.create_experiment('toy', artifact_location='file:///proc/none')"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    with started("mlflow", tmp_path / "run"), EventStore(tmp_path / "run") as store:
        train(store, [1, 2])
        store.text(2, "samples", "a text")
        store.record("end", {"steps": 2})
    (shown,) = library.runs()
    assert [step for step, _ in shown.values["train_loss"]] == [1, 2]
    assert shown.finished
    assert shown.config["evaluation.best_by"] == "val_loss"
    _, said = capsys.readouterr().out.splitlines()
    assert said.startswith("tracker     mlflow takes no files (")


@pytest.fixture
def silent_server():
    """The address of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        taken = []
        threading.Thread(
            target=lambda: [taken.append(server.accept()) for _ in range(99)], daemon=True
        ).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.long
@pytest.mark.parametrize("name", trackers.LIBRARIES)
def test_a_server_that_never_answers_holds_nobody(
    name, use, tmp_path, silent_server, capsys, monkeypatch
):
    trackers.require(name)
    monkeypatch.setattr(tracker_module, "END_S", 2.0)
    key = "0" * 40
    use({"MLFLOW_TRACKING_URI": silent_server, "WANDB_BASE_URL": silent_server,
         "WANDB_API_KEY": key, "WANDB_DIR": os.fspath(tmp_path)})  # fmt: skip
    began_s = time.monotonic()
    tracker = started(name, tmp_path / "run")
    with EventStore(tmp_path / "run") as store:
        train(store, range(1, 2000))
    assert time.monotonic() - began_s < 5
    time.sleep(1)
    began_s = time.monotonic()
    with tracker:
        pass
    assert time.monotonic() - began_s < 2 + 4
    assert tracker._process.poll() == 1
    out = capsys.readouterr().out
    assert f"tracker     {name} did not take all that the run has recorded; the same command" in out
    assert out.count("\n") == 1


def test_a_lock_that_cannot_be_opened_is_said(tmp_path):
    """Here a directory has its name."""
    (tmp_path / ".tracker.lock").mkdir()
    said = []
    follower.Following("mlflow", tmp_path, said.append).until(threading.Event())
    assert said == [
        f"mlflow gets nothing: {tmp_path / '.tracker.lock'} cannot be opened (Is a directory)"
    ]


@pytest.mark.parametrize("name", trackers.LIBRARIES)
def test_a_missing_library_is_said_before_the_run(name, tmp_path, monkeypatch):
    """Also where a folder of its name, which it made, is in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    paths = [path for path in sys.path if not (Path(path) / name / "__init__.py").is_file()]
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [os.fspath(tmp_path), *paths])
    with pytest.raises(ConfigError, match=rf"pip install 'hvd_nmt\[{name}\]'"):
        Tracker(config_of(name, tmp_path / "run"), is_first=True)
    with Tracker(config_of(name, tmp_path / "run"), is_first=False) as other:
        other.start()
    assert other._process is None


def test_a_tail_has_each_whole_line_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = follower.Tail(path)
    assert tail.lines() == []
    path.write_text('{"step": 1}\n{"step": 2, "a": "nan"}\n{"st')
    first, second = tail.lines()
    assert first == {"step": 1}
    assert math.isnan(second["a"])
    with path.open("a") as file:
        file.write('ep": 3}\n{"step": 4}\n7\nnot JSON\n')
    assert [line["step"] for line in tail.lines()] == [3, 4]
    assert tail.lines() == []
    path.write_text('{"step": 1}\n{"step": 2}\n')
    with EventStore(tmp_path) as store:
        store.truncate_after(1)
        assert [line["step"] for line in tail.lines()] == [1]
        store.scalars(2, {})
    assert [line["step"] for line in tail.lines()] == [2]
