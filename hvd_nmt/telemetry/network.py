"""MB/s each way, errors, link speed and state of every network interface of this host.

Interfaces and counters are those of the network namespace in which the process started: psutil
reads /proc/net/dev, and /proc/net stands for /proc/self/net, which follows the process's main
thread. A thread that moved itself into another namespace with setns() would not be followed.
"""

import dataclasses
import time
from dataclasses import dataclass
from typing import final

import psutil

from hvd_nmt.telemetry.rates import counted, megabytes_per_s

_COUNTERS = {
    "sent_bytes_total": "bytes_sent",
    "received_bytes_total": "bytes_recv",
    "sent_errors_total": "errout",
    "received_errors_total": "errin",
    "sent_drops_total": "dropout",
    "received_drops_total": "dropin",
}
"""fields of `NicSample` and psutil's names of what they count"""


def nics() -> dict[str, "Nic"]:
    """The interfaces of this host at this moment, loopback included, by name.

    Raises:
        OSError: if the system does not tell.
    """
    return {
        name: Nic(
            is_up=stats.isup,
            is_loopback="loopback" in stats.flags.split(",") or name == "lo",
            # psutil says 0 where the driver does not tell (virtio, loopback, a link that is down).
            link_mbit_per_s=stats.speed or None,
        )
        for name, stats in psutil.net_if_stats().items()
    }


@final
@dataclass(frozen=True)
class Nic:
    """What an interface is."""

    is_up: bool
    """the interface is switched on and, where it has a cable, sees the other end"""
    is_loopback: bool
    """the interface leads back to this host, so its bytes cross no network"""
    link_mbit_per_s: int | None
    """speed of the link in Mbit/s; None where the driver does not tell"""


@final
@dataclass(frozen=True)
class NicSample:
    """What an interface did since the sample before."""

    is_up: bool
    """the interface is switched on and, where it has a cable, sees the other end"""
    is_loopback: bool
    """the interface leads back to this host, so its bytes cross no network"""
    link_mbit_per_s: int | None
    """speed of the link in Mbit/s; None where the driver does not tell"""
    sent_MB_per_s: float | None
    """mean rate out, MB/s (1e6 bytes); None in an interface's first sample and after a reset"""
    received_MB_per_s: float | None
    """mean rate in, MB/s (1e6 bytes); None in an interface's first sample and after a reset"""
    sent_bytes_total: int
    """bytes out since this probe was made; never falls, even when the counter is reset"""
    received_bytes_total: int
    """bytes in since this probe was made; never falls, even when the counter is reset"""
    sent_errors_total: int
    """packets that could not be sent since this probe was made; never falls"""
    received_errors_total: int
    """packets that came in damaged since this probe was made; never falls"""
    sent_drops_total: int
    """packets thrown away on their way out, for want of room, since this probe was made"""
    received_drops_total: int
    """packets thrown away on their way in, for want of room, since this probe was made"""


@final
class NetworkProbe:
    """Turns the counters of the interfaces into rates; the first reading is made here."""

    def __init__(self) -> None:
        self._totals: dict[str, dict[str, int]] = {}
        self._before, self._time_s = _counts(), time.monotonic()

    def sample(self) -> dict[str, NicSample]:
        """Reads the counters of the interfaces there are and compares them with those before.

        Those that are down and never carried a byte are left out: a host with containers has many.

        Raises:
            OSError: if the system does not tell.
        """
        states = nics()
        now, time_s = _counts(), time.monotonic()
        samples = {}
        for name, counts in now.items():
            # An interface can come or go between the two questions; it counts from the next sample.
            state = states.get(name)
            carried = counts["sent_bytes_total"] or counts["received_bytes_total"]
            if state is not None and (state.is_up or carried):
                samples[name] = self._compare(name, state, counts, time_s - self._time_s)
        self._before, self._time_s = now, time_s
        return samples

    def _compare(self, name: str, state: Nic, now: dict[str, int], elapsed_s: float) -> NicSample:
        before = self._before.get(name)
        totals = self._totals.setdefault(name, dict.fromkeys(_COUNTERS, 0))
        rates: list[float | None] = [None, None]
        if before is not None:
            both = ("sent_bytes_total", "received_bytes_total")
            rates = [megabytes_per_s(before[each], now[each], elapsed_s) for each in both]
            for each, count in now.items():
                totals[each] += counted(before[each], count)
        known = dataclasses.asdict(state) | totals
        return NicSample(sent_MB_per_s=rates[0], received_MB_per_s=rates[1], **known)


def _counts() -> dict[str, dict[str, int]]:
    """What every interface has counted, by its name and those of `_COUNTERS`."""
    # nowrap=True would hide resets behind a cache of psutil's own that other callers share.
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    return {
        name: {own: getattr(counter, its) for own, its in _COUNTERS.items()}
        for name, counter in counters.items()
    }
