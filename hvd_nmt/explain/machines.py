"""What the machines did while the run ran: step times, GPUs, CPUs and energy."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, correlation, fmean, median, quantiles, stdev
from typing import Any

from hvd_nmt.config import ModelConfig
from hvd_nmt.explain.intervals import last_settings, settled
from hvd_nmt.records.record import HostSamples, Launch, Run, Sample
from hvd_nmt.telemetry.gpu import spinning


@dataclass(frozen=True)
class StepTimes:
    """The wall time of a step in seconds, without the first interval of each start."""

    mean_s: float
    """over all steps"""
    margin_s: float | None
    """half width of the mean's 95 % interval, from the spread of the intervals; None below 4"""
    median_s: float
    """over the intervals, as the next two"""
    low_s: float
    """that 5 % are faster than"""
    high_s: float
    """that 5 % are slower than"""
    intervals: int
    steps: int
    first_s: tuple[float, ...]
    """of the intervals that were left out, because they hold the tracing of the graph"""


def step_times(run: Run) -> StepTimes | None:
    """Mean and spread of the step time under the newest settings; None if no step was timed."""
    timed = [i for i in last_settings(run).intervals if i.step_s is not None and i.steps > 0]
    if not timed:
        return None
    counted = settled(timed)
    values, steps = [i.step_s or 0.0 for i in counted], [i.steps for i in counted]
    spread = quantiles(values, n=20, method="inclusive") if len(values) > 1 else values
    kept, margin_s = {i.step for i in counted}, None
    if len(values) >= 4:
        margin_s = student_t(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return StepTimes(
        fmean(values, steps), margin_s, median(values), spread[0], spread[-1], len(values),
        sum(steps), tuple(i.step_s or 0.0 for i in timed if i.step not in kept),
    )  # fmt: skip


def steps_done(run: Run) -> int:
    """Optimizer steps done. A log need not have a line for the last one of a finished run."""
    if run.early_end is not None:
        return run.early_end.step
    return max(run.steps_done, run.max_steps or 0) if run.finished else run.steps_done


def training_s(run: Run) -> float | None:
    """Seconds spent in steps; None if no step was timed."""
    times = [i.step_s * i.steps for i in run.intervals if i.step_s is not None]
    return sum(times) if times else None


def mean_rate(run: Run, field: str) -> float | None:
    """Mean of a field that is a rate, over the time of the steps of `step_times`; None: unknown."""
    part = last_settings(run).intervals
    known = settled([i for i in part if getattr(i, field) is not None and i.step_s])
    seconds = [i.steps * (i.step_s or 0.0) for i in known]
    return fmean([getattr(i, field) for i in known], seconds) if known else None


def flops_of_step(
    model: ModelConfig, vocabulary_size: int, source_tokens: float, target_tokens: float,
    sentences: float,
) -> float:  # fmt: skip
    """Operations that a training step with so many real tokens needs, whatever computes it.

    A product with a matrix of W weights costs 6 W a token: 2 W forward and 4 W backward. Attention
    of a query over T keys costs 12 D T: 4 D T forward, for two products; causal attention counts in
    full, as it is computed, and sentences as of one length. Not counted are padding and what is no
    product: norms, softmax, looking up embeddings, the optimizer.

    Source: Chowdhery et al. 2022 (PaLM, arXiv 2204.02311), appendix B.
    """
    encoder, decoder, width = model.encoder_layers, model.decoder_layers, model.width
    square, feed_forward = width**2, 2 * width * model.feed_forward_width
    # Keys and values of the source are made of source tokens, one pair for each decoder layer.
    source_weights = encoder * (4 * square + feed_forward) + decoder * 2 * square
    target_weights = decoder * (6 * square + feed_forward) + width * vocabulary_size
    products = source_weights * source_tokens + target_weights * target_tokens
    both_tokens = source_tokens + target_tokens
    looked_at = encoder * source_tokens**2 + decoder * target_tokens * both_tokens
    return 6 * products + 12 * width * looked_at / max(1.0, sentences)


def last_record_s(run: Run) -> float | None:
    """Unix time of the last sign of life: a logged value or a host's sample."""
    own = [host for host in run.telemetry if host.host in run.hosts[:1]]  # others: other clocks
    times = [run.ended_s, *(host.samples[-1]["time_s"] for host in own if host.samples)]
    return max((time_s for time_s in times if time_s is not None), default=None)


def wall_s(run: Run) -> float | None:
    """Seconds from the start of the run to its last sign of life; None without a clock."""
    last_s = last_record_s(run)
    return None if run.started_s is None or last_s is None else max(0.0, last_s - run.started_s)


def lost_steps(launches: Sequence[Launch]) -> int:
    """Steps that starts by `hvd_nmt.launch` made again, by what they resumed from."""
    resumed = [(launch.resumed_step, launch.last_step) for launch in launches]
    began = [(first, last or first) for first, last in resumed if first is not None]
    return sum(max(0, last - first) for (_, last), (first, _) in itertools.pairwise(began))


@dataclass(frozen=True)
class GpuUse:
    """What a GPU did while steps ran: means over its samples, None where it does not tell."""

    name: str
    power_w: float | None
    of_limit_percent: float | None
    """its power over its power limit"""
    memory_activity_percent: float | None
    utilisation_percent: float | None
    spinning_percent: float | None
    """share of the samples in which it looked busy and computed next to nothing"""
    energy_j: float | None = None
    """drawn over the whole record, not only in steps, by the GPU's own counter"""
    throttled: tuple[tuple[str, float], ...] = ()
    """why its clocks were held down, and in which share of the samples"""


def gpu_use(run: Run) -> tuple[GpuUse, ...]:
    """Each GPU of each host, in the hosts' order; empty without GPU samples."""
    found: list[GpuUse] = []
    for host in run.telemetry:
        working = [sample for interval in run.intervals for sample in host.during(interval)]
        indices = sorted({gpu["index"] for s in host.samples for gpu in s.get("gpus", [])})
        found += [_use(host, index, working) for index in indices]
    return tuple(found)


def mean_use(uses: Sequence[GpuUse]) -> GpuUse:
    """The mean of several GPUs, of each value over those that tell it."""
    names = ("power_w", "of_limit_percent", "memory_activity_percent", "utilisation_percent",
             "spinning_percent")  # fmt: skip
    means: dict[str, Any] = {
        name: _known_mean(getattr(use, name) for use in uses) for name in names
    }
    return GpuUse("mean", **means)


def _known_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _use(host: HostSamples, index: int, working: Sequence[Sample]) -> GpuUse:
    known = _gpu(host.header, index)
    rows = [gpu for sample in working if (gpu := _gpu(sample, index))]

    def mean(field: str) -> float | None:
        return _known_mean(row.get(field) for row in rows)

    power_w, limit_w = mean("power_w"), mean("power_limit_w") or known.get("power_limit_w")
    spins = _known_mean(map(spinning, rows))
    reasons = [row["throttle_reasons"] for row in rows if row.get("throttle_reasons") is not None]
    counts = Counter(reason for listed in reasons for reason in listed)
    counted_j = ([_gpu(s, index).get("energy_j") for s in pair] for pair in host.neighbours())
    drawn_j = [b - a for a, b in counted_j if a is not None and b is not None]
    return GpuUse(
        f"{host.host}:{index} {known.get('name', 'GPU')}", power_w,
        100 * power_w / limit_w if power_w and limit_w else None,
        mean("memory_activity_percent"), mean("utilisation_percent"),
        None if spins is None else 100 * spins, sum(drawn_j) if drawn_j else None,
        tuple((reason, n / len(reasons)) for reason, n in counts.most_common()),
    )  # fmt: skip


def _gpu(line: Sample, index: int) -> Sample:
    return next((gpu for gpu in line.get("gpus", []) if gpu["index"] == index), {})


def cpu_percent(run: Run) -> float | None:
    """Mean CPU use of all hosts while steps ran; None if unknown."""
    inside = (host.during(interval) for host in run.telemetry for interval in run.intervals)
    return _known_mean(sample.get("cpu_percent") for samples in inside for sample in samples)


def others_percent(run: Run) -> float | None:
    """Mean share of the processors that other programs had while steps ran; None if unknown."""
    inside = (host.during(interval) for host in run.telemetry for interval in run.intervals)
    return _known_mean(
        max(0.0, sample["cpu_percent"] - sample["own_cpu_percent"])
        for samples in inside
        for sample in samples
        if None not in (sample.get("cpu_percent"), sample.get("own_cpu_percent"))
    )


@dataclass(frozen=True)
class Estimate:
    """A number with its interval."""

    value: float
    low: float
    high: float


def pearson(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    """Correlation of pairs with its 95 % interval by Fisher's transformation.

    None for fewer than 4, or where one side does not vary.
    """
    n = len(pairs)
    if n < 4 or any(min(side) == max(side) for side in zip(*pairs, strict=True)):
        return None
    r = max(-1.0, min(1.0, correlation(*zip(*pairs, strict=True))))
    z = math.atanh(max(-0.999999, min(0.999999, r)))
    half = 1.96 / math.sqrt(n - 3)
    return Estimate(r, math.tanh(z - half), math.tanh(z + half))


def student_t(probability: float, degrees: int) -> float:
    """Student's t below which a share of the distribution lies, such as 0.975.

    Exact for two degrees of freedom, to 0.2 % from three on.
    Source: Abramowitz and Stegun 1964, 26.7.5, the expansion in 1/degrees.
    """
    if degrees == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    z = NormalDist().inv_cdf(probability)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * degrees**4)
    )
