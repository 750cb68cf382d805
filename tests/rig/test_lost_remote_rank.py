"""A rank of the other host is lost under Horovod's own horovodrun: rank 0 says so, once."""

import signal

import toy

TRAIN = ("python", "-m", "hvd_nmt.train")
STEPS_BEFORE = 12


def test_rank_0_says_that_a_rank_is_gone(two_hosts, toy_data, tmp_path):
    run_dir = tmp_path / "run"
    options = toy.train_options(
        toy_data, run_dir, 100_000, "--checkpoints.every-steps", "5", "--telemetry.report"
    )
    command = (*two_hosts.horovodrun("v100a:1,v100b:1"), *TRAIN, *options)
    with two_hosts.running(command, tmp_path) as run:
        run.wait_for(lambda: toy.steps_done(run_dir) >= STEPS_BEFORE)
        run.ranks()[1].send_signal(signal.SIGKILL)
        done = run.finished()
        assert run.left_behind() == []
    sentences = [line for line in done.stderr.splitlines() if "hvd_nmt.train: " in line]
    assert len(sentences) == 1, done.stderr
    assert "Another rank ended, with its message above" in sentences[0]
    assert "stopping" not in done.stderr
