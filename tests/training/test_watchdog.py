"""A rank that is left behind ends: asked first, and killed where it cannot hear."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time

import psutil
import pytest

import toy
from hvd_nmt.training import watchdog as watchdog_module

RANK = """
import os, signal, socket, sys, time
from hvd_nmt.training.heartbeat import Heartbeat
from hvd_nmt.training.watchdog import Watchdog
def asked(*_):
    open("asked", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, asked)
watchdog = Watchdog(float(sys.argv[1]))
links = [socket.create_connection(("127.0.0.1", int(sys.argv[2]))) for _ in range(2)]
watchdog.watch([(link, b"L%d" % number) for number, link in enumerate(links)])
print(os.getpid(), watchdog._process.pid, flush=True)
input()
heartbeat = Heartbeat()
heartbeat.page, heartbeat.limit_s, heartbeat.who = watchdog.page, 1.0, "Rank 0"
for section in ("step", "callbacks", "step"):
    heartbeat.enter(section)
time.sleep(600)
"""
LAUNCHER = "import subprocess, sys; subprocess.run(['sh', '-c', '\"$@\"; true', *sys.argv])"


@pytest.fixture
def start(tmp_path):
    """A function: a launcher, its rank below a shell, that one's watchdog, links of two peers."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def started(grace_s):
            words = (str(grace_s), str(listener.getsockname()[1]))
            command = [sys.executable, "-c", LAUNCHER, sys.executable, "-c", RANK, *words]
            launcher = stack.enter_context(subprocess.Popen(
                command, cwd=tmp_path, env=toy.environment(tmp_path), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            ))  # fmt: skip
            stack.callback(launcher.kill)
            peers = [stack.enter_context(listener.accept()[0]) for _ in range(2)]
            pids = map(int, launcher.stdout.readline().split())
            rank, watchdog = (stack.enter_context(ended_at_last(pid)) for pid in pids)
            return launcher, rank, watchdog, peers

        yield started


@contextlib.contextmanager
def ended_at_last(pid):
    process = psutil.Process(pid)
    yield process
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def is_alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != "zombie"
    return False


def wait_for_the_end(*processes):
    deadline = time.monotonic() + 600
    while any(map(is_alive, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("gone", ["launcher", "peer"])
def test_a_stopped_rank_is_killed(start, gone, tmp_path):
    launcher, rank, watchdog, peers = start(grace_s=0.1)
    rank.suspend()
    launcher.kill() if gone == "launcher" else peers[0].close()
    wait_for_the_end(rank, watchdog)
    assert not (tmp_path / "asked").exists()


def test_a_rank_without_a_launcher_is_asked_to_end(start, tmp_path):
    launcher, rank, watchdog, _ = start(grace_s=600)
    launcher.kill()
    wait_for_the_end(rank, watchdog)
    assert (tmp_path / "asked").exists()


def test_a_rank_that_does_nothing_for_too_long_is_killed(start):
    launcher, rank, watchdog, _ = start(grace_s=600)
    said = launcher.communicate("be silent\n", timeout=600)[1]
    wait_for_the_end(rank, watchdog)
    assert "hvd_nmt.train: Rank 0 has done nothing" in said
    assert "in <module>" in said  # its stack


@pytest.mark.parametrize("first", [True, False])
def test_a_rank_that_ends_with_a_peer_leaves_word_of_it(start, first):
    """As Gloo aborts a rank because of another's end, before the rank could say so."""
    _, rank, _, peers = start(grace_s=600)
    rank.suspend()
    if first:
        peers[0].close()
    rank.kill()
    assert peers[1].recv(2) == (b"L0" if first else b"")


def patience(monkeypatch, passed_s):
    """What it says after each time that passed; the rank must come further within 5 s."""
    now_s = [0.0]
    monkeypatch.setattr(watchdog_module.time, "monotonic", lambda: now_s[0])
    page = bytearray(watchdog_module.PAGE_BYTES)
    times_s = watchdog_module.DEADLINES.pack(5.0, 2.0, 0.0)
    page[: watchdog_module.DEADLINES.size] = times_s
    looks = watchdog_module._Patience(page, [os.getpid(), 7])
    ended = []
    for seconds in passed_s:
        now_s[0] += seconds
        ended.append(looks.has_ended())
    return ended


def test_the_time_in_which_a_watchdog_did_not_run_does_not_count(monkeypatch):
    """A container that was paused has not had it, nor has its rank."""
    ended = patience(monkeypatch, (1, 1, 3600, 1, 1, 1, 1))
    assert ended == [False] * 6 + [True]


@pytest.mark.parametrize(("stopped", "at"), [("rank", 3), ("launcher", None)])
def test_a_stopped_launcher_is_waited_for_and_a_stopped_rank_less_long(monkeypatch, stopped, at):
    """That launcher is somebody's Ctrl-Z, who may let the run go on."""
    wanted = os.getpid() if stopped == "rank" else 7
    monkeypatch.setattr(watchdog_module, "_is_stopped", lambda pid: pid == wanted)
    ended = patience(monkeypatch, [1] * 20)
    assert ended == [False] * 20 if at is None else ended.index(True) == at - 1


def test_a_login_s_sshd_is_no_launcher(monkeypatch):
    """Started there as `python -m horovod.runner.launch`, a run outlives the login."""
    tree = {9: "sh", 8: "python", 7: "python", 6: "bash", 5: "sshd", 1: "init"}
    parents = dict(itertools.pairwise((10, *tree)))
    monkeypatch.setattr(watchdog_module, "_parent", lambda pid: parents.get(pid, 0))
    monkeypatch.setattr(watchdog_module, "_name", lambda pid: tree.get(pid, ""))
    assert watchdog_module._ancestors(10) == [9, 8]
    tree[7] = "horovodrun"
    assert watchdog_module._ancestors(10) == [9, 8, 7]
    tree |= {8: "bash", 7: "sshd"}
    assert watchdog_module._ancestors(10) == [9, 8, 7]
