"""Real trainings that MLflow follows: a server that is no help, a stop, a second start."""

from __future__ import annotations

import signal
import socket
import time

import pytest

import toy
import trackers
from hvd_nmt.common.errors import Preempted
from hvd_nmt.telemetry.events import read_metrics

pytestmark = pytest.mark.long


def options(data, *more):
    own = ("--evaluation.every-steps", "20", "--checkpoints.every-steps", "10")
    return toy.train_options(data, "run", 40, *own, "--telemetry.tracker", "mlflow", *more)


@pytest.fixture
def train(toy_commands, toy_data, tmp_path):
    """Starts a training on some ranks, with more variables and options."""
    trackers.require("mlflow")

    def start(environment, *more, ranks=1):
        launcher = toy.horovodrun(ranks) if ranks > 1 else []
        command = [*launcher, *toy_commands.command("hvd_nmt.train"), *options(toy_data, *more)]
        return toy.Run(command, tmp_path, toy.environment(tmp_path) | environment)

    return start


def test_what_a_server_did_not_take_arrives_with_the_next_start(train, tmp_path):
    """One rank is stopped; then two ranks, of which one is followed, end the run.

    The server takes connections and never answers, which slows neither the run nor its stop.
    """
    more = ("--evaluation.best-by", "ter", "--telemetry.report")
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        away = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{server.getsockname()[1]}"}
        first = train(away, *more, "--training.max-steps", "5000")
        first.wait_for(lambda: "step 12/" in first.stdout)
        first.process.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        assert first.finished().returncode == Preempted.exit_code
        assert time.monotonic() - began_s < 20
    steps = read_metrics(tmp_path / "run")[-1]["step"]
    first.kill()
    library = trackers.Library("mlflow", tmp_path)
    second = train(library.environment, *more, "--training.max-steps", str(steps + 10), ranks=2)
    done = second.finished()
    assert done.returncode == 0, done.stderr
    (shown,) = library.runs()
    assert f"tracker     mlflow run {shown.run_id}" in done.stdout
    assert shown.finished
    assert [step for step, _ in shown.values["train_loss"]] == [*range(1, steps + 11)]
    assert shown.values["ter"][-1][0] == steps + 10
    assert {"report.html", f"samples/step-{steps + 10}.md"} <= shown.files
    assert shown.config["evaluation.best_by"] == "ter"
    assert list((tmp_path / "run" / "best_models").glob("ter=*.index"))
    assert not second.left_behind()
