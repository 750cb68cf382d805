"""Whether XLA compiles a rank's own part of a step: forward pass, loss and backward pass.

One program for each shape of a batch, so the frequent shapes are rounded to few (`data.shapes`),
and steps of other shapes run as a graph. What is summed over ranks stays with Horovod.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pooch
import tensorflow as tf

from hvd_nmt.common.units import count, percent, step_duration
from hvd_nmt.config import Config
from hvd_nmt.data import shapes
from hvd_nmt.data.batches import BatchPlan
from hvd_nmt.data.shapes import FewShapes
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

    def gain_s(self, few: FewShapes, steps: int) -> float:
        """Seconds that programs save over some steps, those for making them taken off.

        Args:
            few: shapes with a program.
            steps: of the run that are still to be done.
        """
        if not few.share:
            return 0.0
        padded = 1 + few.more_padding / few.share
        saved_s = self.graph_s - self.program_s * padded
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


def keep_programs(config: Config) -> None:
    """Let TensorFlow keep what XLA compiles in the user's cache, for the next start.

    Must run before TensorFlow computes. A directory for each kind of device and each version, for
    TensorFlow itself would take a program of another. Whoever sets TF_XLA_FLAGS decides.
    """
    if config.training.jit_compile == "off" or "TF_XLA_FLAGS" in os.environ:
        return
    kind = devices.kind()
    path = Path(pooch.os_cache("hvd_nmt")) / "xla" / f"{tf.__version__}-{kind}"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return  # a home that cannot be written: each start compiles anew
    if " " not in str(path):
        os.environ["TF_XLA_FLAGS"] = f"--tf_xla_persistent_cache_directory={path}"


def choose(
    config: Config, plan: BatchPlan, model: TrainingModel, start_step: int
) -> Compilation | None:
    """What is compiled: as configured, or what saves time as measured now. A collective.

    Args:
        config: of the run.
        plan: of the training corpus.
        model: compiled for `fit`, with its number of slices.
        start_step: steps done.

    Returns:
        The same on all ranks; None where nobody asked: on processors, with auto.
    """
    training = config.training
    wanted = training.jit_compile
    if wanted == "off" or (wanted == "auto" and not device.is_gpu()):
        return None
    if model.micro_batches > 1:
        return Compilation(None, "steps are computed in slices (training.micro_batches)")
    if config.data.bpe_dropout:
        return Compilation(None, "BPE-dropout gives a step other lengths in each epoch")
    few = shapes.choose(plan, model.rank.size)
    if wanted == "on":
        return Compilation(few, "as asked for (training.jit_compile)")
    if training.deterministic:
        return Compilation(None, "a choice by measuring is not deterministic: say on")
    measured = _measured_on_all(model, few)
    if measured is None:
        return Compilation(None, "a program did not fit into the memory")
    steps = training.max_steps - start_step
    gain_s = measured.gain_s(few, steps)
    because = (
        f"just measured, forward and backward: {step_duration(measured.program_s)} as a program, "
        f"{step_duration(measured.graph_s)} as a graph, {measured.compiling_s:.0f} s to compile one"
    )
    return Compilation(few if gain_s > 0 else None, because)


def _measured_on_all(model: TrainingModel, few: FewShapes) -> Measured | None:
    """The slowest rank's times; None: it does not fit into the memory of one."""
    found: Measured | None = None
    try:
        found = _measured(model, few)
    except (tf.errors.OpError, MemoryError) as error:
        if not devices.is_of_memory(error):
            raise
    by_rank = horovod.gather(None if found is None else dataclasses.astuple(found))
    if None in by_rank:
        return None
    return Measured(*map(max, zip(*by_rank, strict=True)))


def _measured(model: TrainingModel, few: FewShapes) -> Measured:
    batch = slicing.filled(next(iter(few)))
    seed_2 = dropout.step_seed(model.config.seed, model.step, model.rank.index)

    def program(batch: Any) -> list[tf.Tensor]:
        return model.compiled_gradients(batch, seed_2)[1]

    as_program = _with_any_shape(program, batch)
    as_graph = _with_any_shape(lambda batch: model.own_gradients(batch, 1), batch)
    first_s = _seconds(as_program, batch)
    _seconds(as_graph, batch)
    times = [(_seconds(as_graph, batch), _seconds(as_program, batch)) for _ in range(_REPEATS)]
    graph_s, program_s = (min(each) for each in zip(*times, strict=True))
    return Measured(graph_s, program_s, first_s - program_s)


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
