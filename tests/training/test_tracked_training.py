"""A real training that MLflow shows: a server that is no help, a stop, a second start."""

from __future__ import annotations

import signal
import socket
import time

import pytest

import toy
from hvd_nmt.common.errors import Preempted
from hvd_nmt.telemetry.events import read_metrics

pytestmark = pytest.mark.long


def test_a_stopped_run_goes_on_as_the_same_run_there(toy_commands, toy_data, tmp_path, monkeypatch):
    """One rank is stopped, its server away; then two ranks end the run.

    The server takes connections and never answers, which slows neither the run nor its stop.
    """
    mlflow = pytest.importorskip("mlflow")

    def train(uri, max_steps, launcher=()):
        options = toy.train_options(
            toy_data, "run", max_steps, "--evaluation.every-steps", "20",
            "--checkpoints.every-steps", "10", "--telemetry.tracker", "mlflow",
        )  # fmt: skip
        there = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}
        command = [*launcher, *toy_commands.command("hvd_nmt.train"), *options]
        return toy.Run(command, tmp_path, toy.environment(tmp_path) | there)

    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        first = train(f"http://127.0.0.1:{server.getsockname()[1]}", 5000)
        first.wait_for(lambda: "step 12/" in first.stdout)
        first.process.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        assert first.finished().returncode == Preempted.exit_code
        assert time.monotonic() - began_s < 20
    steps = read_metrics(tmp_path / "run")[-1]["step"]
    first.kill()
    uri = (tmp_path / "store").as_uri()
    second = train(uri, steps + 10, toy.horovodrun(2))
    done = second.finished()
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs(["0"])
    assert run.info.status == "FINISHED"
    assert run.data.params["training.max_steps"] == str(steps + 10)
    history = client.get_metric_history(run.info.run_id, "train_loss")
    assert [point.step for point in history] == [*range(steps + 1, steps + 11)]
    assert client.get_metric_history(run.info.run_id, "eval_loss")[-1].step == steps + 10
    assert not second.left_behind()
