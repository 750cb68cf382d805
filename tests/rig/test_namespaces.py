"""What needs a namespace of its own, but not the two hosts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import toy

NICS = """
import json, subprocess
from hvd_nmt.hosts import facts
from hvd_nmt.telemetry.host import NetworkProbe
ip = lambda *words: subprocess.run(["ip", *words], check=True)
ip("link", "set", "lo", "up")
ip("link", "add", "eth0", "type", "veth", "peer", "name", "far0")
ip("link", "set", "eth0", "up")
ip("link", "set", "far0", "up")
probe = NetworkProbe()
both = probe.sample()
ip("link", "set", "far0", "down")
cut = facts.nics({})
ip("link", "delete", "eth0")
left = probe.sample()
print(json.dumps({"both": sorted(both), "cut": cut, "left": [*left],
                  "link_mbit_per_s": both["eth0"]["link_mbit_per_s"]}))
"""
RANK = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(0.5)
    pathlib.Path("log").write_text("saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
pathlib.Path("log").write_text("ready")
time.sleep(600)
"""


def test_in_a_namespace_only_its_own_interfaces_are_seen():
    command = ["unshare", "--net", sys.executable, "-W", "error", "-c", NICS]
    seen = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    assert seen["both"] == ["eth0", "far0", "lo"]
    assert seen["cut"]["far0"]["is_up"] is False
    assert seen["left"] == ["lo"]
    assert seen["link_mbit_per_s"] == 10000  # what the kernel says of a veth


def test_a_container_that_is_told_to_end_waits_for_its_ranks(tmp_path):
    """sshd.sh as process 1 of a namespace, with an /etc/ssh of its own, and a rank beside it."""
    (tmp_path / "rank.py").write_text(RANK)
    sshd = toy.ROOT / "launch" / "sshd.sh"
    container = (
        "set -e; mount -t tmpfs none /etc/ssh; touch /etc/ssh/sshd_config; "
        f"(HOROVOD_RANK=0 exec python3 rank.py) & exec {sshd} 2022"
    )
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    with subprocess.Popen(
        [*command, "bash", "-c", container], cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as unshare:  # fmt: skip
        while "listening" not in unshare.stderr.readline():
            assert unshare.poll() is None
        while not (tmp_path / "log").exists():
            time.sleep(0.05)
        (first,) = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        unshare.communicate(timeout=600)
    assert (tmp_path / "log").read_text() == "saved"
