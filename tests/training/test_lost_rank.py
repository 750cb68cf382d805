"""A rank that is killed has a name, the run says how it goes on, and no rank stays behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

import toy

ENDS_WITHIN_S = 10


def test_a_killed_rank_is_named_and_the_run_is_explained(toy_data, tmp_path) -> None:
    """The first; `test_lost_remote_rank.py` has another."""
    lost = 0
    options = toy.train_options(
        toy_data, "run", 100_000, "--checkpoints.every-steps", "5", "--telemetry.report",
        "--training.log-every", "3",
    )  # fmt: skip
    run = toy.start_train(*options, cwd=tmp_path, ranks=3)
    run_dir = tmp_path / "run"
    try:
        run.wait_for(lambda: toy.steps_done(run_dir) >= 12)
        run.ranks()[lost].send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
        done = run.finished(60)
        took_s = time.monotonic() - killed_s
        left = run.left_behind()
    finally:
        run.kill()

    (sentence,) = [line for line in done.stderr.splitlines() if "hvd_nmt.train: " in line]
    host = socket.gethostname()
    found = re.search(
        rf"Rank {lost} on {host} is gone \(killed, or out of memory\): the run ends after step "
        r"([\d,]+); the same command goes on from the checkpoint of step ([\d,]+)\.$",
        sentence,
    )
    assert found, done.stderr
    step, saved = (int(text.replace(",", "")) for text in found.groups())
    complete = [int(path.stem.rpartition("-")[2]) for path in run_dir.glob("model.ckpt-*.json")]
    assert 5 <= saved == max(complete) <= step  # that of step 10 may have been being written
    assert "stopping" not in done.stderr + done.stdout  # nothing is saved any more
    assert "Traceback" not in done.stderr.replace("Traceback (most recent call last):\n  File "
                                                  f'"{toy.HOROVODRUN[1]}"', "")  # fmt: skip
    assert left == []
    assert "was killed or it crashed" not in (run_dir / "report.md").read_text(encoding="utf-8")
    assert took_s < ENDS_WITHIN_S


def test_the_next_rank_speaks_where_the_first_is_aborted(toy_data, tmp_path) -> None:
    """As Gloo does to it now and then, because of the loss."""
    options = toy.train_options(toy_data, "run", 100_000, "--checkpoints.every-steps", "5")
    run = toy.start_train(*options, cwd=tmp_path, ranks=3)
    try:
        run.wait_for(lambda: toy.steps_done(tmp_path / "run") >= 12)
        ranks = run.ranks()
        ranks[0].suspend()  # it says nothing
        ranks[2].kill()
        time.sleep(0.3)
        ranks[0].kill()
        done = run.finished(60)
    finally:
        run.kill()
    (sentence,) = [line for line in done.stderr.splitlines() if "hvd_nmt.train: " in line]
    assert "Rank 2 on " in sentence
    assert "goes on from the checkpoint" in sentence


@pytest.mark.parametrize("lost", [2, 0])
def test_ranks_that_are_stuck_in_a_collective_leave_by_themselves(toy_commands, tmp_path, lost):
    """And one of them speaks; within horovodrun's 5 s, after which nobody could."""
    script = toy_commands.command(os.fspath(Path(__file__).parent / "stuck_ranks.py"))
    command = [*toy.horovodrun(3), *script, os.fspath(tmp_path), str(lost)]
    done = toy.Run(command, tmp_path, toy.environment(tmp_path)).finished(60)
    texts = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.glob("[0-9].txt")}
    assert sorted(texts) == sorted({"0", "1", "2"} - {str(lost)}), done.stderr
    gone = f"Rank {lost} on {socket.gethostname()} is gone (killed, or out of memory): see there."
    speaker = "1" if lost == 0 else "0"
    assert texts == {rank: f"{rank == speaker} {gone}" for rank in texts}


def test_a_stuck_rank_is_named_and_killed(toy_data, tmp_path):
    """The others wait for it, in a collective that has no limit; `test_faults.py` has more."""
    options = toy.train_options(
        toy_data, "run", 100_000, "--checkpoints.every-steps", "5", "--training.stuck-after-s", "8"
    )
    script = os.fspath(Path(__file__).parent / "looping_rank.py")
    command = [*toy.horovodrun(3), sys.executable, script, "1", "12", *options]
    run = toy.Run(command, tmp_path, toy.environment(tmp_path))
    done = run.finished(300)
    left = run.left_behind()
    run.kill()
    said = [line for line in done.stderr.splitlines() if "hvd_nmt.train: " in line]
    host = socket.gethostname()
    stuck = (
        rf"Rank 1 on {host} has done nothing for \d+ s in the section 'callbacks after a step', "
    )
    assert any(re.search(stuck, line) for line in said), done.stderr
    assert any(f"Rank 1 on {host} is gone (killed, or out of memory)" in line for line in said)
    assert "in loop_forever" in done.stderr  # its stack
    assert not any("Rank 0 on" in line or "Rank 2 on" in line for line in said)
    assert left == []
