"""Average the weights of several checkpoints of a run into one new checkpoint.

    python -m hvd_nmt.average --run runs/x                               the last 5
    python -m hvd_nmt.average --run runs/x --best 5 --out runs/x-best
    python -m hvd_nmt.average --run runs/x --checkpoints model.ckpt-800 model.ckpt-1000
    python -m hvd_nmt.average --run runs/x --raw --out runs/x-raw      one, as it was trained
    python -m hvd_nmt.translate --run runs/x-average < in.txt > out.txt

Options: --run --last --best --checkpoints --raw --out

Each weight is the mean over verified checkpoints, in float64. The result translates only.
The mean is often the better model where the loss is level. With training.ema_decay each checkpoint
also holds a moving average; the mean, and --raw, are of the weights that the optimizer moved.
"""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from hvd_nmt.checkpoints import find
from hvd_nmt.checkpoints.manifest import Checkpoint
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import ConfigError, RunError
from hvd_nmt.common.units import count
from hvd_nmt.config import command_line


@dataclass(frozen=True)
class AverageOptions:
    """Which checkpoints, and where their mean goes."""

    run: Path
    """run directory; it has checkpoints, config.yaml and spm.model"""
    last: int | None = None
    """newest checkpoints, at most so many (default: 5)"""
    best: int | None = None
    """best checkpoints in their place, at most so many; by the run's evaluation.best_by"""
    checkpoints: tuple[str, ...] = ()
    """names or prefixes of checkpoints in their place, of one run"""
    raw: bool = False
    """no mean: one checkpoint without its moving average; the newest, or that of --checkpoints"""
    out: Path | None = None
    """folder to make (default: RUN-average, or RUN-raw)"""

    def __post_init__(self) -> None:
        names = ("last", "best", "checkpoints")
        given = [name for name in names if getattr(self, name) not in (None, ())]
        if len(given) > 1:
            raise ConfigError(f"--{given[0]} and --{given[1]} exclude each other: give one.")
        if self.raw and (self.last or self.best or len(self.checkpoints) > 1):
            raise ConfigError("--raw takes one checkpoint: give one --checkpoints, or none.")
        if self.count < 2 and not self.raw:
            raise ConfigError(f"--{given[0]} gives {self.count}: a mean needs 2 or more.")

    @property
    def count(self) -> int:
        """Checkpoints asked for."""
        asked = self.best if self.last is None else self.last
        return 1 if self.raw else len(self.checkpoints) or (5 if asked is None else asked)

    @property
    def target(self) -> Path:
        """Where the mean goes."""
        run = Path(os.path.abspath(self.run))  # "." has a name, too
        return self.out or run.with_name(f"{run.name}-{'raw' if self.raw else 'average'}")


@command_line.command("hvd_nmt.average", AverageOptions, __doc__)
def main(options: AverageOptions) -> None:
    """Writes the mean and says of what, and where it is."""
    RunDirectory(options.run).import_tensorflow()
    from hvd_nmt.checkpoints import averaging

    chosen = _chosen(options)
    print("the weights of" if options.raw else f"the mean of {len(chosen)} checkpoints:")
    for checkpoint in chosen:
        loss = checkpoint.manifest.val_loss
        validated = "" if loss is None else f", validation loss {loss:.4f}"
        print(f"  {checkpoint.prefix}  step {checkpoint.step:,}{validated}")
    print(f"written     {averaging.write(options.run, chosen, options.target)}")
    run = shlex.quote(os.fspath(options.target))
    print(f"translate   python -m hvd_nmt.translate --run {run} < in.txt > out.txt")


def _chosen(options: AverageOptions) -> list[Checkpoint]:
    """The checkpoints that go in, each once; RunError if there are fewer than a mean needs."""
    if options.checkpoints or options.raw:
        names = options.checkpoints or ("latest",)
        chosen = [Checkpoint.at(find.find(options.run, name)) for name in names]
        if len({checkpoint.record()["sha256"] for checkpoint in chosen}) < len(names):
            raise ConfigError("--checkpoints names the same weights twice: name each once.")
        return chosen
    find.find(options.run, "latest")  # or it is no run at all
    chosen = find.best_first(options.run) if options.best else find.newest_first(options.run)
    if len(chosen) < 2:
        keep = "keep-best" if options.best else "keep"
        raise RunError(
            f"{options.run} has {count(len(chosen), 'such checkpoint')}, but a mean needs 2 or "
            f"more: keep more in the run with --checkpoints.{keep}, or name others with "
            "--checkpoints."
        )
    return chosen[: options.count]


if __name__ == "__main__":
    sys.exit(main())
