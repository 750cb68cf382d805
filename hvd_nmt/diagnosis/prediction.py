"""From a measured all-reduce and a measured step to step time, run time, verdict and advice."""

from dataclasses import dataclass

from hvd_nmt.common.units import count, data_size, duration, step_duration
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.config.schema import AUTO
from hvd_nmt.diagnosis.checks import FAIL, OK, WARN, Check, Judgement, used_nic
from hvd_nmt.diagnosis.measurement import Measurement
from hvd_nmt.diagnosis.planned_run import PlannedRun
from hvd_nmt.explain import exchange_cost
from hvd_nmt.explain.bottleneck import BINDING_SHARE, COMPUTE, LOCAL, NETWORK
from hvd_nmt.explain.exchange_cost import Step, ring_bytes


@dataclass(frozen=True)
class Prediction:
    """What a run will be like on hosts with at least 2 ranks, of which a step was measured."""

    run: PlannedRun
    measured: Measurement

    @property
    def ranks_by_host(self) -> tuple[int, ...]:
        """Number of ranks on each host."""
        return tuple(answer.host.slots for answer in self.run.answers)

    @property
    def crosses_network(self) -> bool:
        """Whether there are several hosts."""
        return len(self.ranks_by_host) > 1

    @property
    def sent_bytes(self) -> float:
        """Bytes sent by each rank in a step, and by each host to the next, by the ring law."""
        return ring_bytes(self.run.gradient_bytes, self.run.ranks)

    @property
    def bandwidth_MB_per_s(self) -> float:
        """Bytes that each rank sends over the time that it takes."""
        return self.sent_bytes / self.measured.all_reduce_s / 1e6

    @property
    def step(self) -> Step:
        """The model of a step."""
        found = self.measured
        plain = Step(
            found.compute_s, found.compute_s, found.all_reduce_s, found.latency_s,
            self.ranks_by_host,
        )  # fmt: skip
        return plain.under(Exchange.of(self.run.config.training, len(self.ranks_by_host)))

    @property
    def verdict(self) -> str:
        """network-bound (communication-bound on one host) or compute-bound."""
        if self.step.exposed_s / self.step.total_s <= BINDING_SHARE:
            return COMPUTE
        return NETWORK if self.crosses_network else LOCAL

    def lines(self) -> list[str]:
        """For a reader."""
        found, step, training = self.measured, self.step, self.run.config.training
        way = "" if self.crosses_network else ", between the ranks of one host"
        exchange = []
        if self.crosses_network:
            said = exchange_cost.link_sentence(step, training.sync_every)
            way_between = exchange_cost.name_of(step.exchange)
            exchange = [f"exchange    {way_between}", f"link        {said}"]
        return [
            f"all-reduce  {data_size(self.run.gradient_bytes)} of gradients{way}: "
            f"{step_duration(found.all_reduce_s)}; {data_size(self.sent_bytes)} sent by each "
            f"rank at {self.bandwidth_MB_per_s:.1f} MB/s; one number takes "
            f"{step_duration(found.latency_s)}",
            *exchange,
            f"step        {step_duration(step.total_s)}, of which a rank computes "
            f"{step_duration(found.compute_s)}; {self.run.tokens_per_step / step.total_s:,.0f} "
            "source and target tokens/s",
            f"run         {training.max_steps:,} steps: "
            f"{duration(step.total_s * training.max_steps)}",
            f"verdict     {self.verdict}: {step.exposed_s:.2f} of {step.total_s:.2f} s is exposed "
            "communication" + ("" if self.crosses_network else ", which crosses no network"),
            *(
                f"advice      {advice.what}: {step_duration(advice.predicted_step_s)} "
                f"({advice.why})"
                for advice in step.advice()
            ),
        ]

    def checks(self) -> list[Check]:
        """What the measurement says of the network and of the GPUs' memory."""
        checks = [Check("all-reduce", "", *self._judge_all_reduce())]
        if self.measured.slices is not None:
            checks.append(Check("memory", "", *self._judge_memory(self.measured.slices)))
        return checks

    def _judge_all_reduce(self) -> Judgement:
        found = (
            f"{data_size(self.run.gradient_bytes)} in {step_duration(self.measured.all_reduce_s)}, "
            f"{self.bandwidth_MB_per_s:.1f} MB/s, {step_duration(self.measured.latency_s)} latency"
        )
        nic = used_nic(self.run.answers)
        nics = [(answer.facts.get("nics") or {}).get(nic, {}) for answer in self.run.answers]
        speeds = [card["link_mbit_per_s"] for card in nics if card.get("link_mbit_per_s")]
        if speeds and self.bandwidth_MB_per_s < 0.5 * min(speeds) / 8:
            found += f" where {nic} allows {min(speeds) / 8:,.0f}"
            others = "look for other traffic, a slower switch on the way, or a limit of the cloud"
            return WARN, found, f"{others}; compare with iperf3"
        if self.verdict == COMPUTE:
            return OK, found, ""
        local = "the exchange between the ranks of this host"
        what = "the network" if self.crosses_network else local
        return WARN, found, f"see the advice below: {what} will decide the speed"

    def _judge_memory(self, slices: int) -> Judgement:
        """What the trial of the widest step says."""
        asked = self.run.config.training.micro_batches
        if not slices:
            found = "the GPUs have too little for a single sentence of this length"
            return FAIL, found, "end other programs there, or take a smaller model"
        found = f"the widest step fits in {count(slices, 'slice')}"
        if asked != AUTO and slices > int(asked):
            return WARN, found, f"set --training.micro-batches {slices}, or auto"
        return OK, found, ""
