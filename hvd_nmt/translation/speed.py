"""How fast lines are translated: sentences and tokens per second, latency."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from hvd_nmt.translation.engine import Engine

LATENCY_SAMPLES = 30
"""how many lines are translated one at a time"""


@dataclasses.dataclass(frozen=True)
class Speed:
    """One measurement."""

    sentences: int
    source_tokens: int
    """tokens of the sentences, eos included, padding not"""
    target_tokens: int
    """tokens of the best translations, eos included"""
    seconds: float
    """time for all sentences, the best of the rounds"""
    latencies_s: list[float]
    """seconds for each of the sentences that were translated alone"""


def measure(
    engine: Engine, lines: Sequence[str], rounds: int, report: Callable[[str], object] = print
) -> Speed:
    """Translates lines as a file, several times, and some of them alone.

    Args:
        engine: what translates.
        lines: text, one line or more.
        rounds: how often; the first, in which TensorFlow builds its graph, does not count.
        report: called with a line of text after each round.
    """
    seconds = []
    for number in range(rounds + 1):
        started_s = time.perf_counter()
        found = engine.translate(lines).lines
        seconds.append(time.perf_counter() - started_s)
        report(f"round {number}/{rounds}: {seconds[-1]:.2f} s" + ("" if number else ", warm-up"))
    spread = np.linspace(0, len(lines) - 1, min(LATENCY_SAMPLES, len(lines))).round().astype(int)
    latencies_s = []
    for index in spread.tolist():
        started_s = time.perf_counter()
        engine.translate([lines[index]])
        latencies_s.append(time.perf_counter() - started_s)
    return Speed(
        sentences=len(lines),
        source_tokens=sum(line[0].source_tokens for line in found),
        target_tokens=sum(len(line[0].translation.ids) for line in found),
        seconds=min(seconds[1:]),
        latencies_s=latencies_s,
    )


def table(speed: Speed) -> list[tuple[str, str]]:
    """Name and value of each figure."""
    rate = f"{speed.sentences / speed.seconds:,.1f}"
    latencies_ms = [1000 * seconds for seconds in speed.latencies_s]
    shown = (statistics.median(latencies_ms), min(latencies_ms), max(latencies_ms))
    return [
        ("sentences/s", rate),
        ("target tokens/s", f"{speed.target_tokens / speed.seconds:,.0f}"),
        ("source tokens/s", f"{speed.source_tokens / speed.seconds:,.0f}"),
        ("latency of one sentence, ms: median, min, max", "{:.1f}, {:.1f}, {:.1f}".format(*shown)),
        ("sentences, source tokens, target tokens",
         f"{speed.sentences:,}, {speed.source_tokens:,}, {speed.target_tokens:,}"),
    ]  # fmt: skip
