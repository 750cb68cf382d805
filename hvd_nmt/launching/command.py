"""What is to run on every rank, and the run it is about."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import Config, command_line

_TRAIN = "hvd_nmt.train"
_SHORT = "train"
_EXAMPLE = "python -m hvd_nmt.launch -H v100a:2,v100b:2 train --preset base"


@dataclass(frozen=True)
class Command:
    """A command, and the configuration of its run."""

    words: tuple[str, ...]
    config: Config | None
    """None: it is not hvd_nmt.train, so nothing is known of it"""


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of the launcher, and those of the command: after --, or from `train` on."""
    words = list(argv)
    for mark in ("--", _SHORT):
        if mark in words:
            index = words.index(mark)
            return words[:index], words[index + (mark == "--") :]
    return words, []


def parse(words: Sequence[str]) -> Command:
    """The command of some words; `train` is short for `python -m hvd_nmt.train`.

    Raises:
        ConfigError: there is none, or its own options cannot work.
    """
    if not words:
        raise ConfigError(f"No command is given: write it after --, or train, as in {_EXAMPLE}.")
    if words[0] == _SHORT:
        words = ["python", "-m", _TRAIN, *words[1:]]
    options = _train_options(words)
    if options is None:
        return Command(tuple(words), None)
    config: Config = command_line.run_config(
        options, prog=f"python -m {_TRAIN}", description="The run to launch."
    )
    return Command(tuple(words), config)


def _train_options(words: Sequence[str]) -> list[str] | None:
    """The options of hvd_nmt.train; None where something else is to run."""
    program = os.path.basename(words[0])
    if program.startswith("python") and list(words[1:3]) == ["-m", _TRAIN]:
        return list(words[3:])
    if program == "hvd-nmt" and list(words[1:2]) == [_SHORT]:
        return list(words[2:])
    return None
