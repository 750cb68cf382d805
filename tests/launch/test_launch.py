"""python -m hvd_nmt.launch on one host, with two ranks that are killed, fail and are stopped."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import toy
from hvd_nmt.checkpoints.manifest import newest_step
from hvd_nmt.common.rank_environment import START_ID
from hvd_nmt.explain.availability import availability
from hvd_nmt.launch import main
from hvd_nmt.records.read import read_run
from launched import SECRETS, checksum, command_lines_read, events, require_no_secret

STEPS = 60
OPTIONS = ("--checkpoints.every-steps", "10")


def launch(*words: str, cwd: Path, **variables: str) -> toy.Run:
    command = [sys.executable, "-m", "hvd_nmt.launch", "-np", "2", *words]
    return toy.Run(command, cwd, toy.environment(cwd) | variables)


@pytest.fixture(scope="module")
def killed(toy_data, tmp_path_factory):
    """A run of which a rank was killed, with a secret in the launcher's environment."""
    cwd = tmp_path_factory.mktemp("killed")
    run_dir = cwd / "run"
    options = toy.train_options(toy_data, "run", STEPS, *OPTIONS, "--telemetry.report")
    with command_lines_read() as seen:
        run = launch("train", *options, cwd=cwd, **SECRETS)
        try:
            run.wait_for(lambda: toy.steps_done(run_dir) >= 25)
            run.ranks()[1].send_signal(signal.SIGKILL)
            done = run.finished()
        finally:
            run.kill()
    return {"done": done, "run_dir": run_dir, "seen": seen, "left": run.left_behind()}


def test_a_run_whose_rank_is_killed_is_finished(killed):
    done = killed["done"]
    assert done.returncode == 0, done.stderr
    assert killed["left"] == []
    assert checksum(done.stdout)


def test_what_happened_is_recorded(killed):
    first, end, restart, second, last, finished = events(killed["run_dir"])
    kinds = [event["kind"] for event in (first, end, restart, second, last, finished)]
    assert kinds == ["start", "end", "restart", "start", "end", "finished"]
    assert first["hosts"] == second["hosts"] == {"localhost": 2}
    assert first["nic"] == "lo"
    assert first["command"][:3] == ["python", "-m", "hvd_nmt.train"]
    assert first["start_id"] != second["start_id"]
    assert end["exit_code"] in (5, 137)
    assert "Rank 1 on " in end["sentence"]
    assert end["saved_step"] % 10 == 0
    assert 25 <= end["step"] < STEPS
    assert end["killed"] == {}  # nobody had to be, and the report lives on
    assert (last["exit_code"], last["step"], last["saved_step"]) == (0, STEPS, STEPS)
    assert last["resumed_step"] == end["saved_step"]
    assert restart["pause_s"] == 1.0


def test_a_secret_of_the_environment_is_nowhere(killed):
    assert killed["seen"] == set()
    done = killed["done"]
    require_no_secret(done.stdout + done.stderr, killed["run_dir"])


def test_sigterm_saves_and_ends_with_75(toy_data, tmp_path):
    run_dir = tmp_path / "run"
    run = launch("train", *toy.train_options(toy_data, "run", 100_000), cwd=tmp_path)
    try:
        run.wait_for(lambda: toy.steps_done(run_dir) >= 12)
        run.process.send_signal(signal.SIGTERM)
        done = run.finished()
    finally:
        run.kill()
    assert done.returncode == 75, done.stderr
    assert events(run_dir)[-1] == {
        "time_s": events(run_dir)[-1]["time_s"], "kind": "stopped", "exit_code": 75,
    }  # fmt: skip
    saved = newest_step(run_dir)
    assert saved == toy.steps_done(run_dir)
    assert f"the newest checkpoint is of step {saved:,}: " in done.stderr.splitlines()[-1]
    assert run.left_behind() == []


def test_the_ranks_of_a_launcher_that_was_killed_save_and_end(toy_data, tmp_path):
    run_dir = tmp_path / "run"
    run = launch("train", *toy.train_options(toy_data, "run", 100_000), cwd=tmp_path)
    try:
        run.wait_for(lambda: toy.steps_done(run_dir) >= 12)
        run.process.kill()
        assert run.left_behind(300) == []
    finally:
        run.kill()
    assert newest_step(run_dir) == toy.steps_done(run_dir)


def test_what_would_fail_again_is_not_started_again(tmp_path):
    (tmp_path / "fails.py").write_text(
        "import sys; print('hvd_nmt.train: It is wrong.', file=sys.stderr); sys.exit(3)"
    )
    run = launch("--", "python", "fails.py", cwd=tmp_path)
    done = run.finished()
    assert done.returncode == 3, done.stderr
    assert "hvd_nmt.train: It is wrong." in done.stderr.splitlines()
    assert done.stderr.count("starting 2 ranks") == 1
    assert run.left_behind() == []


# Deaf to the first signal, as a rank that saves a large model.
DEAF = """
import pathlib, signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)
pathlib.Path("ready").touch()
time.sleep(600)
"""


def test_the_second_ctrl_c_ends_all_at_once(tmp_path):
    (tmp_path / "deaf.py").write_text(DEAF)
    run = launch("--", "python", "deaf.py", cwd=tmp_path)
    try:
        run.wait_for((tmp_path / "ready").exists)
        run.process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert run.process.poll() is None
        run.process.send_signal(signal.SIGINT)
        done = run.finished()
    finally:
        run.kill()
    assert done.returncode == 130, done.stderr
    assert run.left_behind() == []


def test_a_signal_between_two_starts_ends_the_launcher(tmp_path):
    """The second restart of an hour has to wait for long."""
    (tmp_path / "killed.py").write_text("import os; os.kill(os.getpid(), 9)")
    run = launch("--restarts-per-hour", "1", "--", "python", "killed.py", cwd=tmp_path)
    try:
        run.wait_for(lambda: re.search(r"starting again in 5\d min", run.stderr))
        run.process.send_signal(signal.SIGTERM)
        done = run.finished()
    finally:
        run.kill()
    assert done.returncode == 75, done.stderr


def test_horovodruns_way_to_give_the_command_is_explained(tmp_path, capsys):
    assert main(["-H", "a:1", "python", "-m", "hvd_nmt.train"]) == 2
    assert "write it after --, or train, as in python -m hvd_nmt.launch" in capsys.readouterr().err


def test_a_host_that_does_not_answer_ends_the_launcher_at_once(tmp_path):
    command = [sys.executable, "-m", "hvd_nmt.launch", "-H", "nowhere.invalid:2", "--", "true"]
    done = subprocess.run(
        command, cwd=tmp_path, env=toy.environment(tmp_path), capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("hvd_nmt.launch: nowhere.invalid: ssh: ")


def test_the_report_of_a_run_that_ends_outlives_its_start(tmp_path):
    """It is no process of the start any more, so nobody kills it."""
    marker = os.fspath(tmp_path / "no-such-run")
    code = "import pathlib, sys; from hvd_nmt import train; "
    code += "train._write_report(pathlib.Path(sys.argv[1]), in_background=True)"
    environment = toy.environment(tmp_path) | {START_ID: "of-a-test.1"}
    subprocess.run([sys.executable, "-c", code, marker], env=environment, check=True)
    found = []
    deadline = time.monotonic() + 30
    while not found and time.monotonic() < deadline:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.cmdline()[-1:] == [marker]:
                    found.append(process.environ())
    assert found
    assert START_ID not in found[0]


def test_the_report_tells_of_restarts(killed):
    """The report that the run itself has written, before its launcher knew of the end."""
    end, last = (event for event in events(killed["run_dir"]) if event["kind"] == "end")
    (restart,) = availability(read_run(killed["run_dir"]).launches).restarts
    assert restart.lost_steps == end["step"] - end["saved_step"]
    assert restart.idle_s == last["first_s"] - end["last_s"]
    report = (killed["run_dir"] / "report.md").read_text(encoding="utf-8")
    assert "launch started the ranks 2 times" in report
    assert f"{restart.lost_steps:,} step" in report
    assert "Rank 1 on " in report
