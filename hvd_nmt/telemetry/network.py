"""MB/s each way, link speed and state of every network interface of this host.

Interfaces and counters are those of the network namespace in which the process started: psutil
reads /proc/net/dev, and /proc/net stands for /proc/self/net, which follows the process's main
thread. A thread that moved itself into another namespace with setns() would not be followed.
"""

import time
from dataclasses import dataclass
from typing import final

import psutil

from hvd_nmt.telemetry.rates import counted_bytes, megabytes_per_s


def nics() -> dict[str, "Nic"]:
    """The interfaces of this host, loopback included, by name.

    Returns:
        Their state and link speed at this moment.

    Raises:
        OSError: if the system does not tell.
    """
    return {
        name: Nic(
            is_up=stats.isup,
            is_loopback=_is_loopback(name, stats.flags),
            # psutil says 0 where the driver does not tell (virtio, loopback, a link that is down).
            link_mbit_per_s=stats.speed or None,
        )
        for name, stats in psutil.net_if_stats().items()
    }


def _is_loopback(name: str, flags: str) -> bool:
    return "loopback" in flags.split(",") or name == "lo"


@final
@dataclass(frozen=True)
class Nic:
    """What an interface is."""

    is_up: bool
    """it is switched on and, where it has a cable, sees the other end"""
    is_loopback: bool
    """it leads back to this host, so its bytes cross no network"""
    link_mbit_per_s: int | None
    """speed of the link in Mbit/s; None where the driver does not tell"""


@final
@dataclass(frozen=True)
class NicSample:
    """What an interface did since the sample before."""

    is_up: bool
    """see `Nic`"""
    is_loopback: bool
    """see `Nic`"""
    link_mbit_per_s: int | None
    """see `Nic`"""
    sent_MB_per_s: float | None
    """mean rate out, MB/s (1e6 bytes); None in an interface's first sample and after a reset"""
    received_MB_per_s: float | None
    """mean rate in, likewise"""
    sent_bytes_total: int
    """bytes out since this probe was made; never falls, even when the counter is reset"""
    received_bytes_total: int
    """bytes in, likewise"""


@final
@dataclass(frozen=True)
class _Reading:
    sent_bytes: int
    received_bytes: int
    time_s: float


@final
class NetworkProbe:
    """Turns the counters of the interfaces into rates; the first reading is made here."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[int, int]] = {}
        self._before = _readings()

    def sample(self) -> dict[str, NicSample]:
        """Reads the counters and compares them with the reading before.

        Returns:
            One sample per interface that is there now, by name. Those that are down and never
            carried a byte are left out (a host with containers has many).

        Raises:
            OSError: if the system does not tell.
        """
        states = nics()
        now = _readings()
        samples = {}
        for name, reading in now.items():
            # An interface can come or go between the two questions; it counts from the next sample.
            state = states.get(name)
            if state is None or not (state.is_up or reading.sent_bytes or reading.received_bytes):
                continue
            samples[name] = self._compare(name, state, reading)
        self._before = now
        return samples

    def _compare(self, name: str, state: Nic, now: _Reading) -> NicSample:
        before = self._before.get(name)
        sent, received = self._totals.get(name, (0, 0))
        sent_rate = received_rate = None
        if before is not None:
            elapsed_s = now.time_s - before.time_s
            sent_rate = megabytes_per_s(before.sent_bytes, now.sent_bytes, elapsed_s)
            received_rate = megabytes_per_s(before.received_bytes, now.received_bytes, elapsed_s)
            sent += counted_bytes(before.sent_bytes, now.sent_bytes)
            received += counted_bytes(before.received_bytes, now.received_bytes)
        self._totals[name] = (sent, received)
        return NicSample(
            is_up=state.is_up,
            is_loopback=state.is_loopback,
            link_mbit_per_s=state.link_mbit_per_s,
            sent_MB_per_s=sent_rate,
            received_MB_per_s=received_rate,
            sent_bytes_total=sent,
            received_bytes_total=received,
        )


def _readings() -> dict[str, _Reading]:
    # nowrap=True would hide resets behind a cache of psutil's own that other callers share.
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    time_s = time.monotonic()
    return {
        name: _Reading(counter.bytes_sent, counter.bytes_recv, time_s)
        for name, counter in counters.items()
    }
