"""CPU, memory and network of this host: real work, made-up traffic and resets."""

import itertools
import socket
import time
from types import SimpleNamespace

import psutil

from hvd_nmt.telemetry import host
from hvd_nmt.telemetry.host import NetworkProbe, cpu_flags, host_sample


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


def test_interfaces_have_rates_and_totals_come_and_go_and_are_reset(monkeypatch):
    counters, moments_s = {}, itertools.count(step=0.5)
    state = SimpleNamespace(isup=True, speed=10000, flags="up,running")
    monkeypatch.setattr(host, "time", SimpleNamespace(monotonic=lambda: next(moments_s)))
    monkeypatch.setattr(psutil, "net_if_stats", lambda: dict.fromkeys(counters, state))
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic, nowrap: {
        nic: SimpleNamespace(bytes_sent=sent, bytes_recv=received)
        for nic, (sent, received) in counters.items()
    })  # fmt: skip

    def seen(**now):
        counters.clear()
        counters.update(now)
        samples = probe.sample()
        assert {nic["link_mbit_per_s"] for nic in samples.values()} == {10000}
        return {
            name: (nic["sent_bytes_total"], nic["received_bytes_total"], nic["sent_MB_per_s"])
            for name, nic in samples.items()
        }

    counters["eth0"] = (1_000_000, 2_000_000)
    probe = NetworkProbe()
    assert seen(eth0=(4_000_000, 2_000_000), ib0=(700, 700)) == {
        "eth0": (3_000_000, 0, 6.0), "ib0": (0, 0, None),
    }  # fmt: skip
    assert seen(ib0=(900, 700)) == {"ib0": (200, 0, 0.0004)}
    assert seen(ib0=(100, 800)) == {"ib0": (-600, 100, None)}


def test_the_round_trip_to_another_host_is_that_of_an_open_connection():
    with (
        socket.create_server(("127.0.0.2", 0)) as server,
        socket.create_connection(server.getsockname(), source_address=("127.0.0.1", 0)) as one,
        server.accept()[0] as other,
    ):
        one.send(b"x")
        assert other.recv(1) == b"x"
        assert 0 < host.round_trip_ms({"127.0.0.2"}) < 60_000
        assert host.round_trip_ms({"127.0.0.3"}) is None
        other.send(b"y")  # both are still open
        assert one.recv(1) == b"y"
    assert host.round_trip_ms({"127.0.0.2"}) is None
    assert "127.0.0.1" in host.addresses()
