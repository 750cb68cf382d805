"""From the speed of an all-reduce to step time, run time, cost, verdict and advice.

What of the transfer a step sees, and what would make it less, is for `explain.step_model` to say,
as in the report of a run.
"""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path

from hvd_nmt.checkpoints import run_files
from hvd_nmt.common.errors import ConfigError, RunError
from hvd_nmt.common.gradient import bytes_of_gradients, ring_bytes
from hvd_nmt.common.units import data_size, duration, step_duration
from hvd_nmt.config import Config
from hvd_nmt.explain.bottleneck import BINDING_SHARE, COMPUTE, LOCAL, NETWORK, UNKNOWN
from hvd_nmt.explain.step_model import HIDDEN_SHARE, Step
from hvd_nmt.reporting.cost import Price, rent
from hvd_nmt.telemetry.events import read_metrics


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a run on these hosts will be like."""

    hosts: int
    """number of hosts"""
    ranks: int
    """number of ranks on all hosts, at least 2"""
    parameters: int
    """trained values"""
    communication_s: float
    """one all-reduce of all gradients of a step, measured"""
    latency_s: float
    """an all-reduce of one number, measured"""
    compute_s: float | None
    """computation of a step on one rank; None: unknown"""
    max_steps: int
    """steps of the run"""
    tokens_per_step: float
    """real source and target tokens of all ranks"""
    price_per_hour: Price | None
    """rent of one host; None: not asked"""

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of a step, as they travel."""
        return bytes_of_gradients(self.parameters)

    @property
    def sent_bytes(self) -> float:
        """Bytes sent by each rank in a step, and by each host to the next, by the ring law."""
        return ring_bytes(self.gradient_bytes, self.ranks)

    @property
    def bandwidth_MB_per_s(self) -> float:
        """Bytes that each rank sends over the time that it takes."""
        return self.sent_bytes / self.communication_s / 1e6

    @property
    def step(self) -> Step:
        """The model of a step; where the computation is unknown, of the shortest possible one."""
        compute_s, crosses_network = self.compute_s or 0.0, self.hosts > 1
        return Step(compute_s, compute_s, self.communication_s, self.latency_s, crosses_network)

    @property
    def step_s(self) -> float:
        """Wall time of a step; where the computation is unknown, the least it can be."""
        return self.step.total_s

    @property
    def tokens_per_s(self) -> float:
        """Real source and target tokens per second; where the computation is unknown, at most."""
        return self.tokens_per_step / self.step_s

    @property
    def run_s(self) -> float:
        """Seconds of all steps, without evaluations."""
        return self.step_s * self.max_steps

    @property
    def cost(self) -> float | None:
        """Rent of all hosts, in the currency of the price."""
        price = self.price_per_hour
        return None if price is None else self.run_s / 3600 * self.hosts * price.amount

    @property
    def verdict(self) -> str:
        """network-bound (communication-bound on one host), compute-bound or unknown."""
        if self.compute_s is None:
            return UNKNOWN
        if self.step.exposed_s / self.step_s <= BINDING_SHARE:
            return COMPUTE
        return NETWORK if self.hosts > 1 else LOCAL

    def lines(self) -> list[str]:
        """For a reader."""
        least, most, more = ("", "", "") if self.compute_s is not None else (
            "at least ", "at most ", " Or more."
        )  # fmt: skip
        way = "" if self.hosts > 1 else ", between the ranks of one host"
        lines = [
            f"all-reduce  {data_size(self.gradient_bytes)} of gradients{way}: "
            f"{step_duration(self.communication_s)}; {data_size(self.sent_bytes)} sent by each "
            f"rank at {self.bandwidth_MB_per_s:.1f} MB/s; one number takes "
            f"{step_duration(self.latency_s)}",
            f"step        {least}{step_duration(self.step_s)}, {most}{self.tokens_per_s:,.0f} "
            f"source and target tokens/s",
            f"run         {self.max_steps:,} steps: {least}{duration(self.run_s)}",
            f"verdict     {self._sentence()}",
        ]
        if self.price_per_hour is not None:
            words = rent(self.price_per_hour, self.hosts, self.run_s)
            lines.insert(3, f"cost        {words}{more}")
        lines += [
            f"advice      {advice.what}: {least}{step_duration(advice.predicted_step_s)} "
            f"({advice.why})"
            for advice in self.step.advice()
        ]
        return lines

    def as_plain(self) -> dict[str, object]:
        """Everything for JSON."""
        return dataclasses.asdict(self) | {
            "gradient_bytes": self.gradient_bytes, "sent_bytes": self.sent_bytes,
            "bandwidth_MB_per_s": self.bandwidth_MB_per_s,
            "step_s": self.step_s, "tokens_per_s": self.tokens_per_s, "run_s": self.run_s,
            "cost": self.cost, "verdict": self.verdict, "sentence": self._sentence(),
            "advice": [dataclasses.asdict(advice) for advice in self.step.advice()],
        }  # fmt: skip

    def _sentence(self) -> str:
        bound = "network-bound" if self.hosts > 1 else "bound by it"
        if self.compute_s is None:
            # Computing c binds less than the transfer t while t - H c > T (c + t - H c).
            share, hidden = BINDING_SHARE, HIDDEN_SHARE * (1 - BINDING_SHARE)
            limit_s = self.communication_s * (1 - share) / (share + hidden)
            return (
                f"unknown: communication takes {self.communication_s:.2f} s of every step, so the "
                f"run is {bound} unless a step computes for {limit_s:.1f} s or more; give "
                "--compute-s, or --run with an earlier run"
            )
        return (
            f"{self.verdict}: {self.step.exposed_s:.2f} of {self.step_s:.2f} s is exposed "
            "communication" + ("" if self.hosts > 1 else ", which crosses no network")
        )


def compute_s_of(run: Path, config: Config, ranks: int) -> float:
    """What of a step is no network, seconds, from what an earlier run of the same model recorded.

    That is computing, and waiting for input and for the slowest rank, which will not go away; all
    of it is taken for computing.

    Args:
        run: its run directory.
        config: of the run to come; its step may hold another number of tokens.
        ranks: of the run to come, on hardware like that of the earlier one.

    Raises:
        ConfigError: that run trained another model.
        RunError: it recorded no steps, or its record is damaged.
    """
    earlier = run_files.load_config(run)
    if earlier.model != config.model:
        raise ConfigError(
            f"The run in {run} trained another model than the one asked for: give --config "
            f"{run / run_files.CONFIG}, or --compute-s in place of --run."
        )
    lines = read_metrics(run)
    timed = [line for line in lines if "step_time/compute_s" in line]
    times = [line["step_time/total_s"] - line["step_time/communication_s"] for line in timed]
    if not times:
        raise RunError(f"The run in {run} has recorded no step yet: give --compute-s instead.")
    starts = [line["hosts"] for line in lines if line.get("kind") == "start"]
    earlier_ranks = len(starts[-1]) if starts else 1
    # The first record holds the tracing of the graph.
    before = earlier.training.tokens_per_step / earlier_ranks
    now = config.training.tokens_per_step / ranks
    return statistics.median(times[1:] or times) * now / before
