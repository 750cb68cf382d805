"""The network probe: real traffic on loopback, made-up resets."""

import itertools
import socket
import threading
from types import SimpleNamespace

import psutil
import pytest

from hvd_nmt.telemetry import network
from hvd_nmt.telemetry.network import NetworkProbe, nics


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
    monkeypatch.setattr(network, "time", SimpleNamespace(monotonic=lambda: next(moments_s)))
    probe = NetworkProbe()
    send_over_loopback(size_bytes)
    seen = probe.sample()["lo"]
    # Above the payload are headers (1 % at most here) and what else uses loopback at this moment.
    assert size_bytes <= seen.sent_bytes_total
    assert size_bytes <= seen.received_bytes_total
    assert seen.sent_MB_per_s == pytest.approx(seen.sent_bytes_total / 0.5 / 1e6)
    assert seen.is_loopback
    assert nics()["lo"].link_mbit_per_s is None

    send_over_loopback(size_bytes)
    assert probe.sample()["lo"].sent_bytes_total >= 2 * size_bytes


@pytest.fixture
def counters(monkeypatch):
    """Interfaces whose counters the test sets, sent and received bytes; all are up."""
    shown: dict[str, tuple[int, int]] = {}
    state = SimpleNamespace(isup=True, speed=10000, flags="up,running")
    monkeypatch.setattr(psutil, "net_if_stats", lambda: dict.fromkeys(shown, state))

    def counters(pernic: bool, nowrap: bool) -> dict[str, SimpleNamespace]:
        return {
            nic: SimpleNamespace(bytes_sent=sent, bytes_recv=received)
            for nic, (sent, received) in shown.items()
        }

    monkeypatch.setattr(psutil, "net_io_counters", counters)
    return shown


def test_a_reset_counter_gives_no_rate_and_totals_never_fall(counters):
    counters["eth0"] = (1_000_000, 2_000_000)
    probe = NetworkProbe()
    counters["eth0"] = (4_000_000, 2_000_000)
    assert probe.sample()["eth0"].sent_bytes_total == 3_000_000
    counters["eth0"] = (500_000, 2_500_000)
    seen = probe.sample()["eth0"]
    assert seen.sent_MB_per_s is None
    assert seen.received_MB_per_s is not None
    assert (seen.sent_bytes_total, seen.received_bytes_total) == (3_500_000, 500_000)


def test_interfaces_come_and_go(counters):
    counters["eth0"] = (0, 0)
    probe = NetworkProbe()
    counters["eth0"] = (100, 0)
    counters["ib0"] = (700, 700)
    first = probe.sample()
    assert (first["ib0"].sent_MB_per_s, first["ib0"].sent_bytes_total) == (None, 0)
    assert first["ib0"].link_mbit_per_s == 10000
    del counters["eth0"]
    counters["ib0"] = (900, 700)
    second = probe.sample()
    assert set(second) == {"ib0"}
    assert second["ib0"].sent_bytes_total == 200
    counters["eth0"] = (5, 0)
    third = probe.sample()["eth0"]
    assert (third.sent_MB_per_s, third.sent_bytes_total) == (None, 100)
