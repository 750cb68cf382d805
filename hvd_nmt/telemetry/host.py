"""CPU, load, memory, swap and disk of this host, and the memory of this process tree."""

import contextlib
import os
import platform
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import psutil

from hvd_nmt.common import spare
from hvd_nmt.telemetry.rates import megabytes_per_s

# To find the children, every process of the host is read; 10 s keep that out of the cost.
_TREE_REFRESH_S = 10.0
_CONTROL_GROUP = Path("/sys/fs/cgroup")


def host_facts() -> dict[str, Any]:
    """What this host is, for the head of its file.

    `boot_id` changes when the host restarts; `cores_usable` are those this process may run on.
    """
    return {
        "host": socket.gethostname(),
        "boot_id": _boot_id(),
        "kernel": platform.release(),
        "cpu_model": _cpu_model(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_logical": psutil.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)),
        "memory_total_bytes": psutil.virtual_memory().total,
    }


def memory_bytes() -> tuple[int, int]:
    """Total and available bytes of this host, or of the container where it is allowed less."""
    seen = psutil.virtual_memory()
    total, available = seen.total, seen.available
    with contextlib.suppress(OSError, ValueError):  # no control group, or "max"
        limit = int((_CONTROL_GROUP / "memory.max").read_text())
        used = int((_CONTROL_GROUP / "memory.current").read_text())
        lines = map(str.split, (_CONTROL_GROUP / "memory.stat").read_text().splitlines())
        # Files that were read count as used until another page is needed.
        files = sum(int(value) for name, value in lines if name in ("active_file", "inactive_file"))
        total, available = min(total, limit), min(available, limit - used + files)
    return total, available


def process_started_s() -> float:
    """Unix time, right to about a second, at which this process began to run, or to be a rank."""
    return spare.began_s() or psutil.Process().create_time()


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def cpu_flags() -> set[str]:
    """Instruction-set flags of this host's processor, as the kernel names them."""
    return set(_cpuinfo("flags").split())


def _cpu_model() -> str:
    # ARM's cpuinfo has no model name.
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _cpuinfo(wanted: str) -> str:
    """What the kernel says of the first processor under some key; "" where it says nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    values = (line.partition(":")[2] for line in lines if line.partition(":")[0].strip() == wanted)
    return next(values, "").strip()


@final
@dataclass(frozen=True)
class HostSample:
    """What the host did since the sample before."""

    cpu_percent: float | None
    """time in which the CPUs ran something, 0 to 100 over all of them; None at no elapsed time"""
    cpu_max_percent: float | None
    """time in which the busiest CPU ran something; near 100 with a low mean: one thread blocks"""
    steal_percent: float | None
    """time that the hypervisor gave to other virtual machines, 0 to 100; None where unknown"""
    load_1min: float | None
    """threads that ran or wanted to run, mean of about a minute; None where unknown"""
    memory_used_bytes: int
    """memory that a new process could not get"""
    swap_used_bytes: int
    """memory that was moved to disk"""
    swapped_in_MB_per_s: float | None
    """mean over the interval, MB/s (1e6 bytes) back from the swap: above zero the host is slow"""
    swapped_out_MB_per_s: float | None
    """mean over the interval, MB/s (1e6 bytes) into the swap"""
    process_tree_bytes: int
    """resident memory of this process and its descendants; pages they share count in each"""
    disk_read_MB_per_s: float | None
    """mean read rate of all disks, MB/s (1e6 bytes); None where the system hides them"""
    disk_written_MB_per_s: float | None
    """mean write rate of all disks, MB/s (1e6 bytes); None where the system hides them"""


@final
class HostProbe:
    """Turns the host's counters into rates; the first reading is made here."""

    def __init__(self) -> None:
        self._me = psutil.Process()
        self._tree: list[psutil.Process] = []
        self._tree_due_s = 0.0
        self._disks = {link.parent.name for link in Path("/sys/block").glob("*/device")}
        self._cpu = psutil.cpu_times()
        self._cores = psutil.cpu_times(percpu=True)
        self._swap = psutil.swap_memory()
        self._disk = self._disk_bytes()
        self._time_s = time.monotonic()

    def sample(self) -> HostSample:
        """Reads the counters: the rates since the reading before, and the memory now."""
        cpu, cores = psutil.cpu_times(), psutil.cpu_times(percpu=True)
        swap, disk = psutil.swap_memory(), self._disk_bytes()
        time_s = time.monotonic()
        elapsed_s = time_s - self._time_s
        disk_rates: list[float | None] = [None, None]
        if disk is not None and self._disk is not None:
            pairs = zip(self._disk, disk, strict=True)
            disk_rates = [megabytes_per_s(before, now, elapsed_s) for before, now in pairs]
        cpu_percent, steal_percent = _cpu_percent(self._cpu, cpu)
        memory = psutil.virtual_memory()
        sample = HostSample(
            cpu_percent=cpu_percent,
            cpu_max_percent=_busiest_percent(self._cores, cores),
            steal_percent=steal_percent,
            load_1min=_load(),
            memory_used_bytes=memory.total - memory.available,
            swap_used_bytes=swap.used,
            swapped_in_MB_per_s=megabytes_per_s(self._swap.sin, swap.sin, elapsed_s),
            swapped_out_MB_per_s=megabytes_per_s(self._swap.sout, swap.sout, elapsed_s),
            process_tree_bytes=self._tree_bytes(),
            disk_read_MB_per_s=disk_rates[0],
            disk_written_MB_per_s=disk_rates[1],
        )
        self._cpu, self._cores, self._swap, self._disk = cpu, cores, swap, disk
        self._time_s = time_s
        return sample

    def _disk_bytes(self) -> tuple[int, int] | None:
        """Bytes read from and written to the disks since the host started."""
        try:
            counters = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        except (OSError, NotImplementedError, RuntimeError):
            return None  # some containers have no /proc/diskstats
        # Volumes (dm-0, md0) lie on disks that count the same bytes, so only those with a device
        # behind them are added up; where none is shown, everything.
        names = self._disks & counters.keys() or counters.keys()
        read_bytes = sum(counters[name].read_bytes for name in names)
        written_bytes = sum(counters[name].write_bytes for name in names)
        return (read_bytes, written_bytes) if counters else None

    def _tree_bytes(self) -> int:
        now_s = time.monotonic()
        if now_s >= self._tree_due_s:
            self._tree = [self._me, *self._me.children(recursive=True)]
            self._tree_due_s = now_s + _TREE_REFRESH_S
        return sum(_resident_bytes(process) for process in self._tree)


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:  # it ended since the tree was last read
        return 0


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _busiest_percent(before: list[Any], now: list[Any]) -> float | None:
    if len(before) != len(now):  # a CPU was switched on or off, and nobody knows which
        return None
    percents = [_cpu_percent(*pair)[0] for pair in zip(before, now, strict=True)]
    return max((percent for percent in percents if percent is not None), default=None)


def _cpu_percent(before: Any, now: Any) -> tuple[float | None, float | None]:
    spent_s = {name: max(0.0, getattr(now, name) - getattr(before, name)) for name in now._fields}
    # Linux counts the time of guests in `user` and `nice` too.
    total_s = sum(spent_s.values()) - spent_s.get("guest", 0.0) - spent_s.get("guest_nice", 0.0)
    if total_s <= 0:
        return None, None
    stolen_s = spent_s.get("steal")
    idle_s = spent_s["idle"] + spent_s.get("iowait", 0.0) + (stolen_s or 0.0)
    busy_percent = min(100.0, max(0.0, 100 * (1 - idle_s / total_s)))
    steal_percent = None if stolen_s is None else round(100 * stolen_s / total_s, 2)
    return round(busy_percent, 2), steal_percent
