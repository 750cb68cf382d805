"""Numbers with their units, in one format each, for everything that people read."""

_SPANS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def duration(seconds: float) -> str:
    """Seconds in two units at most: 8.2 s, 24 min 42 s, 22 h 5 min, 3 d 2 h."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    big, big_name, small, small_name = next(span for span in _SPANS if whole >= span[0])
    rest = whole % big // small
    return f"{whole // big} {big_name}" + (f" {rest} {small_name}" if rest else "")


def step_duration(seconds: float) -> str:
    """The time of a step or of a part of it, to three digits: 1.62 s, 0.335 s, 4.2 ms."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"


def data_size(n_bytes: float) -> str:
    """Bytes in units of powers of ten: 16 B, 730.6 MB, 15.8 GB."""
    if n_bytes < 1e5:
        return f"{n_bytes:,.0f} B"
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes < 999.95e6 else f"{n_bytes / 1e9:,.1f} GB"


def link_speed(MB_per_s: float) -> str:
    """The speed of a link, each way, in both units: 24.6 MB/s (197 Mbit/s)."""
    return f"{MB_per_s:,.1f} MB/s ({8 * MB_per_s:,.0f} Mbit/s)"


def flop_rate(flop_per_s: float) -> str:
    """Floating-point operations a second, to three digits: 171 GFLOP/s, 45.2 TFLOP/s."""
    steps = ((1e9, "G"), (1e12, "T"), (1e15, "P"))
    one, unit = next((step for step in steps if flop_per_s < 999.5 * step[0]), steps[-1])
    return f"{flop_per_s / one:.3g} {unit}FLOP/s"


def percent(share: float) -> str:
    """A share as a whole percentage; small ones with a digit more: 62 %, 4.2 %."""
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: 1 rank, 4 ranks; by default `many` is `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
