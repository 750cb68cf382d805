"""Explain a run: eleven answers with figures and evidence, as report.html and report.md.

    python -m hvd_nmt.report runs/demo
    python -m hvd_nmt.report nohup.out

Options: --output
  RUN                              run directory, or log (nohup.out) of OpenSeq2Seq (required)

A run may be finished, still going on or crashed. report.html needs no network and no script.
"""

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from hvd_nmt.config import command_line
from hvd_nmt.records.read import read_any_run
from hvd_nmt.reporting import render
from hvd_nmt.reporting.run_summary import RunSummary


@dataclass(frozen=True)
class ReportOptions:
    """Which run, and where the report goes."""

    run: Positional[Path]
    """run directory of hvd_nmt, or log (nohup.out) of OpenSeq2Seq"""
    output: Path | None = None
    """folder for the report (default: that of the run or log)"""


@command_line.command("hvd_nmt.report", ReportOptions, __doc__)
def main(options: ReportOptions) -> None:
    """Writes the report, and says what is asked first and where it is."""
    inside = options.run if options.run.is_dir() else options.run.parent
    summary = RunSummary(read_any_run(options.run))
    written = render.write(summary, options.output or inside)
    for line in map(" ".join, summary.headline):
        print(textwrap.fill(line, 100, break_on_hyphens=False, break_long_words=False))
    print(*written, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
