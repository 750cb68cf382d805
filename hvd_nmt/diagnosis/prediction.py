"""From the speed of an all-reduce to step time, run time, verdict and advice."""

from __future__ import annotations

from dataclasses import dataclass

from hvd_nmt.common.gradient import bytes_of_gradients, ring_bytes
from hvd_nmt.common.units import data_size, duration, step_duration
from hvd_nmt.config import TrainingConfig
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.explain import exchange_cost
from hvd_nmt.explain.bottleneck import BINDING_SHARE, COMPUTE, LOCAL, NETWORK
from hvd_nmt.explain.step_model import Step


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
    compute_s: float
    """computation of a step on one rank, measured"""
    training: TrainingConfig
    """of the run"""
    tokens_per_step: float
    """real source and target tokens of all ranks"""

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
        """What travels between the hosts."""
        return Exchange.of(self.training, self.hosts)

    @property
    def step(self) -> Step:
        """The model of a step."""
        plain = Step(
            self.compute_s, self.compute_s, self.communication_s, self.latency_s,
            self.ranks_by_host,
        )  # fmt: skip
        return plain.under(self.exchange)

    @property
    def step_s(self) -> float:
        """Wall time of a step."""
        return self.step.total_s

    @property
    def tokens_per_s(self) -> float:
        """Real source and target tokens per second."""
        return self.tokens_per_step / self.step_s

    @property
    def run_s(self) -> float:
        """Seconds of all steps, without evaluations."""
        return self.step_s * self.max_steps

    @property
    def verdict(self) -> str:
        """network-bound (communication-bound on one host) or compute-bound."""
        if self.step.exposed_s / self.step_s <= BINDING_SHARE:
            return COMPUTE
        return NETWORK if self.hosts > 1 else LOCAL

    @property
    def sentence(self) -> str:
        """The verdict and its evidence."""
        return (
            f"{self.verdict}: {self.step.exposed_s:.2f} of {self.step_s:.2f} s is exposed "
            "communication" + ("" if self.hosts > 1 else ", which crosses no network")
        )

    def lines(self) -> list[str]:
        """For a reader."""
        way = "" if self.hosts > 1 else ", between the ranks of one host"
        return [
            f"all-reduce  {data_size(self.gradient_bytes)} of gradients{way}: "
            f"{step_duration(self.communication_s)}; {data_size(self.sent_bytes)} sent by each "
            f"rank at {self.bandwidth_MB_per_s:.1f} MB/s; one number takes "
            f"{step_duration(self.latency_s)}",
            *self._exchange_lines(),
            f"step        {step_duration(self.step_s)}, of which a rank computes "
            f"{step_duration(self.compute_s)}; {self.tokens_per_s:,.0f} source and target tokens/s",
            f"run         {self.max_steps:,} steps: {duration(self.run_s)}",
            f"verdict     {self.sentence}",
            *(
                f"advice      {advice.what}: {step_duration(advice.predicted_step_s)} "
                f"({advice.why})"
                for advice in self.step.advice()
            ),
        ]

    def _exchange_lines(self) -> list[str]:
        """What the run will do between its hosts, and what else it could do."""
        if self.hosts < 2:
            return []
        said = exchange_cost.link_sentence(
            self.ranks_by_host, self.communication_s, self.latency_s, self.compute_s,
            self.training.sync_every,
        )  # fmt: skip
        return [f"exchange    {exchange_cost.name_of(self.exchange)}", f"link        {said}"]
