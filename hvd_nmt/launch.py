"""Train unattended: start ranks on all hosts, and start them again until the run is done.

    python -m hvd_nmt.launch train --preset small                    this machine, a rank per GPU
    python -m hvd_nmt.launch -H v100a:2,v100b:2 train --preset base  two hosts
    python -m hvd_nmt.launch --hostfile hostfiles/v100 --min-ranks 2 train --preset base
    python -m hvd_nmt.launch --dry-run -H v100a:2,v100b:2 -- python -m hvd_nmt.train

Hosts: --hosts --hostfile --num-proc --nic --timeout-s --dry-run
Restarts: --min-ranks --restarts-per-hour --wait-for-hosts-h

The command, after the options:
  train                            with its options, see python -m hvd_nmt.train --help
  -- COMMAND                       such as -- python -m hvd_nmt.train

When the ranks have ended, their exit code decides:
  0                                the run is done
  2, 3, 4, 6                       the launcher ends with it: it would come again
  5, 75, 255, a rank is killed     the ranks start again, from the newest checkpoint
  1, a defect                      the same, as long as each start makes a new checkpoint

A lost host is waited for. With --min-ranks the others save the step that they have and train on
without it; a later start takes it in again.

Before each start hvd_nmt.doctor's checks run on all hosts. What hinders the first start ends the
launcher with code 5; ranks of a killed launcher have a minute to end. After 5 starts in a row
without a new checkpoint it gives up, with the last code. SIGTERM, Ctrl-C and a closed terminal let
the ranks save; the launcher ends with 75, and the same command continues. A second Ctrl-C ends all
at once. RUN_DIR/launch.jsonl records all of it.
"""

import os
import sys
from collections.abc import Sequence

from hvd_nmt import train
from hvd_nmt.common import signals
from hvd_nmt.common.errors import ConfigError, Preempted, outliving_readers, reported
from hvd_nmt.common.units import count
from hvd_nmt.config import Config, command_line
from hvd_nmt.config.serialization import nearest
from hvd_nmt.diagnosis import checks
from hvd_nmt.hosts import facts
from hvd_nmt.hosts.host_list import Host, read_hosts
from hvd_nmt.launching import supervision
from hvd_nmt.launching.job import Job, LaunchOptions

_TRAIN, _SHORT = "hvd_nmt.train", "train"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    with (
        signals.restored(),
        outliving_readers("hvd_nmt.launch"),
        reported("hvd_nmt.launch") as outcome,
    ):
        given, words = split(sys.argv[1:] if argv is None else argv)
        if not words and not {"-h", "--help", "--help-all"} & set(given):
            *_, before, last = "", "", *given
            meant = "" if before.startswith("-") else nearest(last, [_SHORT])
            wrong = f"; {last!r} is none{meant}" if meant else ""
            raise ConfigError(
                f"No command is given{wrong}: write it after --, or train, as in python -m "
                "hvd_nmt.launch -H v100a:2,v100b:2 train --preset base."
            )
        options = command_line.options(LaunchOptions, "hvd_nmt.launch", str(__doc__), given)
        signals.grace_s()  # a wrong one is said before ranks start
        job = _job(options, words)
        if options.dry_run:
            print("\n".join(supervision.dry_run(job)))
            return 0
        with signals.restored():
            outcome.exit_code = supervision.supervise(job)
        stopped = outcome.exit_code in (Preempted.exit_code, supervision.INTERRUPTED)
        if job.config is not None and job.config.telemetry.report:
            train.write_report(job.config.run_dir, in_background=stopped)
    return outcome.exit_code


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of the launcher, and those of the command: after --, or from `train` on.

    `train` becomes `python -m hvd_nmt.train`.
    """
    words = list(argv)
    mark = "--" if "--" in words else _SHORT
    if mark not in words:
        return words, []
    index = words.index(mark)
    options, command = words[:index], words[index + (mark == "--") :]
    return options, ["python", "-m", _TRAIN, *command[1:]] if command[:1] == [_SHORT] else command


def config_of(words: Sequence[str]) -> Config | None:
    """The configuration of the run that a command starts; None: it is not hvd_nmt.train."""
    program = os.path.basename(words[0])
    if program.startswith("python") and list(words[1:3]) == ["-m", _TRAIN]:
        options = words[3:]
    elif program == "hvd-nmt" and list(words[1:2]) == [_SHORT]:
        options = words[2:]
    else:
        return None
    return command_line.run_config(Config, _TRAIN, str(train.__doc__), options)


def _job(options: LaunchOptions, words: Sequence[str]) -> Job:
    """What is to run, and where; ConfigError: that cannot work together."""
    among = read_hosts(options.hosts, options.hostfile)
    if not among:  # this machine, with a slot for each rank that was asked for, or for each GPU
        slots = options.num_proc or len(checks.visible_gpus(facts.gpu({}))) or 1
        among = [Host("localhost", slots)]
    slots = sum(host.slots for host in among)
    ranks = options.num_proc or slots
    if ranks > slots:
        raise ConfigError(
            f"-np {ranks:,} is above the {count(slots, 'slot')} of the hosts: type -np {slots}, or "
            f"give a host more slots, as in -H {among[0].name}:{ranks}."
        )
    if options.min_ranks > ranks:
        raise ConfigError(f"--min-ranks is {options.min_ranks:,}: give at most {ranks:,}.")
    config = config_of(words)
    if config is not None and config.ranks and options.min_ranks not in (0, config.ranks):
        raise ConfigError(
            f"--ranks {config.ranks:,} of the command fixes the number of ranks: remove it, or "
            "remove --min-ranks."
        )
    return Job(tuple(words), config, tuple(among), ranks, options.min_ranks or ranks, options)


if __name__ == "__main__":
    sys.exit(main())
