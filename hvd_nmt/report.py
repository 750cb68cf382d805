"""Explain a run: eleven answers with figures and evidence, as report.html and report.md.

    python -m hvd_nmt.report runs/demo
    python -m hvd_nmt.report runs/one-host runs/two-hosts --output reports/scaling
    python -m hvd_nmt.report nohup.out --price-per-hour 2.50EUR

A run is a run directory, finished, still going on or crashed, or the log of an OpenSeq2Seq run.
Several runs are set side by side. report.html needs no network and no script.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import command_line
from hvd_nmt.records.read import read_any_run
from hvd_nmt.reporting import cost, render


@dataclass(frozen=True)
class Options:
    """Which runs, and where the report goes."""

    runs: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(help_behavior_hint="(one or more)")]
    """run directories of hvd_nmt, or logs (nohup.out) of OpenSeq2Seq"""
    output: Path | None = None
    """folder for the report; by default the run directory, the folder of a log, or with several
    runs the working directory"""
    price_per_hour: str | None = None
    """rent of one host for an hour, with its currency, such as 2.50EUR"""
    power_price: str | None = None
    """price of a kWh, with its currency, such as 0.35EUR"""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ConfigError("Which run? Give a run directory such as runs/demo, or a log.")
        self.prices  # noqa: B018 - a price that cannot be read is said before a run is read

    @property
    def prices(self) -> cost.Prices:
        """Both prices, as far as they were given."""
        return cost.Prices(
            cost.price(self.price_per_hour, "--price-per-hour") if self.price_per_hour else None,
            cost.price(self.power_price, "--power-price") if self.power_price else None,
        )

    @property
    def folder(self) -> Path:
        """Where the report goes."""
        if self.output is not None:
            return self.output
        if len(self.runs) > 1:
            return Path()
        return self.runs[0] if self.runs[0].is_dir() else self.runs[0].parent


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return command_line.run("hvd_nmt.report", Options, report, str(__doc__), argv)


def report(options: Options) -> None:
    """Writes the report and says where.

    Raises:
        UserError: a run cannot be read, or the folder cannot be written.
    """
    runs = [read_any_run(path) for path in options.runs]
    for path in render.write(runs, options.folder, options.prices):
        print(path)


if __name__ == "__main__":
    sys.exit(main())
