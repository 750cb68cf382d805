"""What this host does: CPU, memory, and the bytes of every network interface.

The interfaces are those of the network namespace in which the process started: psutil reads
/proc/net/dev, which follows the process's main thread, not one that has moved with setns().
"""

import contextlib
import math
import os
import re
import socket
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, final

import psutil

_MIN_RTT, _NOT_KNOWN = slice(148, 152), 2**32 - 1
"""field tcpi_min_rtt of the kernel's struct tcp_info, microseconds, and its value for unknown"""
_BYTES_PER_MB = 1e6  # network cards are sold, and `iftop` reports, in powers of ten


def host_sample() -> dict[str, float]:
    """CPU use since this thread's call before, 0 to 100 over all cores, and the memory now."""
    memory = psutil.virtual_memory()
    return {
        "cpu_percent": psutil.cpu_percent(),
        "memory_used_bytes": memory.total - memory.available,
    }


def process_space() -> str:
    """What processes have in common whose numbers mean the same: a kernel and a namespace."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def addresses() -> list[str]:
    """The addresses of this host on any network."""
    cards = psutil.net_if_addrs().values()
    return [address.address for card in cards for address in card]


def round_trip_ms(peers: Collection[str]) -> float | None:
    """The longest of this process's connections to these addresses, by TCP's measure; None: none.

    Each is the shortest of the last minutes: what waits before a full link is no part of it.
    """
    trips_us = []
    for connection in psutil.Process().net_connections("tcp") if peers else ():
        if connection.raddr and connection.raddr.ip.removeprefix("::ffff:") in peers:
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                duplicate = socket.socket(fileno=connection.fd)
                stack.callback(duplicate.detach)  # it stays open
                info = duplicate.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT.stop)
                trips_us.append(int.from_bytes(info[_MIN_RTT], sys.byteorder))
    return max((trip_us / 1000 for trip_us in trips_us if trip_us < _NOT_KNOWN), default=None)


@final
class OwnProcesses:
    """The ranks of this run whose numbers are known here, and their CPU use."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._processes = []
        for pid in {os.getpid(), *pids}:
            with contextlib.suppress(psutil.Error):
                self._processes.append(psutil.Process(pid))
        self.percent()

    def percent(self) -> float:
        """CPU use since the call before, 0 to 100 over all cores."""
        of_one_core = 0.0
        for process in self._processes:
            with contextlib.suppress(psutil.Error):
                of_one_core += process.cpu_percent()
        return of_one_core / (psutil.cpu_count() or 1)


def cpu_flags() -> set[str]:
    """Instruction-set flags of this host's processor, as the kernel names them; empty on ARM."""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(errors="replace")
        if flags := re.search(r"^flags\s*:(.*)", text, re.MULTILINE):
            return set(flags[1].split())
    return set()


@final
class NetworkProbe:
    """Turns the counters of the interfaces into rates; the first reading is made here."""

    def __init__(self) -> None:
        self._before, self._time_s = _counts(), time.monotonic()
        self._first = dict(self._before)

    def sample(self) -> dict[str, dict[str, Any]]:
        """What each interface did since the sample before; OSError: the system does not tell.

        A rate is None in the first sample of an interface, and where its counter went back. The
        totals are those since this probe first saw it; the bytes of a loopback cross no network.
        Interfaces that are down and never carried a byte do not count: containers make many.
        """
        states = psutil.net_if_stats()
        now, time_s = _counts(), time.monotonic()
        before, elapsed_s = self._before, time_s - self._time_s
        self._before, self._time_s = now, time_s
        samples = {}
        for name, counts in now.items():
            state, first = states.get(name), self._first.setdefault(name, counts)
            if state is None or not (state.isup or any(counts)):
                continue  # the first: it came between the two questions
            sent, received = (
                round((new - old) / elapsed_s / _BYTES_PER_MB, 6) if new >= old else None
                for new, old in zip(counts, before.get(name, (math.inf, math.inf)), strict=True)
            )
            samples[name] = {
                "is_loopback": "loopback" in state.flags.split(",") or name == "lo",
                # psutil says 0 where the driver does not tell (virtio, loopback, a link down).
                "link_mbit_per_s": state.speed or None,
                "sent_MB_per_s": sent,
                "received_MB_per_s": received,
                "sent_bytes_total": counts[0] - first[0],
                "received_bytes_total": counts[1] - first[1],
            }
        return samples


def _counts() -> dict[str, tuple[int, int]]:
    """Bytes that every interface has sent and received, by its name."""
    # nowrap=True would hide resets behind a cache of psutil's own that other callers share.
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    return {name: (counter.bytes_sent, counter.bytes_recv) for name, counter in counters.items()}
