"""The doctor between two real hosts: real ssh, real Horovod."""

import re

import pytest


def test_two_real_hosts_with_a_link_of_200_mbit(two_hosts, toy_data, tmp_path):
    """Real ssh, real Horovod: everything passes, and the ring law gives the bandwidth."""
    two_hosts.limit("200mbit")
    command = ["python", "-m", "hvd_nmt.doctor", "-H", "v100a:2,v100b:2", "--timeout-s", "40",
               "--data.corpus", "files", "--data.directory", str(toy_data),
               "--model.feed-forward-width", "2048", "--training.tokens-per-step", "512",
               "--training.exchange", "float32"]  # fmt: skip
    done = two_hosts.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failures: a run will start." in done.stdout
    assert re.search(r"^\w+ +network +v100a, v100b +eth0 to the others", done.stdout, re.MULTILINE)
    # 200 Mbit/s are 25 MB/s, less headers; the bucket of the limiter lets a little more through.
    found = re.search(r"by each rank at (\S+) MB/s", done.stdout)
    assert float(found[1]) == pytest.approx(24, rel=0.2)
    assert "\nverdict     network-bound" in done.stdout


def test_a_host_behind_a_pulled_cable_costs_its_time_limit_only(two_hosts, tmp_path):
    two_hosts.cut()
    command = ["python", "-m", "hvd_nmt.doctor", "-H", "v100a:2,v100b:2", "--timeout-s", "4"]
    done = two_hosts.run(command, timeout_s=30, cwd=tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "FAIL  ssh" in done.stdout
    assert "not measured: ssh of v100b fails" in done.stdout
