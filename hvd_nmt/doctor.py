"""Look at the hosts before a run: what will not work, and how fast it will be.

For example:

    python -m hvd_nmt.doctor                                         this machine, one rank
    python -m hvd_nmt.doctor -H v100a:2,v100b:2 --preset base        two hosts, as for horovodrun
    python -m hvd_nmt.doctor --hostfile hostfiles/v100 --config runs/small/config.yaml
"""

import collections
import dataclasses
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from hvd_nmt.common.errors import ClusterError, ConfigError
from hvd_nmt.common.units import count, data_size
from hvd_nmt.config import Config, command_line
from hvd_nmt.config.schema import PositiveFloat
from hvd_nmt.diagnosis import checks, hosts, measurement, planned_run
from hvd_nmt.diagnosis.checks import FAIL, OK, WARN, Check
from hvd_nmt.diagnosis.link import Links
from hvd_nmt.diagnosis.planned_run import PlannedRun
from hvd_nmt.diagnosis.prediction import Prediction

_STOP_A_MEASUREMENT = ("ssh", "names", "versions", "packages", "Horovod", "GPUs")
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
    return command_line.run("hvd_nmt.doctor", DoctorConfig, doctor, str(__doc__), argv)


def doctor(config: DoctorConfig) -> int:
    """Prints what was found; returns the exit code."""
    found, prediction = diagnose(config)
    statuses = collections.Counter(check.status for check in found)
    parts = [checks.table(found)]
    if prediction is not None:
        parts.append("\n".join(prediction.lines()))
    verdict = "a run would not start or not be right" if statuses[FAIL] else "a run will start"
    parts.append(
        f"{statuses[OK]} ok, {count(statuses[WARN], 'warning')}, "
        f"{count(statuses[FAIL], 'failure')}: {verdict}."
    )
    print("\n\n".join(parts))
    return ClusterError.exit_code if statuses[FAIL] else 0


def diagnose(config: DoctorConfig) -> tuple[list[Check], Prediction | None]:
    """Ask all hosts, judge what they say, and measure a step on them, unless that is not wanted.

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
        return found, None
    more, prediction = _measure(run, found)
    return [*found, *more], prediction


def _measure(run: PlannedRun, found: Sequence[Check]) -> tuple[list[Check], Prediction | None]:
    """Time what a step consists of and say what it means."""
    hindered = [c for c in found if c.status == FAIL and c.name in _STOP_A_MEASUREMENT]
    if hindered:
        why = f"not measured: {hindered[0].name} of {hindered[0].host} fails"
        return [Check("all-reduce", "", WARN, why, "mend the failures, then run this again")], None
    _say(f"a step, and an all-reduce of {data_size(run.gradient_bytes)}, of {run.ranks} ranks ...")
    try:
        prediction = Prediction(run, measurement.measure(run))
    except ClusterError as error:
        remedy = "see what horovodrun says: horovodrun --verbose -np 2 -H ... true"
        return [Check("all-reduce", "", FAIL, str(error), remedy)], None
    return prediction.checks(), prediction


def _say(text: str) -> None:
    """Progress, for a person who waits."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
