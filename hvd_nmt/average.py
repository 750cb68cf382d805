"""Average the weights of several checkpoints of a run into one new checkpoint.

    python -m hvd_nmt.average --run runs/x                               the last 5
    python -m hvd_nmt.average --run runs/x --best 5 --out runs/x-best
    python -m hvd_nmt.average --run runs/x --checkpoints model.ckpt-800 model.ckpt-1000
    python -m hvd_nmt.average --run runs/x --raw --out runs/x-raw      one, as it was trained
    python -m hvd_nmt.translate --run runs/x-average < in.txt > out.txt

Each weight is the mean over the checkpoints, computed in float64. The output is a new run directory
with config.yaml, spm.model, the checkpoint (.data, .index, .meta and manifest) and average.json,
which says what went in. It has no optimizer state: translate from it, do not train on. Every
checkpoint is verified before it goes in.
The mean is often the better model where the loss is level; where it still falls fast, the mean lags
behind the newest.

In a run with training.ema_decay every checkpoint holds a moving average too, which is what other
commands take from it. A mean is made of the weights that the optimizer moved, never of those
averages; --raw gives these weights of a single checkpoint.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hvd_nmt.common import tensorflow_import
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import command_line

if TYPE_CHECKING:
    from hvd_nmt.checkpoints.manifest import Checkpoint


@dataclass(frozen=True)
class Options:
    """Which checkpoints, and where their mean goes."""

    run: Path
    """run directory with checkpoints, config.yaml and spm.model"""
    last: int | None = None
    """how many of the newest; 5 if neither this nor another choice is given"""
    best: int | None = None
    """how many of the best by the run's evaluation.best_by, instead"""
    checkpoints: tuple[str, ...] = ()
    """names or prefixes of checkpoints, of one run, instead"""
    raw: bool = False
    """no mean: the weights of one checkpoint, the newest or that of --checkpoints, without the
    moving average beside them"""
    out: Path | None = None
    """folder to make, by default that of the run with -average (or -raw) added"""

    def __post_init__(self) -> None:
        names = [name for name in ("last", "best", "checkpoints") if getattr(self, name)]
        if len(names) > 1:
            raise ConfigError(f"--{names[0]} and --{names[1]} exclude each other: give one.")
        for name in ("last", "best"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise ConfigError(f"--{name} is {value}: a mean needs 2 checkpoints or more.")
        if self.raw and (self.last or self.best or len(self.checkpoints) > 1):
            raise ConfigError("--raw takes one checkpoint: name it with --checkpoints, or none.")
        if len(self.checkpoints) == 1 and not self.raw:
            raise ConfigError("--checkpoints names one: a mean needs 2 checkpoints or more.")

    @property
    def count(self) -> int:
        """Checkpoints asked for."""
        return 1 if self.raw else len(self.checkpoints) or self.best or self.last or 5

    @property
    def target(self) -> Path:
        """Where the mean goes."""
        run = Path(os.path.abspath(self.run))  # "." has a name, too
        return self.out or run.with_name(f"{run.name}-{'raw' if self.raw else 'average'}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    return command_line.run("hvd_nmt.average", Options, average, str(__doc__), argv)


def average(options: Options) -> None:
    """Writes the mean and says of what, and where it is."""
    # TensorFlow takes seconds to import: not for --help, nor for a mistyped option.
    tensorflow_import.import_tensorflow()
    from hvd_nmt.checkpoints import averaging

    if options.checkpoints or options.raw:
        names = options.checkpoints or ("latest",)
        chosen = averaging.named(options.run, names)
        _require_different(chosen)
    elif options.best:
        chosen = averaging.best(options.run, options.best)
    else:
        chosen = averaging.newest(options.run, options.count)
    print("the weights of" if options.raw else f"the mean of {len(chosen)} checkpoints:")
    print("\n".join(_line(checkpoint) for checkpoint in chosen))
    if len(chosen) < options.count:
        print(
            f"hvd_nmt.average: {options.run} holds {len(chosen)} such checkpoints, not the "
            f"{options.count} asked for: the mean is that of {len(chosen)}.",
            file=sys.stderr,
        )
    prefix = averaging.write(options.run, chosen, options.target)
    command = f"python -m hvd_nmt.translate --run {options.target}"
    print(f"written     {prefix}")
    print(f"translate   {command} < in.txt > out.txt")


def _require_different(chosen: "Sequence[Checkpoint]") -> None:
    """See that no checkpoint goes in twice, by two names or one."""
    known: dict[str, Path] = {}
    for checkpoint in chosen:
        sha256 = checkpoint.record()["sha256"]
        if sha256 in known:
            raise ConfigError(
                f"--checkpoints names the same weights twice, {known[sha256]} and "
                f"{checkpoint.prefix}: a mean takes each checkpoint once, leave one of them out."
            )
        known[sha256] = checkpoint.prefix


def _line(checkpoint: "Checkpoint") -> str:
    loss = checkpoint.manifest.val_loss
    validated = "" if loss is None else f", validation loss {loss:.4f}"
    return f"  {checkpoint.prefix}  step {checkpoint.step:,}{validated}"


if __name__ == "__main__":
    sys.exit(main())
