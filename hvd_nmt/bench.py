"""Measure how fast this machine trains.

    python -m hvd_nmt.bench --preset multi30k
    horovodrun -np 2 -H localhost:2 python -m hvd_nmt.bench --preset multi30k

Options: --steps
  --OPTION VALUE                   of data, model or training, see python -m hvd_nmt.train --help

The steps are those of training, on real batches; tokens of padding are not counted. After them all
ranks measure what products alone reach, and the model's share of that (MFU). Nothing is written.
"""

import dataclasses
import sys
from pathlib import Path

from tyro.conf import Suppress

from hvd_nmt.common import tensorflow_import
from hvd_nmt.config import CheckpointConfig, Config, EvaluationConfig, TelemetryConfig, command_line
from hvd_nmt.config.schema import PositiveInt


@dataclasses.dataclass(frozen=True)
class BenchConfig(Config):
    """What is trained."""

    steps: PositiveInt = 40
    """steps that are measured; the first few are not"""
    # What a run has and a measurement has no use for: neither options nor help.
    run_dir: Suppress[Path] = Config.run_dir
    evaluation: Suppress[EvaluationConfig] = dataclasses.field(default_factory=EvaluationConfig)
    checkpoints: Suppress[CheckpointConfig] = dataclasses.field(default_factory=CheckpointConfig)
    telemetry: Suppress[TelemetryConfig] = dataclasses.field(default_factory=TelemetryConfig)


@command_line.command("hvd_nmt.bench", BenchConfig, __doc__)
def main(config: BenchConfig) -> None:
    """Measures on all ranks; the first prints the table."""
    tensorflow_import.import_tensorflow()
    from hvd_nmt.training import benchmark

    lines = benchmark.measure(config, config.steps, benchmark.lines)
    if lines is not None:  # on rank 0
        print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
