"""Look at the hosts before a run: what will not work, and how fast it will be.

    python -m hvd_nmt.doctor                                         this machine, one rank
    python -m hvd_nmt.doctor -H v100a:2,v100b:2 --preset base        two hosts, as for horovodrun
    python -m hvd_nmt.doctor --hostfile hostfiles/v100 --config runs/small/config.yaml

Hosts: --hosts --hostfile --timeout-s
  --no-measure                     only ask the hosts, measure no step
The planned run:
  --OPTION VALUE                   the options of train, see python -m hvd_nmt.train --help
"""

import collections
import dataclasses
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from hvd_nmt.common.errors import ClusterError
from hvd_nmt.common.units import count
from hvd_nmt.config import Config, command_line
from hvd_nmt.config.schema import PositiveFloat
from hvd_nmt.diagnosis import checks, prediction
from hvd_nmt.diagnosis.checks import FAIL, OK, WARN, Check, PlannedRun
from hvd_nmt.diagnosis.prediction import Prediction
from hvd_nmt.hosts.connection import Connections
from hvd_nmt.hosts.host_list import Host, read_hosts


@dataclasses.dataclass(frozen=True)
class DoctorConfig(Config):
    """The run to come, and where it is to run."""

    hosts: Annotated[str, tyro.conf.arg(aliases=["-H"])] = ""
    """hosts and slots (-H), such as a:2,b:2 (default: this machine); it has one slot"""
    hostfile: Path | None = None
    """file with lines NAME slots=RANKS, instead of -H"""
    measure: bool = True
    """measure what a step takes between several ranks, by some steps on the data"""
    timeout_s: PositiveFloat = 20.0
    """seconds that each host has to answer"""


@command_line.command("hvd_nmt.doctor", DoctorConfig, __doc__)
def main(config: DoctorConfig) -> int:
    """Asks all hosts, checks their facts, measures a step on them; returns the exit code."""
    wanted = read_hosts(config.hosts, config.hostfile) or [Host(socket.gethostname(), 1)]
    with Connections(config.timeout_s) as connections:
        run = checks.ask(config, wanted, connections)
    results, predicted = checks.examine(run), None
    if run.ranks > 1 and config.measure:
        check, predicted = _measure(run, results)
        results.append(check)
    statuses = collections.Counter(check.status for check in results)
    steps = [] if predicted is None else ["\n".join(predicted.lines())]
    verdict = "a run would not start or not be right" if statuses[FAIL] else "a run will start"
    warnings, failures = count(statuses[WARN], "warning"), count(statuses[FAIL], "failure")
    counts = f"{statuses[OK]} ok, {warnings}, {failures}: {verdict}."
    print(checks.table(results), *steps, counts, sep="\n\n")
    return ClusterError.exit_code if statuses[FAIL] else 0


def _measure(run: PlannedRun, results: Sequence[Check]) -> tuple[Check, Prediction | None]:
    if failed := next((check for check in results if check.status == FAIL), None):
        where = f" of {failed.host}" if failed.host else ""
        why = f"not measured: {failed.name}{where} fails"
        return Check("all-reduce", "", WARN, why, "fix the failures, then run this again"), None
    if sys.stderr.isatty():
        print(f"some steps of {run.ranks} ranks ...", file=sys.stderr, flush=True)
    try:
        predicted = Prediction(run, prediction.measure(run))
    except ClusterError as error:
        return Check("all-reduce", "", FAIL, str(error), "python -m hvd_nmt.bench says more"), None
    return predicted.check(), predicted


if __name__ == "__main__":
    sys.exit(main())
