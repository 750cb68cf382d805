"""Some steps measured on all ranks of a run to come: step time, run time, verdict and advice.

    python -m hvd_nmt.launch -H v100a:2,v100b:2 -- python -m hvd_nmt.diagnosis.prediction JSON

`measure` starts that and reads the line of JSON that rank 0 prints.
"""

import dataclasses
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvd_nmt.common.errors import ClusterError, reported, speak_utf8
from hvd_nmt.common.units import data_size, duration, link_speed, step_duration
from hvd_nmt.config import Config, as_plain
from hvd_nmt.config.exchange import Exchange
from hvd_nmt.config.serialization import from_plain
from hvd_nmt.diagnosis.checks import OK, WARN, Check, PlannedRun, used_nic
from hvd_nmt.explain import exchange_cost
from hvd_nmt.explain.bottleneck import BINDING_SHARE, COMPUTE, LOCAL, NETWORK
from hvd_nmt.explain.exchange_cost import Step, ring_bytes

if TYPE_CHECKING:  # TensorFlow
    from hvd_nmt.training.plan import Plan
    from hvd_nmt.training.step_result import StepResult

MARK = "hvd_nmt.measurement "
_OF_RANKS = "hvd_nmt.bench: "
"""start of a rank's sentence on an error: it does what the benchmark does"""
_TIMEOUT_S = 600.0
"""seconds for all of it, start included"""
_STEPS = 5


@dataclass(frozen=True)
class Measurement:
    """What was measured."""

    all_reduce_s: float
    """seconds to sum all gradients in float32"""
    latency_s: float
    """seconds to sum one number"""
    compute_s: float
    """seconds that a step computes, the median"""
    tokens_per_step: float
    """mean number of source and target tokens"""


def measure(run: PlannedRun) -> Measurement:
    """Measure on all slots of a run's hosts; ClusterError: it failed, or took too long."""
    try:
        done = subprocess.run(
            _launch_command(run), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"The measurement did not end within {_TIMEOUT_S:g} s: check that no firewall closes "
            "the ports from 1024 on between the hosts."
        ) from None
    return _result(done.stdout, done.returncode)


def _launch_command(run: PlannedRun) -> list[str]:
    config = as_plain(run.config)
    request = {field.name: config[field.name] for field in dataclasses.fields(Config)}
    hosts = ",".join(f"{answer.host.name}:{answer.host.slots}" for answer in run.answers)
    return [
        sys.executable, "-m", "hvd_nmt.launch", "-H", hosts, "--restarts-per-hour", "0", "--",
        sys.executable, "-m", __name__, json.dumps(request),
    ]  # fmt: skip


def _result(output: str, exit_code: int) -> Measurement:
    """The result among the lines of all ranks; ClusterError: none, with the last line."""
    lines = [line for line in output.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(MARK):
            return Measurement(**json.loads(line.removeprefix(MARK)))
    sentences = [line.partition(_OF_RANKS)[2] for line in lines if _OF_RANKS in line]
    reason = [*sentences, *reversed(lines), "it said nothing"][0].strip()
    raise ClusterError(f"The measurement failed (exit code {exit_code}): {reason}")


def main(argv: Sequence[str] | None = None) -> int:
    """Take part as one rank; rank 0 prints the result. Returns the exit code."""
    speak_utf8()
    (word,) = sys.argv[1:] if argv is None else argv
    with reported(_OF_RANKS.removesuffix(": ")) as outcome:
        from hvd_nmt.common import tensorflow_import

        tensorflow_import.import_tensorflow()
        from hvd_nmt.training import benchmark

        config = from_plain(json.loads(word), "the request", Config())
        measurement = benchmark.measure(config, _STEPS, _measurement)
        if measurement is not None:  # on rank 0
            print(MARK + json.dumps(dataclasses.asdict(measurement)), flush=True)
    return outcome.exit_code


def _measurement(plan: "Plan", steps: Sequence["StepResult"]) -> Measurement:
    return Measurement(
        plan.all_reduce_s, plan.latency_s,
        statistics.median(step.step_time.compute_s for step in steps),
        statistics.fmean(step.source_tokens + step.target_tokens for step in steps),
    )  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """What a run will be like on hosts with at least 2 ranks, of which a step was measured."""

    run: PlannedRun
    measured: Measurement

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
        seen, ranks = self.measured, [answer.host.slots for answer in self.run.answers]
        plain = Step(seen.compute_s, seen.compute_s, seen.all_reduce_s, seen.latency_s, ranks)
        return plain.under(Exchange.of(self.run.config.training, len(ranks)))

    @property
    def verdict(self) -> str:
        """network-bound (communication-bound on one host) or compute-bound."""
        if self.step.exposed_s / self.step.total_s <= BINDING_SHARE:
            return COMPUTE
        return NETWORK if self.step.crosses_network else LOCAL

    def lines(self) -> list[str]:
        """What a reader sees."""
        measured, step, training = self.measured, self.step, self.run.config.training
        exchange, advised = [], step.advice()
        if step.crosses_network:
            link = exchange_cost.link_sentence(step, training.sync_every)
            if not any(exchange_cost.PRICE_OF_TRAINING_ALONE in advice.why for advice in advised):
                link += f"; {exchange_cost.PRICE_OF_TRAINING_ALONE}"
            way_between = exchange_cost.name_of(step.exchange)
            exchange = [f"exchange    {way_between}", f"link        {link}"]
        return [
            f"all-reduce  {data_size(self.run.gradient_bytes)} of gradients: "
            f"{step_duration(measured.all_reduce_s)}; {data_size(self.sent_bytes)} sent by each "
            f"rank at {link_speed(self.bandwidth_MB_per_s)}; one number takes "
            f"{step_duration(measured.latency_s)}",
            *exchange,
            f"step        {step_duration(step.total_s)}, of which a rank computes "
            f"{step_duration(measured.compute_s)}; {measured.tokens_per_step / step.total_s:,.0f} "
            "source and target tokens/s",
            f"run         {training.max_steps:,} steps: "
            f"{duration(step.total_s * training.max_steps)}",
            f"verdict     {self.verdict}: {step.exposed_s:.2f} of {step.total_s:.2f} s is exposed "
            "communication" + ("" if step.crosses_network else ", which crosses no network"),
            *(
                f"advice      {advice.what}: {step_duration(advice.predicted_step_s)} "
                f"({advice.why})"
                for advice in advised
            ),
        ]

    def check(self) -> Check:
        """Result of the measurement for the network."""
        speed, nic = link_speed(self.bandwidth_MB_per_s), used_nic(self.run.answers)
        nics = [answer.facts.get("nics", {}).get(nic, {}) for answer in self.run.answers]
        limits = [card["link_mbit_per_s"] for card in nics if card.get("link_mbit_per_s")]
        if limits and self.bandwidth_MB_per_s < 0.5 * min(limits) / 8:
            result = f"{speed} where {nic} allows {min(limits):,.0f} Mbit/s"
            others = "look for other traffic, a slower switch on the way, or a limit of the cloud"
            return Check("all-reduce", "", WARN, result, f"{others}; compare with iperf3")
        if self.verdict == COMPUTE:
            return Check("all-reduce", "", OK, speed)
        remedy = "see the advice below: this exchange will decide the speed"
        return Check("all-reduce", "", WARN, speed, remedy)


if __name__ == "__main__":
    sys.exit(main())
