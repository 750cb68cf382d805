"""Look at the hosts before a run: what will not work, and how fast it will be.

For example:

    python -m hvd_nmt.doctor                                         this machine, one rank
    python -m hvd_nmt.doctor -H v100a:2,v100b:2 --preset base        two hosts, as for horovodrun
    python -m hvd_nmt.doctor --hostfile hostfiles/v100 --config runs/small/config.yaml
"""

from __future__ import annotations

import dataclasses
import socket
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from hvd_nmt.common.errors import ClusterError, ConfigError, reported, speak_utf8
from hvd_nmt.common.units import data_size
from hvd_nmt.config import Config, as_plain, command_line
from hvd_nmt.config.limits import PositiveFloat
from hvd_nmt.diagnosis import checks, hosts, measurement, network_checks, planned_run
from hvd_nmt.diagnosis.findings import FAIL, WARN, Check, Findings
from hvd_nmt.diagnosis.link import Links
from hvd_nmt.diagnosis.planned_run import PlannedRun
from hvd_nmt.diagnosis.prediction import Prediction

_STOP_A_MEASUREMENT = (
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
    measure: bool = True
    """measure between several ranks what a step will take: its computing, and an all-reduce of the
    gradients"""
    timeout_s: PositiveFloat = 20.0
    """seconds that each host has to answer"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hosts and self.hostfile:
            raise ConfigError("Give the hosts with -H or with --hostfile, not with both.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    speak_utf8()
    with reported("hvd_nmt.doctor") as outcome:
        config: DoctorConfig = command_line.run_config(
            argv, prog="python -m hvd_nmt.doctor", description=__doc__ or "", kind=DoctorConfig
        )
        found = diagnose(config)
        print(found.text())
        outcome.exit_code = found.exit_code
    return outcome.exit_code


def diagnose(config: DoctorConfig) -> Findings:
    """Ask all hosts, judge what they say, and measure a step on them.

    Raises:
        ConfigError: the hosts cannot be read.
    """
    if config.hostfile is not None:
        wanted = hosts.read_hostfile(config.hostfile)
    else:
        wanted = hosts.parse(config.hosts or f"{socket.gethostname()}:1")
    _say(f"asking {', '.join(host.name for host in wanted)} ...")
    with Links(config.timeout_s) as links:
        run = planned_run.ask(config, wanted, links)
        found = checks.examine(run)
    if run.ranks == 1 or not config.measure:
        return Findings(run.answers, found, None)
    more, predicted = _measure(config, run, found)
    return Findings(run.answers, [*found, *more], predicted)


def _measure(
    config: DoctorConfig, run: PlannedRun, found: Sequence[Check]
) -> tuple[list[Check], Prediction | None]:
    """Time what a step consists of and say what it means."""
    hindered = [c for c in found if c.status == FAIL and c.name in _STOP_A_MEASUREMENT]
    if hindered:
        why = f"not measured: {hindered[0].name} of {hindered[0].host} fails"
        return [Check("all-reduce", "", WARN, why, "mend the failures, then run this again")], None
    _say(f"a step, and an all-reduce of {data_size(run.gradient_bytes)}, of {run.ranks} ranks ...")
    plain = as_plain(config)
    request = measurement.Request(
        {field.name: plain[field.name] for field in dataclasses.fields(Config)},
        run.gradient_bytes, run.vocabulary_size, run.source_vocabulary_size, run.usual_batch,
    )  # fmt: skip
    try:
        measured = measurement.measure(
            [answer.host for answer in run.answers], request, network_checks.used_nic(run.answers)
        )
    except ClusterError as error:
        remedy = "see what horovodrun says: horovodrun --verbose -np 2 -H ... true"
        return [Check("all-reduce", "", FAIL, str(error), remedy)], None
    predicted = Prediction(
        ranks_by_host=tuple(answer.host.slots for answer in run.answers),
        parameters=run.checkpoint.trained,
        communication_s=statistics.median(measured.seconds),
        latency_s=measured.latency_s,
        compute_s=measured.compute_s,
        training=config.training,
        tokens_per_step=run.tokens_per_step,
    )
    return network_checks.judge_measurement(run, measured, predicted), predicted


def _say(text: str) -> None:
    """Progress, for a person who waits."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
