"""How fast the steps of a training are, on real batches; nothing is written."""

import statistics
import timeit
from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.common.units import data_size, flop_rate, percent
from hvd_nmt.config import Config
from hvd_nmt.model import device
from hvd_nmt.training import devices, horovod, setup
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.plan import Plan, prove_and_plan
from hvd_nmt.training.step_result import StepResult

_WARMUP_STEPS = 5
"""before the measured ones, in which TensorFlow builds its graph"""
_LEARNING_RATE = 1e-4
_PRODUCTS_OF_A_CPU = (
    (2048, 2048, 2048), (8192, 512, 2048), (4096, 256, 1024), (2048, 8192, 256),
)  # fmt: skip
_PRODUCTS_OF_A_GPU = ((8192, 8192, 8192), (16384, 4096, 4096), (32768, 1024, 4096))
"""rows, inner and columns of products that take long against the time to start one"""
_LEAST_S = 0.05
"""a product that takes less is made several times before the clock is read"""
Answer = TypeVar("Answer")


def measure(
    config: Config, steps: int, tell: Callable[[Plan, Sequence[StepResult]], Answer]
) -> Answer | None:
    """Train some steps on all ranks; what `tell` says of them on rank 0, None on the others.

    `tell` is called on all ranks with the plan and what each step gave.
    """
    rank = horovod.init(config.ranks, with_groups=config.training.exchange != "float32")
    with horovod.end_when_ranks_are_lost("hvd_nmt.bench"), devices.explain_memory(rank):
        answer = tell(*_measure(config, rank, steps))
        horovod.shutdown()
    return answer if rank.is_first else None


def _measure(config: Config, rank: Rank, steps: int) -> tuple[Plan, list[StepResult]]:
    with horovod.raise_on_all_ranks():
        devices.set_up(rank, config.training.device, config.training.deterministic)
    run_setup = setup.agree_on_setup(config, rank)
    model, _ = setup.build(run_setup)
    plan = prove_and_plan(run_setup, model)
    total = _WARMUP_STEPS + steps
    results: list[StepResult] = []
    recorder = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: results.append(logs["result"])
    )
    model.optimizer.learning_rate.assign(_LEARNING_RATE)
    data = setup.dataset(run_setup, 0, total, rounded=model.compiles)
    if model.compiles:  # all programs that these steps need are compiled before
        model.fit(data, steps_per_epoch=total, verbose=0)
    model.fit(data, steps_per_epoch=total, verbose=0, callbacks=[recorder])
    return plan, results[_WARMUP_STEPS:]


def lines(plan: Plan, steps: Sequence[StepResult]) -> list[str]:
    """The plan, and what was measured, for a reader. A collective."""
    peak_bytes = sum(horovod.gather(devices.peak_memory_bytes()))
    product_flop_per_s = sum(horovod.gather(best_product_flop_per_s(plan.setup.precision)))
    table = rows(plan, steps, peak_bytes, product_flop_per_s)
    width = max(len(name) for name, _ in table)
    return [*plan.lines(), *(f"{name:{width}}  {value}" for name, value in table)]


def rows(
    plan: Plan, steps: Sequence[StepResult], peak_bytes: int, product_flop_per_s: float
) -> list[tuple[str, str]]:
    """What was measured: medians over steps, and speed from their sums.

    `peak_bytes` of memory and `product_flop_per_s`, see below, are of all ranks together.
    """
    times = [step.step_s for step in steps]
    tokens = sum(step.source_tokens + step.target_tokens for step in steps)
    rate = sum(map(plan.flops, steps)) / sum(times)

    def share(part: str) -> str:
        part_s = sum(getattr(step.step_time, part) for step in steps)
        return f"{part_s / sum(times):.1%}"

    return [
        ("real tokens/s, source + target", f"{tokens / sum(times):,.0f}"),
        ("s/step: median, min, max",
         f"{statistics.median(times):.3f}, {min(times):.3f}, {max(times):.3f}"),
        ("model FLOP/s", flop_rate(rate)),
        ("products alone: FLOP/s", flop_rate(product_flop_per_s)),
        ("model FLOP/s of that (MFU)", percent(rate / product_flop_per_s)),
        ("share of input wait", share("input_wait_s")),
        ("share of compute", share("compute_s")),
        ("share of waiting for the slowest rank", share("straggler_wait_s")),
        ("share of exposed communication", share("communication_s")),
        ("peak memory of all ranks", data_size(peak_bytes)),
    ]  # fmt: skip


def best_product_flop_per_s(precision: str) -> float:
    """The best rate of any large product, operations a second, to compare a model's with.

    Measured where and when the model is: data sheets promise more than a device gives.
    """
    shapes = _PRODUCTS_OF_A_GPU if device.is_gpu() else _PRODUCTS_OF_A_CPU
    return max(product_rate(precision, *shape) for shape in shapes)


def product_rate(precision: str, rows: int, inner: int, columns: int) -> float:
    """Operations a second of one product, [rows, inner] by [inner, columns]."""
    a, b = (
        tf.cast(tf.random.stateless_normal(shape, [1, 2]), precision)
        for shape in ((rows, inner), (inner, columns))
    )

    def make(times: int) -> None:
        for _ in range(times):
            made = tf.matmul(a, b)
        made[0, 0].numpy()  # a GPU has then made all of them, one after the other

    make(1)
    times = max(1, round(_LEAST_S / timeit.timeit(lambda: make(1), number=1)))
    seconds = timeit.repeat(lambda: make(times), number=1, repeat=5)
    return 2.0 * rows * inner * columns * times / min(seconds)
