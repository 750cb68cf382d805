"""From the speed of an all-reduce to step time, run time, cost, verdict and advice.

What of the transfer a step sees, what would make it less, and what `auto` does about it, is for
`explain.step_model` and `explain.exchange_cost` to say, as in a run and in its report.
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
from hvd_nmt.config import Config, TrainingConfig
from hvd_nmt.config.exchange import Exchange, decided, may_group_ranks
from hvd_nmt.explain import exchange_cost
from hvd_nmt.explain.bottleneck import BINDING_SHARE, COMPUTE, LOCAL, NETWORK, UNKNOWN
from hvd_nmt.explain.exchange_cost import HIDDEN_SHARE, PLAIN, Measured
from hvd_nmt.explain.step_model import Step
from hvd_nmt.reporting.cost import Price, rent
from hvd_nmt.telemetry.events import read_metrics


@dataclass(frozen=True)
class Cure:
    """A way to exchange between hosts, and what it would bring."""

    name: str
    exchange: Exchange
    step_s: float
    """predicted wall time of a step"""
    sent_bytes: float
    """by a host in a step on average"""
    is_chosen: bool
    """what this run will do"""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a run on these hosts will be like."""

    ranks_by_host: tuple[int, ...]
    """number of ranks on each host, at least 2 in all"""
    parameters: int
    """trained values"""
    communication_s: float
    """one plain all-reduce of all gradients of a step, measured"""
    latency_s: float
    """an all-reduce of one number, measured"""
    compute_s: float | None
    """computation of a step on one rank; None: unknown"""
    training: TrainingConfig
    """of the run; what it leaves open of the exchange is decided as the run will do it"""
    tokens_per_step: float
    """real source and target tokens of all ranks"""
    price_per_hour: Price | None
    """rent of one host; None: not asked"""

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.ranks_by_host)

    @property
    def ranks(self) -> int:
        """Number of ranks on all hosts."""
        return sum(self.ranks_by_host)

    @property
    def max_steps(self) -> int:
        """Steps of the run."""
        return self.training.max_steps

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
    def exchange(self) -> Exchange:
        """What the run will do; plain where the computation is unknown, which decides it."""
        return PLAIN if self._measured is None else exchange_cost.choose(
            self.training, self._measured
        )  # fmt: skip

    @property
    def step(self) -> Step:
        """The model of a step; where the computation is unknown, of the shortest possible one."""
        compute_s = self.compute_s or 0.0
        plain = Step(compute_s, compute_s, self.communication_s, self.latency_s, self.ranks_by_host)
        return plain.under(self.exchange)

    @property
    def cures(self) -> list[Cure]:
        """The ways to exchange, mildest first; [] on one host, or with the computation unknown."""
        if self.hosts < 2 or self._measured is None:
            return []
        every = self.training.sync_every
        ways = [
            TrainingConfig(wire="float32", hierarchical="off", islands="off"),
            TrainingConfig(wire="float16", hierarchical="off", islands="off"),
            TrainingConfig(wire="float16", hierarchical="on", islands="off"),
            TrainingConfig(islands="hosts", streaming="off", sync_every=every),
            TrainingConfig(islands="hosts", streaming="on", sync_every=every),
        ]
        exchanges = [exchange_cost.choose(way, self._measured) for way in ways]
        if max(self.ranks_by_host) == 1:
            del exchanges[2]  # there is nothing to be summed first
        usual = {name: getattr(exchanges[0], name) for name in ("outer_rate", "outer_momentum")}
        chosen = dataclasses.replace(self.exchange, **usual)  # these make no step longer
        if chosen not in exchanges:
            exchanges.append(chosen)
        return [
            Cure(
                exchange_cost.name_of(each), each, self.step.under(each).total_s,
                exchange_cost.sent_bytes_per_step(each, self.gradient_bytes, self.ranks_by_host),
                each == chosen,
            )
            for each in exchanges
        ]  # fmt: skip

    @property
    def _may_change(self) -> bool:
        """Whether the run may exchange otherwise than is predicted: its computing is unknown."""
        return self.hosts > 1 and self.compute_s is None and may_group_ranks(self.training)

    @property
    def _measured(self) -> Measured | None:
        """What decides the exchange; None where the computation is unknown."""
        return None if self.compute_s is None else Measured(
            ranks_by_host=self.ranks_by_host, gradient_bytes=self.gradient_bytes,
            all_reduce_s=self.communication_s, latency_s=self.latency_s, compute_s=self.compute_s,
        )  # fmt: skip

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
        plain = "as plain training, " if self._may_change else ""
        way = "" if self.hosts > 1 else ", between the ranks of one host"
        lines = [
            f"all-reduce  {data_size(self.gradient_bytes)} of gradients{way}: "
            f"{step_duration(self.communication_s)}; {data_size(self.sent_bytes)} sent by each "
            f"rank at {self.bandwidth_MB_per_s:.1f} MB/s; one number takes "
            f"{step_duration(self.latency_s)}",
            *self._exchange_lines(),
            f"step        {plain}{least}{step_duration(self.step_s)}, {most}"
            f"{self.tokens_per_s:,.0f} source and target tokens/s",
            f"run         {self.max_steps:,} steps: {plain}{least}{duration(self.run_s)}",
            f"verdict     {self._sentence()}",
        ]
        if self.price_per_hour is not None:
            words = rent(self.price_per_hour, self.hosts, self.run_s)
            lines.insert(-1, f"cost        {words}{more}")
        lines += [
            f"advice      {advice.what}: {least}{step_duration(advice.predicted_step_s)} "
            f"({advice.why})"
            for advice in ([] if self._may_change else self.step.advice())
        ]
        return lines

    def as_plain(self) -> dict[str, object]:
        """Everything for JSON."""
        plain = dataclasses.asdict(self)
        del plain["training"]  # of which this is needed
        return plain | {
            "hosts": self.hosts, "ranks": self.ranks, "max_steps": self.max_steps,
            "exchange": None if self._measured is None else dataclasses.asdict(self.exchange),
            "cures": [dataclasses.asdict(cure) for cure in self.cures],
            "gradient_bytes": self.gradient_bytes, "sent_bytes": self.sent_bytes,
            "bandwidth_MB_per_s": self.bandwidth_MB_per_s,
            "step_s": self.step_s, "tokens_per_s": self.tokens_per_s, "run_s": self.run_s,
            "cost": self.cost, "verdict": self.verdict, "sentence": self._sentence(),
            "advice": [dataclasses.asdict(advice) for advice in self.step.advice()],
        }  # fmt: skip

    def _exchange_lines(self) -> list[str]:
        """What the run will do between its hosts, and a table of what it could do."""
        if self.hosts < 2:
            return []
        if self._measured is None:
            fixed = decided(self.training)
            says = "the run chooses by what its steps compute for, which is unknown"
            if fixed is not None:
                says = f"{exchange_cost.name_of(fixed)}, as the configuration says"
            return [
                f"exchange    {says}; it may be much faster than plain training: give --compute-s "
                "or --run"
            ] * self._may_change
        reason = exchange_cost.reason(self.training, self._measured, self.exchange)
        cures = self.cures
        width = max(len(cure.name) for cure in cures)
        return [f"exchange    {reason}"] + [
            f"            {cure.name:{width}}  {step_duration(cure.step_s):>8} a step, "
            f"{data_size(cure.sent_bytes):>8} per host" + (" <- this run" * cure.is_chosen)
            for cure in cures
        ]

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
