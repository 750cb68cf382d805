"""python -m hvd_nmt.launch on two hosts: ranks and hosts that are lost and come back."""

import contextlib
import re
import signal

import psutil

import toy
from hvd_nmt.checkpoints.manifest import newest_step
from launched import SECRETS, command_lines_read, events, require_no_secret

LAUNCH = ("python", "-m", "hvd_nmt.launch")


# Ranks that start in no time, and never end by themselves.
RANK = """
import os, pathlib, socket, time
pathlib.Path(f"{socket.gethostname()}-{os.getpid()}").touch()
time.sleep(3000)
"""


def test_a_host_that_is_gone_is_left_out_and_taken_in_again(two_hosts, tmp_path):
    """Its rank cannot be ended while the cable is out, and is when it is in again."""
    (tmp_path / "rank.py").write_text(RANK)

    def ranks(host: str, number: int) -> list[psutil.Process]:
        """The processes of a host, oldest first, once there were so many."""
        run.wait_for(lambda: len(list(tmp_path.glob(f"{host}-*"))) == number)
        paths = sorted(tmp_path.glob(f"{host}-*"), key=lambda path: path.stat().st_mtime_ns)
        pids = [int(path.name.partition("-")[2]) for path in paths]
        return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]

    words = ("-H", "v100a:1,v100b:1", "--min-ranks", "1", "--", "python", "rank.py")
    with two_hosts.running((*LAUNCH, *words), tmp_path, HVD_NMT_GRACE_S="2") as run:
        (remote,) = ranks("v100b", 1)
        two_hosts.cut()
        ranks("v100a", 1)[-1].kill()
        alone = ranks("v100a", 2)[-1]
        assert is_alive(remote)
        two_hosts.heal()
        alone.kill()
        ranks("v100b", 2)
        assert not is_alive(remote)
        run.process.send_signal(signal.SIGTERM)
        done = run.finished()
        left = run.left_behind()
    assert done.returncode == 75, done.stderr
    assert left == []
    said = re.findall(r"hvd_nmt.launch: (starting \d.*|without v100b: v100b: ssh)",
                      done.stderr)  # fmt: skip
    assert said == [
        "starting 2 ranks on v100a:1,v100b:1, network card eth0.",
        "without v100b: v100b: ssh",
        "starting 1 rank on v100a:1, network card lo.",
        "starting 2 ranks on v100a:1,v100b:1, network card eth0.",
    ], done.stderr


def test_a_stop_reaches_ranks_that_are_all_on_other_hosts(two_hosts, toy_data, tmp_path):
    """As when a terminal is closed. Secrets of the environment are in no command line or file."""
    run_dir = tmp_path / "run"
    options = toy.train_options(toy_data, "run", 100_000)
    # Tests that nohup has started would hand on that it is ignored, as the launcher then does.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    command = (*LAUNCH, "-H", "v100b:1", "train", *options)
    with command_lines_read() as seen, two_hosts.running(command, tmp_path, **SECRETS) as run:
        run.wait_for(lambda: toy.steps_done(run_dir) >= 6)
        run.process.send_signal(signal.SIGHUP)
        done = run.finished()
        left = run.left_behind(5)
    assert done.returncode == 75, done.stderr
    assert left == []
    saved = newest_step(run_dir)
    assert saved == toy.steps_done(run_dir)
    assert f"the newest checkpoint is of step {saved:,}: " in done.stderr.splitlines()[-1]
    assert events(run_dir)[0]["nic"] == "eth0"
    assert seen == set()
    require_no_secret(done.stdout + done.stderr, run_dir)


def is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
