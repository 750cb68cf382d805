"""A rank on the other host is lost, or all are stopped: who says what, and nobody stays behind."""

import os
import re
import signal
import time

import psutil

import toy

TRAIN = ("python", "-m", "hvd_nmt.train")
STEPS_BEFORE = 12


def started(run, run_dir):
    """The processes of its ranks on both hosts, when they have done some steps."""
    run.wait_for(lambda: toy.steps_done(run_dir) >= STEPS_BEFORE)
    return run.ranks()


def test_a_killed_rank_of_the_other_host_is_named(two_hosts, toy_data, tmp_path):
    """`-np 2` on three slots, which the plan remarks on: three ranks train."""
    run_dir = tmp_path / "run"
    options = toy.train_options(
        toy_data, run_dir, 100_000, "--checkpoints.every-steps", "5", "--telemetry.report"
    )
    command = (*toy.HOROVODRUN, "-np", "2", "-H", "v100a:1,v100b:2", *TRAIN, *options)
    with two_hosts.running(command, tmp_path) as run:
        ranks = started(run, run_dir)
        assert len(ranks) == 3
        ranks[2].send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
        done = run.finished()
        took_s = time.monotonic() - killed_s
        psutil.wait_procs(ranks, 10)
        assert run.ranks() == []

        assert "2 asked for, 3 started" in done.stdout
        sentences = [line for line in done.stderr.splitlines() if "hvd_nmt.train: " in line]
        assert len(sentences) == 1, done.stderr
        assert re.search(
            r"Rank 2 on v100b is gone \(killed, or out of memory\): the run ends after step [\d,]+;"
            r" the same command goes on from the checkpoint of step [\d,]+\.$", sentences[0]
        ), done.stderr  # fmt: skip
        assert "stopping" not in done.stderr
        assert took_s < 10
        deadline = time.monotonic() + 600
        while not (run_dir / "report.html").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_stopped_rank_of_the_other_host_ends_with_its_launcher(two_hosts, toy_data, tmp_path):
    """It cannot see that its ssh is gone; its watchdog does, and is patient as it is told."""
    run_dir = tmp_path / "run"
    command = (*two_hosts.horovodrun("v100a:1,v100b:1"), *TRAIN)
    options = toy.train_options(toy_data, run_dir, 100_000)
    with two_hosts.running((*command, *options), tmp_path, HVD_NMT_GRACE_S="5") as run:
        ranks = started(run, run_dir)
        ranks[1].suspend()
        run.process.kill()
        _, alive = psutil.wait_procs(ranks, 600)
    assert alive == []


def test_a_stop_reaches_the_other_host_and_has_its_code(two_hosts, toy_data, tmp_path):
    """The launcher ends its ssh, which has a code of its own, before any rank has ended."""
    (tmp_path / "hosts").write_text("v100a slots=1\nv100b slots=1\n")
    launcher = os.fspath(toy.ROOT / "launch" / "horovodrun.sh")
    run_dir = tmp_path / "run"
    options = ("-f", "hosts", "--nic", "eth0", "--", *TRAIN)
    train = toy.train_options(toy_data, run_dir, 100_000)
    with two_hosts.running((launcher, *options, *train), tmp_path) as run:
        started(run, run_dir)
        (horovodrun,) = [
            process for process in run.processes()
            if process.name() == "horovodrun" and os.fspath(run_dir) in process.cmdline()
        ]  # fmt: skip
        horovodrun.terminate()
        done = run.finished()
        assert run.ranks() == []
    assert done.returncode == 75, done.stderr
    assert re.match(
        r"hvd_nmt.train: Stopped by a signal after step \d+; the checkpoint is saved",
        done.stderr.splitlines()[-1],
    )
