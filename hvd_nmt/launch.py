"""Train unattended: start the ranks on all hosts, and start them again until the run is done.

For example:

    python -m hvd_nmt.launch train --preset small                    this machine, a rank per GPU
    python -m hvd_nmt.launch -H v100a:2,v100b:2 train --preset base  two hosts
    python -m hvd_nmt.launch --hostfile hostfiles/v100 --min-ranks 2 train --preset base
    python -m hvd_nmt.launch --dry-run -H v100a:2,v100b:2 -- python -m hvd_nmt.train

The command stands after --; `train` is short for `-- python -m hvd_nmt.train`. Only variables that
training needs reach the ranks. Before each start all hosts are asked what would go wrong, as
hvd_nmt.doctor asks; what hinders the first start ends the launcher with code 5.

When the ranks have ended, their exit code decides:

- 0: done. 2, 3, 4 and 6 would come again: the launcher ends with them.
- 5, 75, 255, and ranks that were killed: they start again, from the newest checkpoint.
- 1, a defect: likewise, as long as each start makes a new checkpoint.

The pauses between starts grow while none makes a new checkpoint, and after 5 such starts in a row
the launcher gives up, with the last code. SIGTERM, Ctrl-C and a closed terminal let the ranks save;
the launcher then ends with 75, and the same command goes on. A second Ctrl-C ends all at once.
RUN_DIR/launch.jsonl records all of it, and the report tells it.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from hvd_nmt.common import signals
from hvd_nmt.common.errors import ConfigError, Preempted, outliving_readers, reported
from hvd_nmt.config import Config, command_line
from hvd_nmt.config.schema import NaturalFloat, NaturalInt, PositiveFloat, require_limits
from hvd_nmt.diagnosis import checks, hosts, probe
from hvd_nmt.diagnosis.hosts import Host
from hvd_nmt.launching import supervision
from hvd_nmt.launching.preflight import Job
from hvd_nmt.train import write_report

_TRAIN, _SHORT = "hvd_nmt.train", "train"


@dataclasses.dataclass(frozen=True)
class Options:
    """Where the ranks run, and how often they are started again."""

    hosts: Annotated[str, tyro.conf.arg(aliases=["-H"])] = ""
    """hosts and their slots, NAME:SLOTS with commas between; nothing: this machine, a slot for each
    GPU, or one"""
    hostfile: Path | None = None
    """file with lines NAME slots=RANKS, in place of -H"""
    num_proc: Annotated[NaturalInt, tyro.conf.arg(aliases=["-np"])] = 0
    """ranks; 0: as many as there are slots"""
    nic: str = ""
    """network card between the hosts, of the same name on each; nothing: the one that leads from
    each to the others"""
    min_ranks: NaturalInt = 0
    """hosts that cannot be used are left out while the others have so many slots, and are taken in
    again by a later start; 0: all ranks, so no host may be missing"""
    restarts_per_hour: NaturalInt = 10
    """within any hour; the pause before the next one is as long as that takes. 0: no restart"""
    wait_for_hosts_h: NaturalFloat = 24.0
    """hours to wait, at most and each time, for what hinders a restart"""
    timeout_s: PositiveFloat = 30.0
    """seconds that each host has to answer"""
    dry_run: bool = False
    """ask the hosts and say what would be started where, without starting it"""

    def __post_init__(self) -> None:
        require_limits(self)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    with (
        signals.restored(),
        outliving_readers("hvd_nmt.launch"),
        reported("hvd_nmt.launch") as outcome,
    ):
        own, words = split(sys.argv[1:] if argv is None else argv)
        if not words and not {"-h", "--help"} & set(own):
            raise ConfigError(
                "No command is given: write it after --, or train, as in python -m hvd_nmt.launch "
                "-H v100a:2,v100b:2 train --preset base."
            )
        options = command_line.options(Options, "hvd_nmt.launch", str(__doc__), own)
        signals.grace_s()  # a wrong one is said before ranks start
        job = _job(options, words)
        if options.dry_run:
            print("\n".join(supervision.dry_run(job)))
            return 0
        with signals.restored():
            outcome.exit_code = supervision.supervise(job)
        stopped = outcome.exit_code in (Preempted.exit_code, supervision.INTERRUPTED)
        if job.config is not None and job.config.telemetry.report and not stopped:
            write_report(job.config.run_dir)
    return outcome.exit_code


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of the launcher, and those of the command: after --, or from `train` on.

    `train` becomes `python -m hvd_nmt.train`.
    """
    words = list(argv)
    if "--" in words:
        index = words.index("--")
        own, words = words[:index], words[index + 1 :]
    elif _SHORT in words:
        index = words.index(_SHORT)
        own, words = words[:index], words[index:]
    else:
        return words, []
    return own, ["python", "-m", _TRAIN, *words[1:]] if words[:1] == [_SHORT] else words


def config_of(words: Sequence[str]) -> Config | None:
    """The configuration of the run that a command starts; None: it is not hvd_nmt.train."""
    program = os.path.basename(words[0])
    if program.startswith("python") and list(words[1:3]) == ["-m", _TRAIN]:
        options = words[3:]
    elif program == "hvd-nmt" and list(words[1:2]) == [_SHORT]:
        options = words[2:]
    else:
        return None
    return command_line.run_config(Config, _TRAIN, "The run to launch.", options)


def _job(options: Options, words: Sequence[str]) -> Job:
    """What is to run, and where; ConfigError: that cannot work together."""
    among = hosts.named(options.hosts, options.hostfile)
    if not among:  # this machine, with a slot for each rank that was asked for, or for each GPU
        slots = options.num_proc or len(checks.visible_gpus(probe.gpu({}))) or 1
        among = [Host("localhost", slots)]
    slots = sum(host.slots for host in among)
    ranks = options.num_proc or slots
    if ranks > slots:
        raise ConfigError(
            f"The hosts have {slots:,} slots, and {ranks:,} ranks were asked for: ask for at most "
            f"{slots:,}, or raise the slots."
        )
    if options.min_ranks > ranks:
        raise ConfigError(f"--min-ranks is {options.min_ranks:,}, above the {ranks:,} ranks.")
    config = config_of(words)
    if config is not None and config.ranks and options.min_ranks not in (0, config.ranks):
        raise ConfigError(
            f"--ranks {config.ranks:,} of the command lets no host be left out: give no "
            "--min-ranks, or no --ranks."
        )
    return Job(
        tuple(words), config, tuple(among), ranks, options.min_ranks or ranks, options.nic,
        options.timeout_s, options.restarts_per_hour, options.wait_for_hosts_h,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
