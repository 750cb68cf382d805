"""Look at the hosts before a run: what will not work, and how fast it will be.

For example:

    python -m hvd_nmt.doctor                                         this machine, one rank
    python -m hvd_nmt.doctor -H v100a:2,v100b:2 --preset base        two hosts, as for horovodrun
    python -m hvd_nmt.doctor --hostfile hostfiles/v100 --run runs/small --price-per-hour 2.50EUR
"""

from __future__ import annotations

import dataclasses
import json
import socket
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from hvd_nmt.common.errors import ClusterError, ConfigError, reported, speak_utf8
from hvd_nmt.common.units import data_size
from hvd_nmt.config import Config, command_line
from hvd_nmt.diagnosis import allreduce, checks, hosts, network_checks, planned_run, prediction
from hvd_nmt.diagnosis.findings import Findings
from hvd_nmt.diagnosis.link import Links
from hvd_nmt.diagnosis.planned_run import PlannedRun
from hvd_nmt.diagnosis.prediction import Prediction
from hvd_nmt.diagnosis.table import FAIL, WARN, Check
from hvd_nmt.reporting import cost

_STOP_AN_ALL_REDUCE = (
    "ssh", "names", "Python", "packages", "Horovod", "GPUs", "compute capability",
)  # fmt: skip
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    speak_utf8()
    with reported("hvd_nmt.doctor") as outcome:
        config: DoctorConfig = command_line.run_config(
            argv, prog="python -m hvd_nmt.doctor", description=__doc__ or "", kind=DoctorConfig
        )
        found = diagnose(config)
        print(json.dumps(found.as_plain(), indent=1) if config.json else found.text())
        outcome.exit_code = found.exit_code
    return outcome.exit_code


def diagnose(config: DoctorConfig) -> Findings:
    """Ask all hosts, judge what they say, and measure the network between them.

    Raises:
        ConfigError: the hosts cannot be read, or --run is of another model.
        RunError: --run is no run with steps.
    """
    if config.hostfile is not None:
        wanted = hosts.read_hostfile(config.hostfile)
    else:
        wanted = hosts.parse(config.hosts or f"{socket.gethostname()}:1")
    ranks = sum(host.slots for host in wanted)
    compute_s = config.compute_s or None
    if config.run is not None and compute_s is None:
        compute_s = prediction.compute_s_of(config.run, config, ranks)
    _say(f"asking {', '.join(host.name for host in wanted)} ...")
    with Links(config.timeout_s) as links:
        run = planned_run.ask(config, wanted, links)
        found = checks.examine(run)
    if ranks == 1 or not config.all_reduce:
        return Findings(run.answers, found, None)
    more, predicted = _measure(config, run, found, compute_s)
    return Findings(run.answers, [*found, *more], predicted)


def _measure(
    config: DoctorConfig, run: PlannedRun, found: Sequence[Check], compute_s: float | None
) -> tuple[list[Check], Prediction | None]:
    """Time the all-reduce and say what it means."""
    hindered = [c for c in found if c.status == FAIL and c.name in _STOP_AN_ALL_REDUCE]
    if hindered:
        why = f"not measured: {hindered[0].name} of {hindered[0].host} fails"
        return [Check("all-reduce", "", WARN, why, "mend the failures, then run this again")], None
    _say(f"an all-reduce of {data_size(run.gradient_bytes)} over {run.ranks} ranks ...")
    try:
        result = allreduce.measure(
            [answer.host for answer in run.answers], run.gradient_bytes,
            network_checks.used_nic(run.answers), config.all_reduce_timeout_s,
        )  # fmt: skip
    except ClusterError as error:
        remedy = "see what horovodrun says: horovodrun --verbose -np 2 -H ... true"
        return [Check("all-reduce", "", FAIL, str(error), remedy)], None
    predicted = Prediction(
        ranks_by_host=tuple(answer.host.slots for answer in run.answers),
        parameters=run.checkpoint.trained,
        communication_s=statistics.median(result["seconds"]),
        latency_s=result["latency_s"],
        compute_s=compute_s,
        training=config.training,
        tokens_per_step=run.tokens_per_step,
        price_per_hour=config.price,
    )
    return network_checks.judge_all_reduce(run.answers, result, predicted), predicted


def _say(text: str) -> None:
    """Progress, for a person who waits."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
