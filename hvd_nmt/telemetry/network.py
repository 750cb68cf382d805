"""MB/s each way, link speed and state of every network interface of this host.

They are those of the network namespace in which the process started: psutil reads /proc/net/dev,
which follows the process's main thread, not one that has moved with setns().
"""

import time
from dataclasses import dataclass
from typing import final

import psutil

_BYTES_PER_MB = 1e6  # network cards are sold, and `iftop` reports, in powers of ten


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

    is_loopback: bool
    """as in `Nic`"""
    link_mbit_per_s: int | None
    """as in `Nic`"""
    sent_MB_per_s: float | None
    """mean rate out, MB/s (1e6 bytes); None in an interface's first sample and after a reset"""
    received_MB_per_s: float | None
    """mean rate in, MB/s (1e6 bytes); None in an interface's first sample and after a reset"""
    sent_bytes_total: int
    """bytes out since this probe was made; never falls, even when the counter is reset"""
    received_bytes_total: int
    """bytes in since this probe was made; never falls, even when the counter is reset"""


def nics() -> dict[str, Nic]:
    """The interfaces of this host at this moment, loopback included, by name; may raise OSError."""
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
class NetworkProbe:
    """Turns the counters of the interfaces into rates; the first reading is made here."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[int, int]] = {}
        self._before, self._time_s = _counts(), time.monotonic()

    def sample(self) -> dict[str, NicSample]:
        """Rates since the sample before, by interface; OSError: the system does not tell.

        Those that are down and never carried a byte are left out: a host with containers has many.
        """
        states = nics()
        now, time_s = _counts(), time.monotonic()
        samples = {}
        for name, counts in now.items():
            # An interface can come or go between the two questions; it counts from the next sample.
            state = states.get(name)
            if state is not None and (state.is_up or any(counts)):
                samples[name] = self._compare(name, state, counts, time_s - self._time_s)
        self._before, self._time_s = now, time_s
        return samples

    def _compare(self, name: str, state: Nic, now: tuple[int, int], elapsed_s: float) -> NicSample:
        before = self._before.get(name, now)
        # A counter that went back was reset; what it shows now was counted since.
        grown = [a if a < b else a - b for a, b in zip(now, before, strict=True)]
        sent_total, received_total = self._totals.get(name, (0, 0))
        self._totals[name] = sent_total + grown[0], received_total + grown[1]
        sent, received = (
            round(count / elapsed_s / _BYTES_PER_MB, 6)
            if name in self._before and a >= b and elapsed_s > 0 else None
            for count, a, b in zip(grown, now, before, strict=True)
        )  # fmt: skip
        return NicSample(
            state.is_loopback, state.link_mbit_per_s, sent, received, *self._totals[name]
        )


def _counts() -> dict[str, tuple[int, int]]:
    """Bytes that every interface has sent and received, by its name."""
    # nowrap=True would hide resets behind a cache of psutil's own that other callers share.
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    return {name: (counter.bytes_sent, counter.bytes_recv) for name, counter in counters.items()}
