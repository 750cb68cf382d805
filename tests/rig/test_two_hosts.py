"""The real thing on one machine: two host names, ssh between them, a link that can be measured."""

import re

import pytest

TENSOR_BYTES = 30_000_000
RANKS = 4

# Counters are read between two tiny reductions, when nothing of the big one is on the way.
ALLREDUCE = f"""
import socket
import hvd_nmt
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()

def sent_bytes():
    hvd.allreduce(tf.ones([1]), op=hvd.Sum, name="barrier")
    with open("/sys/class/net/eth0/statistics/tx_bytes") as counter:
        return int(counter.read())

tensor = tf.fill([{TENSOR_BYTES} // 4], float(hvd.rank() + 1))
before = sent_bytes()
total = hvd.allreduce(tensor, op=hvd.Sum, name="big")
after = sent_bytes()
print(f"host={{socket.gethostname()}} rank={{hvd.rank()}} size={{hvd.size()}}",
      f"sum={{float(total[0])}} sent={{after - before}}", flush=True)
"""


def test_horovodrun_reaches_both_hosts_by_ssh_and_obeys_the_ring_law(two_hosts):
    command = ["horovodrun", "-np", "4", "-H", "v100a:2,v100b:2", "python", "-c", ALLREDUCE]
    done = two_hosts.run(command)
    lines = re.findall(r"host=(\w+) rank=(\d) size=(\d) sum=([\d.]+) sent=(\d+)", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = sorted((int(rank), host) for host, rank, *_ in lines)
    assert ranks == [(0, "v100a"), (1, "v100a"), (2, "v100b"), (3, "v100b")]
    assert {(int(size), float(total)) for _, _, size, total, _ in lines} == {(RANKS, 10.0)}
    # In a ring of N ranks each link carries 2(N-1)/N of the tensor; each host has one link out.
    expected = 2 * (RANKS - 1) / RANKS * TENSOR_BYTES
    for host in two_hosts.names:
        sent = max(int(sent) for name, *_, sent in lines if name == host)
        assert sent == pytest.approx(expected, rel=0.10), host


def test_the_cable_can_be_pulled_and_plugged_in(two_hosts):
    ssh = ["ssh", "-o", "ConnectTimeout=1", "v100b", "hostname"]
    two_hosts.cut()
    assert two_hosts.run(ssh, timeout_s=20).returncode == 255
    two_hosts.heal()
    assert two_hosts.run(ssh, timeout_s=20).stdout == "v100b\n"


def test_a_limited_link_is_slow(two_hosts):
    send_5_mb = ["bash", "-c", "head -c 5000000 /dev/zero | ssh v100b 'wc -c'; echo $SECONDS"]
    two_hosts.limit("8mbit")
    received, seconds = map(int, two_hosts.run(send_5_mb, timeout_s=60).stdout.split())
    assert received == 5_000_000
    assert seconds >= 4  # 5 MB at 1 MB/s, less one burst
