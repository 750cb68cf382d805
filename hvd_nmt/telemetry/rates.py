"""What turns counters into amounts and rates."""

BYTES_PER_MB = 1e6  # network cards and disks are sold, and `iftop` reports, in powers of ten


def counted(before: int, now: int) -> int:
    """What a counter counted between two readings, even if it was reset in between.

    A counter that went back was reset (a driver reloaded, an interface made anew). What it shows
    now was counted since, so that much is certain; what came before the reset is lost.
    """
    return now - before if now >= before else now


def megabytes_per_s(before_bytes: int, now_bytes: int, elapsed_s: float) -> float | None:
    """The mean rate between two readings of a counter of bytes.

    Args:
        before_bytes: the earlier reading.
        now_bytes: the later reading.
        elapsed_s: seconds between the two.

    Returns:
        MB/s (1e6 bytes), or None when nobody can know: the counter was reset, or no time passed.
    """
    if now_bytes < before_bytes or elapsed_s <= 0:
        return None
    return round((now_bytes - before_bytes) / elapsed_s / BYTES_PER_MB, 6)
