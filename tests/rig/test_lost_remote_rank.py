"""A rank on the other host is lost, or all are stopped: who says what, and nobody stays behind."""

import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path

import psutil

import toy

TRAIN = ("python", "-m", "hvd_nmt.train")
COMMAND = (*toy.HOROVODRUN, "-np", "2", "-H", "v100a:2,v100b:2", *TRAIN)
STEPS_BEFORE = 12


ROOT = Path(__file__).resolve().parents[2]


def ranks(run_dir):
    """Rank -> its process, on both hosts: each says its rank in its environment."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words[1:3] == ["-m", "hvd_nmt.train"] and os.fspath(run_dir) in words:
                found[int(process.environ()["HOROVOD_RANK"])] = process
    return found


def wait_for_steps(run_dir, process):
    deadline = time.monotonic() + 300
    while toy.steps_done(run_dir) < STEPS_BEFORE:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_rank_of_the_other_host_is_named(two_hosts, toy_data, tmp_path):
    """`-np 2` on four slots, which the plan remarks on: four ranks train."""
    run_dir = tmp_path / "run"
    options = toy.train_options(
        toy_data, run_dir, 100_000, "--checkpoints.every-steps", "5", "--telemetry.report"
    )
    with two_hosts.running((*COMMAND, *options), tmp_path) as process:
        wait_for_steps(run_dir, process)
        started = ranks(run_dir)
        started[3].send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
        stdout, stderr = process.communicate(timeout=60)
        took_s = time.monotonic() - killed_s
    psutil.wait_procs(started.values(), 10)
    assert sorted(started) == [0, 1, 2, 3]
    assert not ranks(run_dir)

    assert "2 asked for, 4 started" in stdout
    sentences = [line for line in stderr.splitlines() if "hvd_nmt.train: " in line]
    assert len(sentences) == 1, stderr
    assert re.search(
        r"Rank 3 on v100b is gone \(killed, or out of memory\): the run ends after step [\d,]+; "
        r"the same command goes on from the checkpoint of step [\d,]+\.$", sentences[0]
    ), stderr  # fmt: skip
    assert "stopping" not in stderr
    assert took_s < 10
    deadline = time.monotonic() + 30
    while not (run_dir / "report.html").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (run_dir / "report.html").exists()


def test_a_stopped_rank_of_the_other_host_ends_with_its_launcher(two_hosts, toy_data, tmp_path):
    """It cannot see that its ssh is gone; its watchdog does, and is patient as it is told."""
    run_dir = tmp_path / "run"
    command = ("env", "HVD_NMT_GRACE_S=15", *toy.HOROVODRUN, "-np", "2", "-H", "v100a:1,v100b:1",
               *TRAIN)  # fmt: skip
    options = toy.train_options(toy_data, run_dir, 100_000)
    with two_hosts.running((*command, *options), tmp_path) as process:
        wait_for_steps(run_dir, process)
        started = ranks(run_dir)
        started[1].suspend()
        process.kill()
        _, alive = psutil.wait_procs(started.values(), 120)
        for rank in alive:
            rank.kill()
    assert alive == []


def test_a_stop_reaches_the_other_host_and_has_its_code(two_hosts, toy_data, tmp_path):
    """The launcher ends its ssh, which has a code of its own, before any rank has ended."""
    (tmp_path / "hosts").write_text("v100a slots=1\nv100b slots=1\n")
    launcher = ("env", f"VENV={sys.prefix}", os.fspath(ROOT / "launch" / "horovodrun.sh"))
    run_dir = tmp_path / "run"
    options = ("-f", "hosts", "--nic", "eth0", "--", *TRAIN)
    train = toy.train_options(toy_data, run_dir, 100_000)
    with two_hosts.running((*launcher, *options, *train), tmp_path) as process:
        wait_for_steps(run_dir, process)
        (horovodrun,) = [
            child for child in psutil.Process(process.pid).children(recursive=True)
            if child.name() == "horovodrun" and os.fspath(run_dir) in child.cmdline()
        ] or [psutil.Process(process.pid)]  # fmt: skip
        horovodrun.terminate()
        _, stderr = process.communicate(timeout=90)
    assert process.returncode == 75, stderr
    assert re.match(
        r"hvd_nmt.train: Stopped by a signal after step \d+; the checkpoint is saved",
        stderr.splitlines()[-1],
    )
    assert not ranks(run_dir)
