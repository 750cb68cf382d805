"""Measure the training speed of a configuration on this machine, or on all ranks.

    python -m hvd_nmt.bench --preset multi30k
    horovodrun -np 2 -H localhost:2 python -m hvd_nmt.bench --preset multi30k

The same steps as in training, on real batches: only real source and target tokens are counted, not
padding. Nothing is written.
"""

from __future__ import annotations

import dataclasses
import os
import resource
import statistics
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvd_nmt import command_line, quiet
from hvd_nmt.config import Config
from hvd_nmt.errors import ConfigError, reported, speak_utf8

if TYPE_CHECKING:
    from hvd_nmt.training.plan import Plan


@dataclasses.dataclass(frozen=True)
class BenchConfig(Config):
    """What to measure, and on what."""

    steps: int = 40
    """steps that are measured"""
    warmup_steps: int = 5
    """steps before, in which TensorFlow builds its graph"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1 or self.warmup_steps < 1:
            raise ConfigError("--steps and --warmup-steps must be at least 1.")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    speak_utf8()
    first = os.environ.get("HOROVOD_RANK", "0") == "0"
    with reported("hvd_nmt.bench", speak=first) as outcome:
        bench(
            command_line.run_config(
                argv, prog="python -m hvd_nmt.bench", description=__doc__ or "",
                quiet=not first, kind=BenchConfig,
            )
        )
    return outcome.exit_code


def bench(config: BenchConfig) -> None:
    """Train some steps and print a table.

    Raises:
        UserError: the data cannot be used, or the ranks do not fit together.
    """
    quiet.import_tensorflow()
    from hvd_nmt.training import devices, horovod, setup

    me = horovod.join(config.ranks)
    with horovod.together():
        devices.set_up(me)
    cast = setup.gather_cast(config, me)
    model, _ = setup.build(config, cast)
    plan = setup.check(config, cast, model)
    recorder = _recorder(config)
    model.optimizer.learning_rate.assign(1e-4)
    model.fit(
        setup.dataset(cast, 0), steps_per_epoch=config.warmup_steps + config.steps, verbose=0,
        callbacks=[recorder],
    )
    peaks = horovod.gather(_peak_memory_bytes())
    if me.is_first:
        print("\n".join(plan.lines()))
        print(_table(recorder.steps[config.warmup_steps :], sum(peaks), plan))
    horovod.leave()


def _recorder(config: BenchConfig) -> Any:
    """A callback that keeps the logs of each step in `steps`."""
    from hvd_nmt.training.callbacks import StepCallback

    class Recorder(StepCallback):
        def __init__(self) -> None:
            super().__init__(start_step=0)
            self.steps: list[dict[str, Any]] = []

        def after_step(self, step: int, logs: dict[str, Any]) -> None:
            self.steps.append(dict(logs))
            if sys.stderr.isatty():
                total = config.warmup_steps + config.steps
                print(f"\rstep {step}/{total} ", end="", file=sys.stderr, flush=True)

    return Recorder()


def _table(steps: list[dict[str, Any]], peak_bytes: int, plan: Plan) -> str:
    """Medians over the measured steps; speed from the sums."""
    times = [step["step_s"] for step in steps]
    tokens = sum(step["source_tokens"] + step["target_tokens"] for step in steps)

    def share(part: str) -> str:
        return f"{sum(getattr(step['step_time'], part) for step in steps) / sum(times):.1%}"

    rows = [
        ("real tokens/s, source + target", f"{tokens / sum(times):,.0f}"),
        ("the same at the median step", f"{tokens / len(steps) / statistics.median(times):,.0f}"),
        ("s/step: median, min, max",
         f"{statistics.median(times):.3f}, {min(times):.3f}, {max(times):.3f}"),
        ("share of input wait", share("input_wait_s")),
        ("share of compute", share("compute_s")),
        ("share of waiting for the slowest rank", share("straggler_wait_s")),
        ("share of exposed communication", share("communication_s")),
        ("peak memory of all ranks", f"{peak_bytes / 1e6:,.0f} MB"),
        ("precision, ranks, steps", f"{plan.precision}, {plan.ranks}, {len(steps)}"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def _peak_memory_bytes() -> int:
    """Of this rank: on the GPU if it has one, else of the process."""
    import tensorflow as tf

    if tf.config.get_visible_devices("GPU"):
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
