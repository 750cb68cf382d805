"""Asking hosts through agents: a fake ssh stands for hosts that fail, hang or are slow."""

import json
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from hvd_nmt.hosts import transport
from hvd_nmt.hosts.connection import Connections
from hvd_nmt.hosts.host_list import Host
from launched import program

HERE, FAR, ONE, OTHER, REFUSES, BARE, DIES, HANGS, TELLS = (f"192.0.2.{n}" for n in range(1, 10))
"""addresses that are kept for documentation, for names would be looked up"""
SSH = f"""#!{sys.executable}
import json, os, sys, time
options, name, command = sys.argv[1:-2], sys.argv[-2], sys.argv[-1]
assert "BatchMode=yes" in options, options
if name == "{HANGS}":
    time.sleep(600)
elif name in ("{ONE}", "{OTHER}"):  # each goes on when both have begun
    folder = os.path.dirname(sys.argv[0])
    open(os.path.join(folder, name + ".begun"), "w").close()
    while not all(os.path.exists(f"{{folder}}/{{each}}.begun") for each in ("{ONE}", "{OTHER}")):
        time.sleep(0.01)
elif name == "{REFUSES}":
    sys.exit(print("x@refuses: Permission denied (publickey).", file=sys.stderr) or 255)
elif name == "{BARE}":
    sys.exit(print("No module named hvd_nmt", file=sys.stderr) or 1)
elif name == "{DIES}":
    sys.exit(3)
elif name == "{TELLS}":
    print(json.dumps([sys.argv, sys.stdin.readline()]), file=sys.stderr)
    sys.exit(1)
print("Welcome to", name, flush=True)
os.execl("/bin/sh", "sh", "-c", command)
"""


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """A program ssh that runs the command here, or does not."""
    program(tmp_path / "bin" / "ssh", SSH)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(transport, "is_here", lambda name: name == HERE)


def asked(hosts, request, timeout_s):
    with Connections(timeout_s) as connections:
        return connections.ask(hosts, request)


def test_other_hosts_get_the_folder_python_and_environment_of_a_rank(
    fake_ssh, monkeypatch, tmp_path
):
    """Of a choice of GPUs only numbers: names are each host's own."""
    monkeypatch.chdir(tmp_path)
    passed = {"PYTHONPATH": "/a b", "HOROVOD_CYCLE_TIME": "7", "CUDA_VISIBLE_DEVICES": "1"}
    for name, value in (passed | {"MY_TOKEN": "canary"}).items():
        monkeypatch.setenv(name, value)

    def told():
        (answer,) = asked([Host(TELLS, 1)], {}, timeout_s=600.0)
        words, first = json.loads(answer.error)
        return words, json.loads(first)

    (_, *options, name, command), variables = told()
    assert {"BatchMode=yes", "ConnectTimeout=300"} <= set(options)
    assert name == TELLS
    assert command.startswith(f"cd {tmp_path} && exec {sys.executable} -c ")
    assert "/a b" not in command  # nor any other value
    assert passed.items() <= variables.items()
    assert "MY_TOKEN" not in variables
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5a1b")
    assert "CUDA_VISIBLE_DEVICES" not in told()[1]


def test_hosts_are_asked_together_and_what_fails_is_told(fake_ssh, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    wanted = [Host(name, 1) for name in (HERE, ONE, OTHER, REFUSES, BARE, DIES)]
    answers = asked(wanted, {"run_dir": "runs/x"}, timeout_s=600.0)
    here, one, other, refuses, bare, dies = answers
    assert [answer.host for answer in answers] == wanted
    for answer in (here, one, other):
        assert answer.error is None
        assert answer.facts["host"] == socket.gethostname()
        assert answer.facts["gpu"]["visible_devices"] == "1"
        assert set(answer.facts["names"]) >= {host.name for host in wanted}
        assert answer.clock_differs_s < 1800
    assert refuses.error == "x@refuses: Permission denied (publickey)."
    assert bare.error == "No module named hvd_nmt"
    assert dies.error == "its agent ended with code 3"


def test_a_host_that_hangs_costs_its_limit(fake_ssh):
    (hangs,) = asked([Host(HANGS, 1)], {}, timeout_s=0.5)
    assert (hangs.facts, hangs.error) == ({}, "no answer within 0.5 s")


def test_an_interrupt_ends_ssh(fake_ssh):
    code = f"""
from hvd_nmt.hosts.host_list import Host
from hvd_nmt.hosts import transport
from hvd_nmt.hosts.connection import Connections
with Connections(60.0) as connections:
    connections.to(Host("{HANGS}", 1))
    print("asks", flush=True)
    connections.ask([Host("{HANGS}", 1)], {{}})
"""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as asker:
        assert asker.stdout.readline() == b"asks\n"
        begun = psutil.Process(asker.pid).children()
        asker.send_signal(signal.SIGINT)
        assert asker.wait(60) != 0
    assert psutil.wait_procs(begun, timeout=60)[1] == []


def test_another_clock_is_measured(monkeypatch, tmp_path, fake_ssh):
    """The far host's Python adds an hour to its clock."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "sitecustomize.py").write_text(
        "import time\nnow = time.time\ntime.time = lambda: now() + 3600\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "late"))
    (answer,) = asked([Host(FAR, 1)], {}, timeout_s=600.0)
    assert answer.error is None
    assert answer.clock_differs_s > 1800
