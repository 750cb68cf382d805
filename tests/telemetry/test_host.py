"""The host probe: real work, real memory, real writes."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hvd_nmt.telemetry.host import HostProbe, host_facts


def test_facts():
    facts = host_facts()
    assert facts["host"]
    assert facts["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert facts["cpu_model"]
    assert facts["cores_logical"] >= facts["cores_usable"] >= 1
    assert facts["memory_total_bytes"] > 2**20


def test_work_shows_as_cpu():
    probe = HostProbe()
    used_before_s = time.process_time()
    end_s = time.monotonic() + 0.5
    while time.monotonic() < end_s:
        pass
    used_s = time.process_time() - used_before_s
    seen = probe.sample()
    # The kernel counts in hundredths of a second, and this process is not alone.
    least_percent = 100 * used_s / 0.5 / psutil.cpu_count() - 10
    assert least_percent <= seen.cpu_percent <= 100
    assert 0 <= seen.steal_percent <= 100
    assert seen.memory_used_bytes > 0


def test_stolen_and_waiting_time_is_not_busy_time(monkeypatch):
    names = psutil.cpu_times()._fields

    class Times(SimpleNamespace):
        _fields = names

    def times(**spent_s: float) -> Times:
        return Times(**{name: spent_s.get(name, 0.0) for name in names})

    monkeypatch.setattr(psutil, "cpu_times", lambda: times())
    probe = HostProbe()
    # user contains guest: 60 of 100 s are busy.
    monkeypatch.setattr(
        psutil,
        "cpu_times",
        lambda: times(user=50, guest=20, system=10, idle=15, iowait=5, steal=20),
    )
    seen = probe.sample()
    assert (seen.cpu_percent, seen.steal_percent) == (60.0, 20.0)
    assert probe.sample().cpu_percent is None  # no time passed


def test_memory_of_children_counts():
    size_bytes = 100_000_000
    script = f"data = b'x' * {size_bytes}; print('ready', flush=True); input()"
    alone_bytes = HostProbe().sample().process_tree_bytes
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        probe = HostProbe()
        both_bytes = probe.sample().process_tree_bytes
        child.communicate(b"\n")
        assert probe.sample().process_tree_bytes < both_bytes - size_bytes // 2  # it is gone now
    assert both_bytes > alone_bytes + size_bytes // 2


def test_disk_rates_count_a_disk_once(monkeypatch):
    probe = HostProbe()
    probe._disks = {"sda"}

    def shown(read_bytes: int, written_bytes: int):
        disk = SimpleNamespace(read_bytes=read_bytes, write_bytes=written_bytes)
        return lambda perdisk, nowrap: {"sda": disk, "dm-0": disk}

    monkeypatch.setattr(psutil, "disk_io_counters", shown(0, 0))
    probe.sample()
    began_s = probe._time_s
    monkeypatch.setattr(psutil, "disk_io_counters", shown(3_000_000, 5_000_000))
    time.sleep(0.05)
    seen = probe.sample()
    elapsed_s = probe._time_s - began_s
    assert seen.disk_read_MB_per_s == pytest.approx(3 / elapsed_s)
    assert seen.disk_written_MB_per_s == pytest.approx(5 / elapsed_s)


def test_a_system_that_hides_its_disks_costs_only_their_rates(monkeypatch):
    def hidden(**_):
        raise NotImplementedError

    monkeypatch.setattr(psutil, "disk_io_counters", hidden)
    seen = HostProbe().sample()
    assert seen.disk_read_MB_per_s is None
    assert seen.memory_used_bytes > 0
    assert seen.process_tree_bytes >= psutil.Process(os.getpid()).memory_info().rss // 2
