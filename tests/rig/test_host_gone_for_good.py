"""A host that is gone: the others save what they have, and train on without it."""

import contextlib
import os
import signal
import time

import psutil

import toy

LAUNCH = ("python", "-m", "hvd_nmt.launch", "--timeout-s", "5", "--min-ranks", "1")


def test_they_lose_no_step(two_hosts, toy_data, tmp_path):
    """The first rank, which writes the run directory, was there; no checkpoint was due."""
    run_dir = tmp_path / "run"
    options = toy.train_options(
        toy_data, run_dir, 100_000, "--checkpoints.every-steps", "100000",
        "--evaluation.every-steps", "100000", "--training.exchange", "islands",
    )  # fmt: skip
    command = (*LAUNCH, "-H", "v100b:1,v100a:1", "train", *options)
    with two_hosts.running(command, tmp_path) as run:
        run.wait_for(lambda: toy.steps_done(run_dir) >= 45)
        lost = namespace(run.ranks()[0])
        remote = [process for process in run.processes() if namespace(process) == lost]
        for process in remote:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.2)  # what they had open is closed, and the others hear of it
        two_hosts.cut()
        reached = toy.steps_done(run_dir)
        run.wait_for(lambda: len(toy.metrics(run_dir, "start")) == 2)
        run.wait_for(lambda: toy.steps_done(run_dir) > reached + 3)
        start = toy.metrics(run_dir, "start")[-1]
        assert (start["hosts"], start["lost_steps"]) == (["v100a"], 0)
        assert start["first_step"] > reached
        run.process.send_signal(signal.SIGTERM)
        assert run.finished().returncode == 75
        assert not (run_dir / "rescued").exists()  # the common checkpoint took its place


def namespace(process):
    return os.readlink(f"/proc/{process.pid}/ns/net")
