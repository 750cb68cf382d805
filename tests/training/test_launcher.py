"""What horovodrun was asked for, and ranks that come apart: they meet before Horovod starts."""

import os
import subprocess
import sys
import types

import pytest
from horovod.runner.http import http_server

import toy
from hvd_nmt.common.errors import ClusterError
from hvd_nmt.training import launcher

# Gloo gives ranks 2 s here to start together, and rank 1 comes after 6 s.
LATE = """
import os, time
import hvd_nmt
from hvd_nmt.training import horovod
time.sleep(6 * (os.environ["HOROVOD_RANK"] == "1"))
print("has", horovod.init().size)
"""


@pytest.fixture
def server(monkeypatch):
    """Horovod's own, for ranks 0 to 2 of which this process is one; a function to say which."""
    found = http_server.RendezvousServer()
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", "127.0.0.1")
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", str(found.start()))
    monkeypatch.setenv("HOROVOD_SIZE", "3")
    yield lambda rank: monkeypatch.setenv("HOROVOD_RANK", str(rank))
    found.stop()
    found._httpd.server_close()


def run_below(monkeypatch, command):
    """This process was started by that one, through a shell."""
    shell, horovodrun = (types.SimpleNamespace(cmdline=text.split) for text in ("sh -c x", command))
    process = types.SimpleNamespace(parents=lambda: [shell, horovodrun])
    monkeypatch.setattr(launcher.psutil, "Process", lambda: process)


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("python /venv/bin/horovodrun -np 2 -H v100a:2,v100b:2 python -m hvd_nmt.train", 2),
        ("/venv/bin/horovodrun --verbose --num-proc 3 python train.py -np 7", 3),
        ("python hvd_nmt/launching/horovodrun.py -np 4 -H a:4 python -m hvd_nmt.train", 4),
        ("python -m hvd_nmt.train", None),
    ],
)
def test_what_horovodrun_was_asked_for_is_read_off_its_command_line(monkeypatch, command, asked):
    run_below(monkeypatch, command)
    assert launcher.asked_ranks() == asked


@pytest.mark.long
@pytest.mark.both_tensorflows
def test_a_rank_may_come_later_than_gloo_waits(toy_commands, tmp_path):
    environment = toy.environment(tmp_path) | {"HOROVOD_GLOO_TIMEOUT_SECONDS": "2"}
    command = [*toy.horovodrun(2), *toy_commands.command(LATE)]
    done = toy.Run(command, tmp_path, environment).finished()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("has 2") == 2


def test_a_rank_that_does_not_come_is_named_with_its_host(server, capsys, monkeypatch):
    """After a while a line says who is waited for."""
    monkeypatch.setattr(launcher, "_NOTICE_S", -1.0)
    words = "python horovodrun -np 3 -H v100a:2,v100b:1 python -m hvd_nmt.train"
    run_below(monkeypatch, words)
    server(0)
    with pytest.raises(
        ClusterError, match=r"^Rank 1, 2 \(v100a, v100b\) did not come within 0.2 s"
    ):
        launcher.meet(0.2)
    waited_for = "waiting     for rank 1, 2 (v100a, v100b), up to 0.2 s\n"
    assert capsys.readouterr().out == waited_for


@pytest.mark.parametrize(("rank", "said"), [(1, "hvd_nmt: Rank 0 did not come within "), (2, "")])
def test_where_rank_0_is_missing_one_other_says_so(server, capsys, rank, said):
    server(rank)
    with pytest.raises(SystemExit) as ended:
        launcher.meet(0.2)
    assert ended.value.code == 5
    lines = capsys.readouterr().err.splitlines()
    assert [line[: len(said)] for line in lines] == ([said] if said else [])


@pytest.mark.parametrize(
    ("own", "first", "becomes"),
    [(None, "2,3", "2,3"), ("1", "2,3", "1"), (None, "GPU-5a1b", None)],
)
def test_gpus_chosen_on_the_first_host_are_those_of_all(server, monkeypatch, own, first, becomes):
    """horovodrun takes CUDA_VISIBLE_DEVICES out of what it hands to another host."""
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    code = "from hvd_nmt.training import launcher; launcher.meet(600)"
    environment = {**os.environ, "HOROVOD_RANK": "0", "CUDA_VISIBLE_DEVICES": first}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", own or "")  # to be put back
        if own is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        server(1)
        launcher.meet(600)
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == becomes
    assert process.returncode == 0


def test_a_closed_port_is_one_sentence(server, capsys, monkeypatch):
    monkeypatch.setattr(launcher, "_SILENCE_S", 0.0)
    monkeypatch.setenv("HOROVOD_GLOO_RENDEZVOUS_PORT", "1")
    server(1)
    with pytest.raises(SystemExit):
        launcher.meet()
    assert "does not reach horovodrun at 127.0.0.1 port 1 (" in capsys.readouterr().err
