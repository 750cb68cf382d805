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

GRACE_S = 1.0
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
word = input()
if word == "finish":
    watchdog.watch([])
if word == "silent":
    heartbeat = Heartbeat()
    heartbeat.page, heartbeat.limit_s, heartbeat.who = watchdog.page, 1.0, "Rank 0"
    for section in ("step", "callbacks", "step"):
        heartbeat.enter(section)
time.sleep(60)
"""
LAUNCHER = "import subprocess, sys; subprocess.run(['sh', '-c', '\"$@\"; true', *sys.argv])"


@pytest.fixture
def started(tmp_path):
    """A launcher with a rank below a shell, the rank, its watchdog, connections of two peers."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listener.getsockname()[1]
        command = [
            sys.executable,
            "-c",
            LAUNCHER,
            sys.executable,
            "-c",
            RANK,
            str(GRACE_S),
            str(port),
        ]
        launcher = stack.enter_context(subprocess.Popen(
            command, cwd=tmp_path, env=toy.environment(tmp_path), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ))  # fmt: skip
        stack.callback(launcher.kill)
        peers = [stack.enter_context(listener.accept()[0]) for _ in range(2)]
        rank, watchdog = (psutil.Process(int(pid)) for pid in launcher.stdout.readline().split())
        yield launcher, rank, watchdog, peers
        for process in (rank, watchdog):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def is_alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != "zombie"
    return False


def wait_for_the_end(*processes):
    deadline = time.monotonic() + 30
    while any(map(is_alive, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("gone", ["launcher", "peer"])
def test_a_stopped_rank_is_killed(started, gone, tmp_path):
    launcher, rank, watchdog, peers = started
    rank.suspend()
    time.sleep(1.5 + GRACE_S)
    assert rank.status() == "stopped"  # nobody has left it yet
    launcher.kill() if gone == "launcher" else peers[0].close()
    wait_for_the_end(rank, watchdog)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize("stopped", ["rank", "launcher"])
def test_a_rank_that_does_nothing_for_too_long_is_killed(started, stopped):
    """A stopped launcher, too, is somebody's Ctrl-Z, who may let the run go on."""
    launcher, rank, watchdog, _ = started
    if stopped == "launcher":
        psutil.Process(launcher.pid).suspend()
    rank.suspend()
    print("silent", file=launcher.stdin, flush=True)
    rank.resume()
    if stopped == "launcher":
        time.sleep(4)
        assert is_alive(rank)
        psutil.Process(launcher.pid).resume()
    wait_for_the_end(rank, watchdog)
    launcher.wait(10)
    said = launcher.stderr.read()
    assert "hvd_nmt.train: Rank 0 has done nothing" in said
    assert "in <module>" in said  # its stack


def test_the_time_in_which_a_watchdog_did_not_run_does_not_count(monkeypatch):
    """A container that was paused has not had it, nor has its rank."""
    now_s = [0.0]
    monkeypatch.setattr(watchdog_module.time, "monotonic", lambda: now_s[0])
    page = bytearray(watchdog_module.PAGE_BYTES)
    times_s = watchdog_module.DEADLINES.pack(5.0, 2.0, 0.0)
    page[: watchdog_module.DEADLINES.size] = times_s
    patience = watchdog_module._Patience(page, [os.getpid()])
    ended = []
    for passed_s in (1, 1, 3600, 1, 1, 1, 1):
        now_s[0] += passed_s
        ended.append(patience.has_ended())
    assert ended == [False] * 6 + [True]


def test_a_rank_without_a_launcher_is_asked_to_end(started, tmp_path):
    launcher, rank, watchdog, _ = started
    launcher.kill()
    wait_for_the_end(rank, watchdog)
    assert (tmp_path / "asked").exists()


def test_whoever_has_finished_may_lose_its_peers(started):
    launcher, rank, watchdog, peers = started
    print("finish", file=launcher.stdin, flush=True)
    peers[0].close()
    time.sleep(1.5 + GRACE_S)
    assert rank.status() == "sleeping"
    rank.kill()
    wait_for_the_end(rank, watchdog)


@pytest.mark.parametrize("first", [True, False])
def test_a_rank_that_ends_with_a_peer_leaves_word_of_it(started, first):
    """As Gloo aborts a rank because of another's end, before the rank could say so."""
    _, rank, _, peers = started
    rank.suspend()
    if first:
        peers[0].close()
    rank.kill()
    assert peers[1].recv(2) == (b"L0" if first else b"")


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
