"""Whether XLA compiles a rank's own part of a step: forward pass, loss and backward pass.

One program for each shape of a batch, so the frequent shapes are rounded to few (`data.shapes`),
and steps of other shapes run as a graph. What is summed over ranks stays with Horovod.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_nmt.common.units import count, percent, step_duration
from hvd_nmt.config import Config
from hvd_nmt.data import shapes
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.data.shapes import FewShapes
from hvd_nmt.explain.exchange_cost import HIDDEN_SHARE
from hvd_nmt.model import device, dropout
from hvd_nmt.training import devices, horovod, slicing
from hvd_nmt.training.step import TrainingModel

_REPEATS = 5


@dataclasses.dataclass(frozen=True)
class Measured:
    """Forward and backward pass of a batch of the most frequent shape, on the slowest rank."""

    graph_s: float
    """as a graph, seconds"""
    program_s: float
    """as a program"""
    compiling_s: float
    """what it took to make that program"""

    def gain_s(self, few: FewShapes, steps: float, all_reduce_s: float) -> float:
        """Seconds that programs save over some steps, those for making them taken off.

        The gradients of a program are ready all at once, so no all-reduce hides behind it.

        Args:
            few: shapes with a program.
            steps: of the run that are still to be done.
            all_reduce_s: of all gradients, seconds; 0 on one rank.
        """
        if not few.share:
            return 0.0
        hidden_s = min(all_reduce_s, HIDDEN_SHARE * self.graph_s)
        padded = 1 + few.more_padding / few.share
        saved_s = self.graph_s - self.program_s * padded - hidden_s
        return steps * few.share * saved_s - len(few) * self.compiling_s


@dataclasses.dataclass(frozen=True)
class Compilation:
    """What is compiled, and why."""

    few: FewShapes | None
    """shapes with a program; None: nothing is compiled"""
    because: str
    """in words"""

    @property
    def words(self) -> str:
        """For a reader."""
        if self.few is None:
            return f"off: {self.because}"
        return (
            f"{count(len(self.few), 'program')} at most, for {percent(self.few.share)} "
            f"of the steps, which are rounded to as many shapes with "
            f"{percent(self.few.more_padding)} more padding over all; {self.because}"
        )


def choose(
    config: Config, plan: BatchPlan, model: TrainingModel, start_step: int, all_reduce_s: float
) -> Compilation | None:
    """What is compiled: as configured, or what saves time as measured now. A collective.

    Args:
        config: of the run.
        plan: of the training corpus.
        model: compiled for `fit`, with its number of slices.
        start_step: steps done.
        all_reduce_s: of all gradients, as measured by this rank, seconds.

    Returns:
        The same on all ranks; None where nobody asked: on processors, with auto.
    """
    training = config.training
    wanted = training.jit_compile
    if wanted == "off":
        return None
    if wanted == "auto" and not all(horovod.gather(device.is_gpu())):
        return None
    if model.micro_batches > 1:
        return Compilation(None, "steps are computed in slices (training.micro_batches)")
    if wanted == "auto" and training.deterministic:
        return Compilation(None, "a choice by measuring is not deterministic: say on")
    most = slicing.largest_batch(plan, model.rank.size)

    def need(shapes_Nx3: np.ndarray) -> np.ndarray:
        rows, source, target = shapes_Nx3.T
        return rows * (source + target)

    few = shapes.choose(
        plan, model.rank.size, lambda shapes_Nx3: need(shapes_Nx3) <= need(np.array([most]))
    )
    if wanted == "on":
        return Compilation(few, "as asked for (training.jit_compile)")
    largest = max(few, key=lambda shape: float(need(np.array([shape]))[0]))
    measured, trouble = _measured_on_all(model, few, largest)
    if measured is None:
        return Compilation(None, trouble)
    all_reduce_s = max(horovod.gather(all_reduce_s)) if model.rank.size > 1 else 0.0
    gain_s = measured.gain_s(few, _steps_left(config, start_step, measured), all_reduce_s)
    because = (
        f"just measured, forward and backward: {step_duration(measured.program_s)} as a program, "
        f"{step_duration(measured.graph_s)} as a graph, {measured.compiling_s:.0f} s to compile one"
    )
    return Compilation(few if gain_s > 0 else None, because)


def _steps_left(config: Config, start_step: int, measured: Measured) -> float:
    """Steps that the run will still do; with max_hours as many as fit into them."""
    training = config.training
    steps = float(training.max_steps - start_step)
    if training.max_hours:
        steps = min(steps, 3600 * training.max_hours / measured.graph_s)
    return steps


def _measured_on_all(
    model: TrainingModel, few: FewShapes, largest: PaddedBatch
) -> tuple[Measured | None, str]:
    """The slowest rank's times; None and why, if a rank cannot compile, or has no memory for it."""
    found, trouble = None, ""
    try:
        found = _measured(model, few, largest)
    except (tf.errors.OpError, MemoryError) as error:
        trouble = "XLA failed: " + (str(error).strip() or type(error).__name__).splitlines()[0]
        if devices.is_of_memory(error):
            trouble = "a program did not fit into the memory"
    finally:
        devices.forget_peak()  # that of a run is of its steps
    by_rank = horovod.gather([trouble, None if found is None else dataclasses.astuple(found)])
    for said, times in by_rank:
        if times is None:
            return None, said
    return Measured(*map(max, zip(*(times for _, times in by_rank), strict=True))), ""


def _measured(model: TrainingModel, few: FewShapes, largest: PaddedBatch) -> Measured:
    """On this rank; the largest batch is tried, too."""
    batch = slicing.filled(next(iter(few)))
    seed_2 = dropout.step_seed(model.config.seed, model.step, model.rank.index)

    def program(batch: Any) -> list[tf.Tensor]:
        return model.compiled_gradients(batch, seed_2)[1]

    as_program = _with_any_shape(program, batch)
    as_graph = _with_any_shape(lambda batch: model.own_gradients(batch, 1), batch)
    _seconds(as_program, slicing.filled(largest))
    first_s = _seconds(as_program, batch)
    _seconds(as_graph, batch)
    times = [(_seconds(as_graph, batch), _seconds(as_program, batch)) for _ in range(_REPEATS)]
    graph_s, program_s = (min(each) for each in zip(*times, strict=True))
    return Measured(graph_s, program_s, max(0.0, first_s - program_s))


def _with_any_shape(function: Callable[[Any], Any], batch: dict[str, tf.Tensor]) -> Any:
    """As a graph that is traced once, as the steps are."""
    specs = {
        name: tf.TensorSpec([None] * len(value.shape), value.dtype) for name, value in batch.items()
    }
    return tf.function(function, input_signature=[specs], autograph=False)


def _seconds(function: Any, batch: dict[str, tf.Tensor]) -> float:
    """For one call, until its last gradient is there."""
    started_s = time.perf_counter()
    float(tf.reshape(function(batch)[-1], [-1])[0])
    return time.perf_counter() - started_s
