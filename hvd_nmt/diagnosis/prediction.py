"""From the speed of an all-reduce to step time, run time, cost, verdict and advice.

A step is taken as computing and then communicating: nothing of the transfer is assumed to hide
behind the computation, because the largest gradient, of the shared matrix, is ready last.
"""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from pathlib import Path

from hvd_nmt import config as configuration
from hvd_nmt.analysis.network import COMPUTE, NETWORK, TELLING_SHARE, UNKNOWN, Advice, ring_bytes
from hvd_nmt.config import Config
from hvd_nmt.errors import ConfigError, RunError
from hvd_nmt.telemetry.events import read_metrics


@dataclass(frozen=True)
class Prediction:
    """What a run on these hosts will be like."""

    ranks: int
    parameters: int
    gradient_bytes: int
    """of one step, as they travel"""
    sent_bytes: float
    """by each rank in a step, and by each host to the next, by the ring law"""
    communication_s: float
    """one all-reduce of the gradient, measured"""
    bandwidth_MB_per_s: float
    """`sent_bytes` over that time"""
    latency_s: float
    """an all-reduce of one number"""
    compute_s: float | None
    """computation of a step; None: unknown"""
    max_steps: int
    tokens_per_step: float
    """real source and target tokens of all ranks"""
    price_per_hour: float | None
    """of all hosts together"""

    @property
    def step_s(self) -> float:
        """Wall time of a step; where the computation is unknown, the least it can be."""
        return (self.compute_s or 0.0) + self.communication_s

    @property
    def tokens_per_s(self) -> float:
        """Real source and target tokens per second; where the computation is unknown, at most."""
        return self.tokens_per_step / self.step_s

    @property
    def run_s(self) -> float:
        """Of all steps, without evaluations."""
        return self.step_s * self.max_steps

    @property
    def cost(self) -> float | None:
        """In the currency of the price."""
        return None if self.price_per_hour is None else self.run_s / 3600 * self.price_per_hour

    @property
    def verdict(self) -> str:
        """network-bound, compute-bound or unknown."""
        if self.compute_s is None:
            return UNKNOWN
        return NETWORK if self.communication_s / self.step_s > TELLING_SHARE else COMPUTE

    @property
    def advice(self) -> list[Advice]:
        """What would shorten the communication, with the step time it would bring; best first."""
        if self.verdict == COMPUTE:
            return []
        others_s, communication_s = self.compute_s or 0.0, self.communication_s
        return [
            Advice("a network 10 times as fast", others_s + communication_s / 10,
                   "the same bytes in a tenth of the time"),
            Advice("accumulate 4 batches per update, or 4 times the tokens per step",
                   others_s + communication_s / 4, "per batch: one all-reduce serves four of them"),
            Advice("gradients as float16 on the wire", others_s + communication_s / 2,
                   "half the bytes"),
        ]  # fmt: skip

    def lines(self) -> list[str]:
        """For a reader."""
        least = "" if self.compute_s is not None else "at least "
        most = "" if self.compute_s is not None else "at most "
        cost = "" if self.cost is None else f", {least}{self.cost:,.2f} in money"
        lines = [
            f"all-reduce  {self.gradient_bytes / 1e6:.1f} MB of gradients: "
            f"{self.communication_s:.3f} s; {self.sent_bytes / 1e6:.1f} MB sent by each rank at "
            f"{self.bandwidth_MB_per_s:.1f} MB/s; one number takes {self.latency_s * 1e3:.1f} ms",
            f"step        {least}{self.step_s:.3f} s, {most}{self.tokens_per_s:,.0f} source and "
            f"target tokens/s",
            f"run         {self.max_steps:,} steps: {least}{self.run_s / 3600:,.1f} h{cost}",
            f"verdict     {self._sentence()}",
        ]
        lines += [
            f"advice      {advice.what}: {least}{advice.predicted_step_s:.3f} s ({advice.why})"
            for advice in self.advice
        ]
        return lines

    def as_plain(self) -> dict[str, object]:
        """Everything for JSON."""
        return dataclasses.asdict(self) | {
            "step_s": self.step_s, "tokens_per_s": self.tokens_per_s, "run_s": self.run_s,
            "cost": self.cost, "verdict": self.verdict, "sentence": self._sentence(),
            "advice": [dataclasses.asdict(advice) for advice in self.advice],
        }  # fmt: skip

    def _sentence(self) -> str:
        if self.compute_s is None:
            limit_s = self.communication_s * (1 / TELLING_SHARE - 1)
            return (
                f"unknown: communication takes {self.communication_s:.2f} s of every step, so the "
                f"run is network-bound unless a step computes for {limit_s:.1f} s or more; give "
                "--compute-s, or --run with an earlier run"
            )
        return (
            f"{self.verdict}: {self.communication_s:.2f} of {self.step_s:.2f} s is communication"
        )


def predict(
    config: Config,
    parameters: int,
    ranks: int,
    communication_s: float,
    latency_s: float,
    compute_s: float | None,
    source_per_target_token: float,
    price_per_hour: float | None,
) -> Prediction:
    """What a run will be like.

    Args:
        config: steps and tokens.
        parameters: trained values, which travel as float32.
        ranks: number of ranks, at least 2.
        communication_s: one all-reduce of all gradients, measured.
        latency_s: one of a single number, measured.
        compute_s: computation of a step on one rank; None: unknown.
        source_per_target_token: of the corpus.
        price_per_hour: of all hosts together; None: not asked.
    """
    sent = ring_bytes(4 * parameters, ranks)
    return Prediction(
        ranks, parameters, 4 * parameters, sent, communication_s, sent / communication_s / 1e6,
        latency_s, compute_s, config.training.max_steps,
        config.training.tokens_per_step * (1 + source_per_target_token), price_per_hour,
    )  # fmt: skip


def compute_s_of(run: Path, config: Config, ranks: int) -> float:
    """What of a step is no network, seconds, from what an earlier run of the same model recorded.

    That is computing, and waiting for input and for the slowest rank, which will not go away.

    Args:
        run: its run directory.
        config: of the run to come; its step may hold another number of tokens.
        ranks: of the run to come, on hardware like that of the earlier one.

    Raises:
        ConfigError: that run trained another model.
        RunError: it recorded no steps, or its record is damaged.
    """
    if not (run / "config.yaml").exists():
        raise RunError(f"{run} is no run directory: it has no config.yaml.")
    earlier = configuration.load(run / "config.yaml")
    if earlier.model != config.model:
        raise ConfigError(
            f"The run in {run} trained another model than the one asked for: give --config "
            f"{run / 'config.yaml'}, or --compute-s in place of --run."
        )
    lines = read_metrics(run)
    times = [
        line["step_time/total_s"] - line["step_time/communication_s"]
        for line in lines
        if "step_time/compute_s" in line
    ]
    if not times:
        raise RunError(f"The run in {run} has recorded no step yet: give --compute-s instead.")
    starts = [line["hosts"] for line in lines if line.get("kind") == "start"]
    earlier_ranks = len(starts[-1]) if starts else 1
    # The first record holds the tracing of the graph.
    before = earlier.training.tokens_per_step / earlier_ranks
    now = config.training.tokens_per_step / ranks
    return statistics.median(times[1:] or times) * now / before
