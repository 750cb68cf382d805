"""CPU, memory and network of this host: real work and traffic, made-up resets."""

import itertools
import socket
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from hvd_nmt.telemetry import host
from hvd_nmt.telemetry.host import NetworkProbe, cpu_flags, host_sample, nics


def test_flags_are_read_from_the_kernel(monkeypatch, tmp_path):
    assert all(isinstance(flag, str) for flag in cpu_flags())
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: x\nflags\t\t: fpu avx512_bf16 sse\n\n")
    monkeypatch.setattr(host, "Path", lambda name: cpuinfo)
    assert cpu_flags() == {"fpu", "avx512_bf16", "sse"}
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd\n")  # ARM
    assert cpu_flags() == set()
    cpuinfo.unlink()
    assert cpu_flags() == set()


def test_work_shows_as_cpu():
    host_sample()
    used_before_s = time.process_time()
    while time.process_time() < used_before_s + 0.1:
        pass
    seen = host_sample()
    assert 0 < seen["cpu_percent"] <= 100
    assert 0 < seen["memory_used_bytes"] < psutil.virtual_memory().total


def send_over_loopback(size_bytes: int) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
    ):
        threading.Thread(target=sender.sendall, args=(bytes(size_bytes),)).start()
        connection, _ = server.accept()
        with connection:
            while size_bytes > 0:
                size_bytes -= len(connection.recv(1 << 20))


def test_real_traffic_gives_rates_and_totals(monkeypatch):
    size_bytes = 50_000_000
    moments_s = itertools.count(step=0.5)
    monkeypatch.setattr(host, "time", SimpleNamespace(monotonic=lambda: next(moments_s)))
    probe = NetworkProbe()
    send_over_loopback(size_bytes)
    seen = probe.sample()["lo"]
    # Above the payload are headers (1 % at most here) and what else uses loopback at this moment.
    assert size_bytes <= seen.sent_bytes_total
    assert size_bytes <= seen.received_bytes_total
    assert seen.sent_MB_per_s == pytest.approx(seen.sent_bytes_total / 0.5 / 1e6)
    assert seen.is_loopback
    assert nics()["lo"].link_mbit_per_s is None


def test_interfaces_come_and_go_and_are_reset(monkeypatch):
    counters = {}
    state = SimpleNamespace(isup=True, speed=10000, flags="up,running")
    monkeypatch.setattr(psutil, "net_if_stats", lambda: dict.fromkeys(counters, state))
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic, nowrap: {
        nic: SimpleNamespace(bytes_sent=sent, bytes_recv=received)
        for nic, (sent, received) in counters.items()
    })  # fmt: skip

    def seen(**now):
        counters.clear()
        counters.update(now)
        return {
            name: (nic.sent_bytes_total, nic.received_bytes_total, nic.sent_MB_per_s is not None)
            for name, nic in probe.sample().items()
        }

    counters["eth0"] = (1_000, 2_000)
    probe = NetworkProbe()
    assert seen(eth0=(4_000, 2_000), ib0=(700, 700)) == {
        "eth0": (3_000, 0, True), "ib0": (0, 0, False),
    }  # fmt: skip
    assert seen(ib0=(900, 700)) == {"ib0": (200, 0, True)}
    assert seen(ib0=(100, 800)) == {"ib0": (-600, 100, False)}
    assert nics()["ib0"].link_mbit_per_s == 10000
