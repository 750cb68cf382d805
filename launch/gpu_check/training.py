"""A model that trains on the data of the check, to be timed."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from batches import common_shape
from check import WARMUP_STEPS, config_of, vocabulary

from hvd_nmt.data.batches import PaddedBatch
from hvd_nmt.training import setup
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.plan import prove_and_plan
from hvd_nmt.training.step_result import StepResult


class Training:
    """A model that trains on the data of the check, and has made its first steps."""

    def __init__(self, rank: Rank, preset: str, precision: str, compiled: bool = False) -> None:
        began_s = time.perf_counter()
        if gpus := tf.config.get_visible_devices("GPU"):
            tf.config.experimental.reset_memory_stats("GPU:0")
        self.held_bytes = tf.config.experimental.get_memory_info("GPU:0")["current"] if gpus else 0
        """of what came before"""
        xla = "--training.jit-compile" if compiled else "--training.no-jit-compile"
        config = config_of(preset, "--training.precision", precision, xla)
        run_setup = setup.agree_on_setup(config, rank)
        data = run_setup.data
        manifest = dataclasses.replace(data.manifest, vocabulary_size=vocabulary(data))
        data = dataclasses.replace(data, manifest=manifest)
        run_setup = dataclasses.replace(run_setup, data=data)
        self.model, _ = setup.build(run_setup)
        self.plan = prove_and_plan(run_setup, self.model)
        self.model.optimizer.learning_rate.assign(1e-4)
        self.common = common_shape(run_setup.batch_plan)
        """commonest shape of a batch, rounded"""
        self.shapes: list[PaddedBatch] = []
        """of each batch so far, rounded"""
        endless = setup.dataset(run_setup, 0, 1 << 30, rounded=self.model.compiles)
        if self.model.compiles:  # a program takes long to compile: one for all steps
            endless = endless.filter(self._is_common)
        self._rows, self._step = noted(endless, self.shapes), self.model.make_train_function()
        self.steps(WARMUP_STEPS)
        self.start_s = time.perf_counter() - began_s
        """seconds until the graph was made and warm"""

    def steps(self, count: int) -> list[StepResult]:
        """What the next steps give."""
        return [self._step(self._rows)["result"] for _ in range(count)]

    def _is_common(self, batch: Any) -> Any:
        shape = tf.concat([tf.shape(batch["source"]), tf.shape(batch["target"])[1:]], 0)
        return tf.reduce_all(shape == tf.constant(self.common))


def noted(dataset: tf.data.Dataset, shapes: list[PaddedBatch]) -> Iterator[Any]:
    """The batches; the shape of each, rounded, is appended to `shapes`."""
    for batch in dataset:
        shape = PaddedBatch(*batch["source"].shape, batch["target"].shape[1])
        shapes.append(shape.rounded)
        yield batch
