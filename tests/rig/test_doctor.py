"""The doctor between two real hosts: real ssh, real Horovod."""

import json

import pytest

PLAIN = ("--training.wire", "float32", "--training.hierarchical", "off",
         "--training.islands", "off")  # fmt: skip


def test_two_real_hosts_with_a_link_of_200_mbit(two_hosts, tmp_path):
    """Real ssh, real Horovod: everything passes, and the ring law gives the bandwidth."""
    two_hosts.limit("200mbit")
    command = ["python", "-m", "hvd_nmt.doctor", "-H", "v100a:2,v100b:2", "--json",
               "--timeout-s", "40", *PLAIN]  # fmt: skip
    done = two_hosts.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    bad = [check for check in found["checks"] if check["status"] == "fail"]
    assert bad == []
    assert {check["host"] for check in found["checks"]} == {"v100a", "v100b", ""}
    network = [check for check in found["checks"] if check["name"] == "network"]
    assert network
    assert all("eth0" in check["found"] for check in network)
    predicted = found["prediction"]
    assert predicted["ranks"] == 4
    assert predicted["sent_bytes"] == 2 * 3 / 4 * 4 * 1_435_136
    # 200 Mbit/s are 25 MB/s, less headers; the bucket of the limiter lets a little more through.
    assert predicted["bandwidth_MB_per_s"] == pytest.approx(24, rel=0.2)
    assert predicted["verdict"] == "network-bound"


def test_a_host_behind_a_pulled_cable_costs_its_time_limit_only(two_hosts, tmp_path):
    two_hosts.cut()
    command = ["python", "-m", "hvd_nmt.doctor", "-H", "v100a:2,v100b:2", "--timeout-s", "4"]
    done = two_hosts.run(command, timeout_s=30, cwd=tmp_path)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "FAIL  ssh" in done.stdout
    assert "not measured: ssh of v100b fails" in done.stdout
