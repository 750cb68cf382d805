"""The same steps on this device and on the processor, in each arithmetic.

python launch/gpu_check/truth.py [curves]     curves: the processor's own, into WORK/curves.json
"""

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Sequence

import tensorflow as tf
from check import ENV, WORK, config_of, started
from results import Results

from hvd_nmt.config.schedule import Schedule
from hvd_nmt.training import setup
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.step_result import StepResult

PRESET, STEPS = ENV["TRUTH_PRESET"], 20
LIMIT = 1e-4
"""how far the losses of two devices may be apart in float32, nats per token"""
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32, TF32 on": 2.0**-11}
"""largest relative error of one rounding of what a product takes"""
HIGH_SCALE = 2.0**30
"""a loss scale with which every gradient of float16 overflows"""


def main() -> None:
    """Compare; a row for each arithmetic."""
    if sys.argv[1:] == ["curves"]:
        curves()
        return
    results = Results("truth")
    options = f"{ENV['OPTIONS']} --training.device cpu"
    environment = {**ENV, "CUDA_VISIBLE_DEVICES": "", "OPTIONS": options}
    with subprocess.Popen([sys.executable, __file__, "curves"], env=environment) as on_processor:
        rank = started(deterministic=True)
        exact = losses(curve(rank, "float32", tf32=False))
        of_float16 = curve(rank, "float16")
        overflowing = curve(rank, "float16", scale=HIGH_SCALE)
        of_bfloat16 = losses(curve(rank, "bfloat16"))
        of_tf32 = losses(curve(rank, "float32"))
    if on_processor.returncode:
        raise SystemExit("The processor's own steps failed, see above.")
    reference = json.loads((WORK / "curves.json").read_text())

    results.table(
        f"{STEPS} steps of {PRESET}, deterministic", "arithmetic", "against", "first loss",
        "last loss", "farthest apart", "allowed there",
    )  # fmt: skip
    here, there = "float32, TF32 off", "float32 on the processor"
    rows: list[tuple[str, list[float], str, list[float], float]] = [
        (here, exact, there, reference["float32"], LIMIT),
        ("bfloat16 on the processor", reference["bfloat16"], there, reference["float32"], 0.0),
        ("bfloat16", of_bfloat16, here, exact, 0.0),
        ("float16", losses(of_float16), here, exact, 0.0),
        ("float32, TF32 on", of_tf32, here, exact, 0.0),
    ]
    for name, these, against, others, allowed in rows:
        # One rounding of the loss in the first step; those of more steps add up as a random walk.
        rounding = 0.0 if allowed else ROUNDING[name.removesuffix(" on the processor")]
        apart = [abs(a - b) for a, b in zip(these, others, strict=True)]
        limits = [allowed or rounding * max(others) * step**0.5 for step in range(1, STEPS + 1)]
        worst = max(range(STEPS), key=lambda step: apart[step] / limits[step])
        said = f"{apart[worst]:.1e} in step {worst + 1}"
        said += "" if apart[worst] <= limits[worst] else ": TOO FAR"
        cells = against, f"{these[0]:.6f}", f"{these[-1]:.6f}", said, f"{limits[worst]:.1e}"
        results.row(name, *cells, losses=these, apart=apart, limits=limits)
    for name, steps in (("float16", of_float16), ("float16 that begins too high", overflowing)):
        report_scale(results, name, steps)


def report_scale(results: Results, name: str, steps: Sequence[StepResult]) -> None:
    """A sentence about the moves of a loss scale."""
    scales = [step.loss_scale for step in steps]
    moves = " → ".join(f"2^{math.log2(scale):g}" for scale, _ in itertools.groupby(scales))
    skipped, last = int(steps[-1].skipped_steps), steps[-1].loss
    results.line(
        f"Loss scale of {name}: {moves}; {skipped} of {len(steps)} steps skipped, last loss "
        f"{last:.6f}.",
        scales=scales, skipped=skipped, loss=last,
    )  # fmt: skip


def curves() -> None:
    """Write the processor's own losses."""
    rank = started(deterministic=True)
    found = {name: losses(curve(rank, name)) for name in ("float32", "bfloat16")}
    (WORK / "curves.json").write_text(json.dumps(found))


def losses(steps: Sequence[StepResult]) -> list[float]:
    """The loss of each step, nats per token."""
    return [step.loss for step in steps]


def curve(
    rank: Rank, precision: str, *, tf32: bool = True, scale: float | None = None
) -> list[StepResult]:
    """What the first steps give; `scale`: loss scale to begin with."""
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    chosen = "--training.precision", precision, "--training.deterministic"
    config = config_of(PRESET, *chosen)
    run_setup = setup.agree_on_setup(config, rank)
    model, _ = setup.build(run_setup)
    if scale is not None:
        model.kept.loss_scale.current_loss_scale.assign(scale)
    schedule, step = Schedule.of(config), model.make_train_function()
    rows, results = iter(setup.dataset(run_setup, 0, STEPS)), []
    for done in range(STEPS):
        model.optimizer.learning_rate.assign(schedule.rate(done))
        results.append(step(rows)["result"])
    return results


if __name__ == "__main__":
    main()
