"""Look at the hosts before a run: what will not work, and how fast it will be.

python -m hvd_nmt.doctor                                         this machine, one rank
python -m hvd_nmt.doctor -H v100a:2,v100b:2 --preset base        two hosts, as for horovodrun
python -m hvd_nmt.doctor --hostfile hostfiles/v100 --run runs/small --price-per-hour 2.50EUR
"""

from __future__ import annotations

import dataclasses
import functools
import json
import socket
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from hvd_nmt.common.errors import ClusterError, ConfigError, reported, speak_utf8
from hvd_nmt.common.units import count, data_size, step_duration
from hvd_nmt.config import Config, command_line
from hvd_nmt.diagnosis import allreduce, checks, hosts, prediction
from hvd_nmt.diagnosis.asked import Asked
from hvd_nmt.diagnosis.hosts import Answer, Host
from hvd_nmt.diagnosis.prediction import Prediction
from hvd_nmt.diagnosis.table import FAIL, OK, WARN, Check, table
from hvd_nmt.reporting import cost

_STOP_AN_ALL_REDUCE = ("ssh", "names", "Python", "packages", "Horovod", "GPUs")
"""checks after whose failure horovodrun could not even start"""


@dataclasses.dataclass(frozen=True)
class DoctorConfig(Config):
    """The run to come, and where it is to run."""

    hosts: Annotated[str, tyro.conf.arg(aliases=["-H"])] = ""
    """hosts and their slots, NAME:SLOTS with commas between; nothing: this machine, one slot"""
    hostfile: Path | None = None
    """file with lines NAME slots=RANKS, in place of -H"""
    json: bool = False
    """print everything as one JSON object"""
    run: Path | None = None
    """run directory of an earlier run of this model on such hardware, for the time of computing"""
    compute_s: float = 0.0
    """seconds a rank computes in a step, in place of --run; 0: unknown"""
    price_per_hour: str | None = None
    """rent of one host for an hour, with its currency, such as 2.50EUR"""
    all_reduce: bool = True
    """measure an all-reduce of the gradient's size between the ranks"""
    timeout_s: float = 20.0
    """seconds that each host has to answer"""
    all_reduce_timeout_s: float = 300.0
    """seconds for the all-reduce, start of all ranks included"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hosts and self.hostfile:
            raise ConfigError("Give the hosts with -H or with --hostfile, not with both.")
        if min(self.timeout_s, self.all_reduce_timeout_s) <= 0:
            raise ConfigError("--timeout-s and --all-reduce-timeout-s must be above 0.")
        if self.compute_s < 0:
            raise ConfigError("--compute-s must not be negative.")
        self.price  # noqa: B018 - a price that cannot be read is said before a host is asked

    @property
    def price(self) -> cost.Price | None:
        """Of one host for an hour, if it was given."""
        given = self.price_per_hour
        return cost.price(given, "--price-per-hour") if given else None


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What was found."""

    answers: list[Answer]
    """of each host"""
    checks: list[Check]
    prediction: Prediction | None
    """None where there was nothing to measure, or it failed"""

    @property
    def exit_code(self) -> int:
        """0, or that of a ClusterError if a check failed."""
        failed = any(check.status == FAIL for check in self.checks)
        return ClusterError.exit_code if failed else 0

    def text(self) -> str:
        """The table, the prediction, and how many checks failed."""
        counts = {status: sum(check.status == status for check in self.checks)
                  for status in (OK, WARN, FAIL)}  # fmt: skip
        parts = [table(self.checks)]
        if self.prediction is not None:
            parts.append("\n".join(self.prediction.lines()))
        verdict = "a run would not start or not be right" if self.exit_code else "a run will start"
        parts.append(
            f"{counts[OK]} ok, {count(counts[WARN], 'warning')}, "
            f"{count(counts[FAIL], 'failure')}: {verdict}."
        )
        return "\n\n".join(parts)

    def as_plain(self) -> dict[str, Any]:
        """Everything for JSON."""
        return {
            "exit_code": self.exit_code,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "prediction": None if self.prediction is None else self.prediction.as_plain(),
            "hosts": [dataclasses.asdict(answer) for answer in self.answers],
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    speak_utf8()
    with reported("hvd_nmt.doctor") as outcome:
        config: DoctorConfig = command_line.run_config(
            argv, prog="python -m hvd_nmt.doctor", description=__doc__ or "", kind=DoctorConfig
        )
        diagnosis = diagnose(config)
        plain = config.json
        print(json.dumps(diagnosis.as_plain(), indent=1) if plain else diagnosis.text())
        outcome.exit_code = diagnosis.exit_code
    return outcome.exit_code


def diagnose(config: DoctorConfig) -> Diagnosis:
    """Ask all hosts, judge what they say, and measure the network between them.

    Raises:
        ConfigError: the hosts cannot be read, or --run is of another model.
        RunError: --run is no run with steps.
    """
    wanted = _wanted(config)
    ranks = sum(host.slots for host in wanted)
    compute_s = config.compute_s or None
    if config.run is not None and compute_s is None:
        compute_s = prediction.compute_s_of(config.run, config, ranks)
    _say(f"asking {', '.join(host.name for host in wanted)} ...")
    request = _request(config, ranks)
    answers = hosts.ask(wanted, request, config.timeout_s)
    asked = Asked(config, answers, _worst_step(request, answers, config.timeout_s))
    found = checks.examine(asked)
    if ranks == 1 or not config.all_reduce:
        return Diagnosis(answers, found, None)
    more, predicted = _measure(asked, found, compute_s)
    return Diagnosis(answers, found + more, predicted)


def _wanted(config: DoctorConfig) -> list[Host]:
    if config.hostfile is not None:
        return hosts.read_hostfile(config.hostfile)
    return hosts.parse(config.hosts or f"{socket.gethostname()}:1")


def _request(config: DoctorConfig, ranks: int) -> dict[str, Any]:
    """What the probe of a host has to know; see `probe.facts`."""
    return {
        "run_dir": str(config.run_dir),
        "data": str(config.data.directory),
        "model": dataclasses.asdict(config.model),
        "tokens_per_step": config.training.tokens_per_step,
        "seed": config.training.seed,
        "ranks": ranks,
    }


def _worst_step(
    request: dict[str, Any], answers: Sequence[Answer], timeout_s: float
) -> Callable[[int], dict[str, Any] | None]:
    """Asks a host that has the data for the step that would need most memory, by its tokens."""
    holder = next((a.host for a in answers if (a.facts.get("data") or {}).get("hash")), None)

    @functools.cache
    def asked(tokens_per_step: int) -> dict[str, Any] | None:
        if holder is None:
            return None
        again = request | {"tokens_per_step": tokens_per_step}
        (answer,) = hosts.ask([holder], again, timeout_s)
        return (answer.facts.get("data") or {}).get("worst_batch")

    return asked


def _measure(
    asked: Asked, found: Sequence[Check], compute_s: float | None
) -> tuple[list[Check], Prediction | None]:
    """Time the all-reduce and say what it means."""
    config = asked.config
    assert isinstance(config, DoctorConfig)
    hindered = [c for c in found if c.status == FAIL and c.name in _STOP_AN_ALL_REDUCE]
    if hindered:
        why = f"not measured: {hindered[0].name} of {hindered[0].host} fails"
        return [Check("all-reduce", "", WARN, why, "mend the failures, then run this again")], None
    _say(f"an all-reduce of {data_size(asked.gradient_bytes)} over {asked.ranks} ranks ...")
    try:
        result = allreduce.measure(
            [answer.host for answer in asked.answers], asked.gradient_bytes,
            checks.used_nic(asked.answers), config.all_reduce_timeout_s,
        )  # fmt: skip
    except ClusterError as error:
        remedy = "see what horovodrun says: horovodrun --verbose -np 2 -H ... true"
        return [Check("all-reduce", "", FAIL, str(error), remedy)], None
    predicted = prediction.predict(
        config, asked.trained, len(asked.answers), asked.ranks,
        statistics.median(result["seconds"]), result["latency_s"], compute_s,
        asked.source_per_target_token, config.price,
    )  # fmt: skip
    return judge_all_reduce(asked.answers, result, predicted), predicted


def judge_all_reduce(
    answers: Sequence[Answer], result: dict[str, Any], predicted: Prediction
) -> list[Check]:
    """What the measurement says about the network, and about TensorFlow and the GPUs."""
    found = (
        f"{data_size(predicted.gradient_bytes)} in {step_duration(predicted.communication_s)}, "
        f"{predicted.bandwidth_MB_per_s:.1f} MB/s, {step_duration(predicted.latency_s)} latency"
    )
    status, remedy = OK, ""
    nic = checks.used_nic(answers)
    nics = [(answer.facts.get("nics") or {}).get(nic, {}) for answer in answers]
    speeds = [card.get("link_mbit_per_s") for card in nics]
    allowed_MB_per_s = min((speed / 8 for speed in speeds if speed), default=None)
    if allowed_MB_per_s and predicted.bandwidth_MB_per_s < 0.5 * allowed_MB_per_s:
        found += f" where {nic} allows {allowed_MB_per_s:,.0f}"
        status, remedy = (
            WARN,
            "look for other traffic, a slower switch on the way, or a limit of the cloud; "
            "compare with iperf3",
        )
    elif predicted.verdict == prediction.NETWORK:
        status, remedy = WARN, "see the advice below: the network will decide the speed"
    elif predicted.verdict == prediction.LOCAL:
        status, remedy = (
            WARN,
            (
                "see the advice below: the exchange between the ranks of this host will decide the "
                "speed"
            ),
        )
    judged = [Check("all-reduce", "", status, found, remedy)]
    with_gpus = {a.facts["host"] for a in answers if (a.facts["gpu"] or {}).get("gpus")}
    blind = {host for host, gpus in zip(result["hosts"], result["gpus"], strict=True)
             if host in with_gpus and not gpus}  # fmt: skip
    judged += [
        Check("TensorFlow", host, FAIL, "sees no GPU, though NVML does",
              "GPU=1 make install there: it installs the CUDA libraries of this TensorFlow")
        for host in sorted(blind)
    ]  # fmt: skip
    return judged


def _say(text: str) -> None:
    """Progress, for a person who waits."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
