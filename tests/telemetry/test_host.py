"""The host probe: real work, real memory, real writes."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hvd_nmt.telemetry import host
from hvd_nmt.telemetry.host import HostProbe, cpu_flags, host_facts


@pytest.fixture
def clock(monkeypatch):
    """The probe's, which stands still until `now_s` is set."""
    made = SimpleNamespace(now_s=0.0, monotonic=lambda: made.now_s)
    monkeypatch.setattr(host, "time", made)
    return made


def test_facts():
    facts = host_facts()
    assert facts["host"]
    assert facts["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert facts["cpu_model"]
    assert facts["cores_logical"] >= facts["cores_usable"] >= 1
    assert facts["memory_total_bytes"] > 2**20


@pytest.mark.parametrize(
    ("limit", "total", "available"),
    [("max", 64, 50), (str(8 << 30), 8, 5), (str(100 << 30), 64, 50)],
)
def test_memory_is_that_of_the_container_where_it_is_allowed_less(
    monkeypatch, tmp_path, limit, total, available
):
    """6 GB are used there, 3 of them by files that were read and can be had."""
    seen = SimpleNamespace(total=64 << 30, available=50 << 30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: seen)
    monkeypatch.setattr(host, "_CONTROL_GROUP", tmp_path)
    assert host.memory_bytes() == (64 << 30, 50 << 30)
    (tmp_path / "memory.max").write_text(limit + "\n")
    (tmp_path / "memory.current").write_text(f"{6 << 30}\n")
    lines = f"anon {3 << 30}\nfile 9\ninactive_file {2 << 30}\nactive_file {1 << 30}\n"
    (tmp_path / "memory.stat").write_text(lines)
    assert host.memory_bytes() == (total << 30, available << 30)


def test_flags_are_read_from_the_kernel(monkeypatch, tmp_path):
    assert all(isinstance(flag, str) for flag in cpu_flags())
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: x\nflags\t\t: fpu avx512_bf16 sse\n\n")
    monkeypatch.setattr(host, "Path", lambda name: cpuinfo)
    assert {"fpu", "avx512_bf16", "sse"} <= cpu_flags()
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd\n")  # ARM
    assert cpu_flags() == set()
    cpuinfo.unlink()
    assert cpu_flags() == set()


def test_work_shows_as_cpu():
    probe = HostProbe()
    used_before_s = time.process_time()
    while time.process_time() < used_before_s + 0.1:
        pass
    seen = probe.sample()
    assert 0 < seen.cpu_percent <= seen.cpu_max_percent <= 100
    assert 0 <= seen.steal_percent <= 100
    assert seen.load_1min >= 0
    assert seen.swap_used_bytes >= 0
    assert seen.memory_used_bytes > 0


class Times(SimpleNamespace):
    """CPU times as psutil gives them, in seconds."""

    _fields = psutil.cpu_times()._fields


def times(**spent_s: float) -> Times:
    return Times(**{name: spent_s.get(name, 0.0) for name in Times._fields})


def test_stolen_and_waiting_time_is_not_busy_time(monkeypatch):
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu=False: [] if percpu else times())
    probe = HostProbe()
    # user contains guest: 60 of 100 s are busy.
    spent = times(user=50, guest=20, system=10, idle=15, iowait=5, steal=20)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu=False: [] if percpu else spent)
    seen = probe.sample()
    assert (seen.cpu_percent, seen.steal_percent) == (60.0, 20.0)
    assert probe.sample().cpu_percent is None  # no time passed


def test_one_busy_cpu_shows_among_idle_ones(monkeypatch):
    cores = [times(), times(), times()]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu=False: cores if percpu else times())
    probe = HostProbe()
    cores = [times(idle=100), times(user=90, idle=10), times(user=20, idle=80)]
    assert probe.sample().cpu_max_percent == 90.0
    assert probe.sample().cpu_max_percent is None  # no time passed
    cores = cores[:2]
    assert probe.sample().cpu_max_percent is None  # a CPU was switched off


def test_swapping_shows_as_a_rate(monkeypatch, clock):
    swap = SimpleNamespace(used=5_000_000, sin=1_000_000, sout=2_000_000)
    monkeypatch.setattr(psutil, "swap_memory", lambda: swap)
    probe = HostProbe()
    clock.now_s = 2.0
    swap = SimpleNamespace(used=6_000_000, sin=4_000_000, sout=2_000_000)
    seen = probe.sample()
    assert seen.swap_used_bytes == 6_000_000
    assert seen.swapped_in_MB_per_s == 1.5
    assert seen.swapped_out_MB_per_s == 0


def test_what_a_system_hides_costs_only_that(monkeypatch):
    def hidden(**_):
        raise NotImplementedError

    monkeypatch.setattr(psutil, "disk_io_counters", hidden)
    seen = HostProbe().sample()
    assert seen.disk_read_MB_per_s is None
    assert seen.memory_used_bytes > 0


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


def test_disk_rates_count_a_disk_once(monkeypatch, clock):
    probe = HostProbe()
    probe._disks = {"sda"}

    def shown(read_bytes: int, written_bytes: int):
        disk = SimpleNamespace(read_bytes=read_bytes, write_bytes=written_bytes)
        return lambda perdisk, nowrap: {"sda": disk, "dm-0": disk}

    monkeypatch.setattr(psutil, "disk_io_counters", shown(0, 0))
    probe.sample()
    clock.now_s = 2.0
    monkeypatch.setattr(psutil, "disk_io_counters", shown(3_000_000, 5_000_000))
    seen = probe.sample()
    assert (seen.disk_read_MB_per_s, seen.disk_written_MB_per_s) == (1.5, 2.5)


def test_a_process_knows_when_it_began():
    """As another process sees it, and before it could have asked."""
    code = "from hvd_nmt.telemetry.host import process_started_s as s; print(s())"
    before_s = time.time()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # The kernel counts from the boot, whose time it tells in whole seconds.
    assert before_s - 1.1 < float(done.stdout) < time.time() + 1
