"""The Keras model that `fit` drives: one training step, summed over ranks and timed.

Letters in names are as in `model`.
"""

import functools
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.checkpoints.state import OptimizerState, weights_to_train
from hvd_nmt.common import heartbeat
from hvd_nmt.config import TrainingConfig
from hvd_nmt.config.schema import AUTO
from hvd_nmt.model import dropout
from hvd_nmt.model.loss import Loss
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.telemetry.steps import pause_clock, step_time
from hvd_nmt.training import horovod, micro_batches, optimizer
from hvd_nmt.training.exchange.all_reduce import AllReduce
from hvd_nmt.training.exchange.base import GradientExchange
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.micro_batches import Batch, RankGradients
from hvd_nmt.training.step_result import StepResult, packed, unpacked


class TrainingModel(keras.Model):
    """A Transformer under training.

    `compile` it with the optimizer of `optimizer.build` and `fit` it to batches, dictionaries of
    `source` int32 [B, S], `target` int32 [B, T], `tokens` float32 [3]: real source and target
    tokens of this step over all ranks, and target tokens over the ranks of this host; and
    `sentences` float32 [1 + corpora], how many are in these rows, and of each of several corpora.

    After each step the logs hold its `StepResult` as `result`.

    Args:
        exchange: what travels between the ranks; None: all gradients, by `AllReduce`.
        average: gets the moving average of the weights, with `config.ema_decay`; it has the same
            weights to begin with.
    """

    train_function: Any  # of keras.Model: what `fit` calls, None until it is made

    def __init__(
        self, transformer: Transformer, config: TrainingConfig, rank: Rank,
        exchange: GradientExchange | None = None, average: Transformer | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name="training_model", autocast=False, dtype="float32")
        self.transformer, self.average = transformer, average
        self.config, self.rank, self.exchange = config, rank, exchange or AllReduce()
        auto = config.micro_batches == AUTO  # `micro_batches.choose` then says how many
        self.micro_batches = 1 if auto else int(config.micro_batches)
        with tf.device("CPU:0"):  # nothing that the host has to know is awaited from a GPU
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
            self.paused_s = tf.Variable(0.0, trainable=False, name="paused_s", dtype=tf.float64)
        self._clock = _StepClock(deterministic=config.deterministic)
        self.stop_requested = tf.Variable(0.0, trainable=False, name="stop_requested")
        self.end_requested = tf.Variable(0.0, trainable=False, name="end_requested")
        self.kept: OptimizerState
        """what the optimizer keeps of the weights that are trained; see `setup.build`"""
        self.corpora = 0
        """number of corpora, of each of which the sentences of a step are counted"""
        self._programs: set[tuple[int, int, int]] = set()
        """shapes of batches for which XLA has made a program"""
        self._program: Any = None
        self._together_s = time.perf_counter()  # when the ranks last left a collective

    @property
    def trained(self) -> list[tf.Variable]:
        """The weights that are not frozen."""
        return list(weights_to_train(self.transformer, self.config.freeze).values())

    @property
    def replicated(self) -> list[tf.Variable]:
        """What must be equal on all ranks: the weights and their average."""
        average = [] if self.average is None else self.average.trainable_variables
        return [*self.transformer.trainable_variables, *average]

    @property
    def eval_model(self) -> Transformer:
        """The model that a checkpoint stands for: the average if there is one."""
        return self.transformer if self.average is None else self.average

    @property
    def compiles(self) -> bool:
        """Whether XLA compiles a rank's own part of a step; slices have other shapes."""
        return self.config.jit_compile and self.micro_batches == 1

    def train_step(self, batch: Batch, began_2: tf.Tensor) -> tf.Tensor:
        """Forward, backward, exchange, update; float32, see `StepNumbers`.

        `began_2` is float64: unix time at which this rank began to wait for the batch, and the
        seconds it waited.
        """
        weights, exchange = self.trained, self.exchange
        source_tokens, target_tokens = batch["tokens"][0], batch["tokens"][1]
        loss, of_rank = self.own_gradients(batch, self.micro_batches, compiled=self.compiles)
        ready_s = self._clock.after(of_rank)
        gradients = exchange.sum(of_rank)
        scale = optimizer.loss_scale(self.optimizer)
        norm = self._norm(gradients, scale)
        scale = tf.constant(0.0) if scale is None else scale
        per_token = loss.smoothed / target_tokens
        not_finite = exchange.is_not_finite(per_token, norm, scale)
        times_3 = [ready_s - began_2[0], began_2[1], self.paused_s]
        own_4 = tf.cast(tf.stack([*times_3, tf.cast(not_finite, tf.float64)]), tf.float32)
        # Each rank fills its own place, so the sum holds the numbers of all. It is ready with the
        # last gradient and travels with it.
        of_ranks_4xR = own_4[:, None] * tf.one_hot(self.rank.index, self.rank.size)
        # As in `StepNumbers`, those of ranks as one matrix: on a GPU each part is a launch.
        summed = (
            per_token, loss.nll / target_tokens, self.stop_requested, self.end_requested,
            batch["sentences"][0], batch["sentences"][1:], of_ranks_4xR,
            exchange.tokens_by_host(batch, speaks=self.rank.is_first_on_host),
        )  # fmt: skip
        sums = horovod.sum_over_ranks(packed(summed), name="step_sums")
        # The norm is read from all sums. An edge from what Horovod returns is not enough: with
        # gradients that travel in two parts, the second was now and then not waited for.
        with tf.control_dependencies([sums, norm]):
            waited_s = tf.cast(self._clock.now() - ready_s, tf.float32)
            # Where a sum fails, nothing has changed.
            optimizer.update(self.optimizer, gradients, weights, norm, self.config.clip_norm)
            self.step.assign_add(1)
            if self.average is not None:
                means = weights_to_train(self.average, self.config.freeze).values()
                newest = exchange.common(weights)
                optimizer.move_average(means, newest, self.config.ema_decay, self.step)
        skipped = tf.cast(self.step - self.optimizer.iterations, tf.float32)
        return packed([sums, norm, source_tokens, target_tokens, waited_s, scale, skipped])

    def own_gradients(self, batch: Batch, slices: int, *, compiled: bool = False) -> RankGradients:
        """Loss and gradients of this rank alone, in slices or as a program of XLA for each shape.

        Gradients are scaled as those of other ranks, with the loss scale if there is one.
        """
        seed_2 = dropout.step_seed(self.config.seed, self.step, self.rank.index)
        scale = optimizer.loss_scale(self.optimizer)
        if not compiled:
            of_rows = functools.partial(self._of_rows, scale=scale)
            return micro_batches.in_slices(batch, seed_2, slices, self.trained, of_rows)
        if self._program is None:
            # What a program reads from the host's memory it gets as an argument.
            self._program = tf.function(
                lambda batch, seed_2, scale: self._of_rows(batch, dropout.Dropout(seed_2), scale),
                jit_compile=True,
                autograph=False,
            )
        fed = {name: batch[name] for name in ("source", "target", "tokens")}
        return self._program(fed, seed_2, scale)

    def make_train_function(self, force: bool = False) -> Any:
        """What `fit` calls once a step: takes a batch, trains on it, and times both."""
        if self.train_function is not None and not force:
            return self.train_function
        traced_step, clock = self._traced_step(), pause_clock()

        def train_function(iterator: Any) -> dict[str, Any]:
            horovod.heartbeat.enter(heartbeat.INPUT)
            paused_s = clock()
            began_s, started_s = time.time(), time.perf_counter()
            batch = next(iterator)
            input_wait_s = time.perf_counter() - started_s
            shape = (*batch["source"].shape, batch["target"].shape[1])
            is_new = self.compiles and shape not in self._programs
            if is_new:
                self._programs.add(shape)
            horovod.heartbeat.enter(heartbeat.COMPILATION if is_new else heartbeat.STEP, waits=True)
            began_2 = tf.constant([began_s, input_wait_s], tf.float64)
            values = traced_step(batch, began_2)
            result = self._result(values.numpy().tolist(), started_s)
            self.paused_s.assign(clock() - paused_s)
            horovod.heartbeat.enter(heartbeat.CALLBACKS)
            return {"result": result}

        self.train_function = train_function
        return train_function

    def _traced_step(self) -> Any:
        ids, counts = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.float32)
        return tf.function(
            # Nothing here needs AutoGraph, and converting Horovod's code takes it many seconds.
            tf.autograph.experimental.do_not_convert(self.train_step),
            input_signature=[
                {"source": ids, "target": ids, "tokens": counts, "sentences": counts},
                tf.TensorSpec([2], tf.float64),
            ],
        )

    def _result(self, values: list[float], started_s: float) -> StepResult:
        """What the step gave that began at `started_s`; what follows it is done."""
        sizes = {"ranks": self.rank.size, "corpora": self.corpora, "hosts": self.exchange.hosts}
        numbers = unpacked(values, **sizes)
        step = int(self.step)
        exchange_s = self.exchange.end_step(step, numbers.tokens_by_host)
        ended_s = time.perf_counter()
        total_s, longest_s = ended_s - started_s, ended_s - self._together_s
        self._together_s = ended_s
        # TensorFlow has no clock but the wall's, and one that was set in the step says anything.
        # No rank began this step before all had left the one before.
        ready_s = [min(max(0.0, s), longest_s) for s in numbers.rank_ready_s]
        waited_s = max(0.0, numbers.waited_s) * (self.rank.size > 1) + (exchange_s or 0.0)
        times = waited_s, self.rank.index, ready_s, numbers.rank_input_wait_s
        norm, not_finite = numbers.gradient_norm, numbers.rank_not_finite
        return StepResult(
            **vars(numbers) | {"rank_ready_s": ready_s},
            step=step,
            is_left_out=self.exchange.is_left_out(norm, numbers.loss_scale, not_finite),
            step_s=total_s,
            exchange_s=exchange_s,
            step_time=step_time(total_s, *times),
        )

    def _loss(self, batch: Batch, drop: dropout.Dropout) -> Loss:
        states_BxTxD, smoothing = self._states(batch, drop), self.config.label_smoothing
        return self.transformer.target_loss(states_BxTxD, batch["target"], smoothing)

    def _states(self, batch: Batch, drop: dropout.Dropout) -> tf.Tensor:
        memory = self.transformer.encode(batch["source"], drop)
        return self.transformer.decode(batch["target"], memory, drop)

    def _of_rows(
        self, batch: Batch, drop: dropout.Dropout, scale: tf.Tensor | None
    ) -> RankGradients:
        """Loss and gradients of some rows, dense: the tied matrix is looked up in, too."""
        with tf.GradientTape() as tape:
            loss = self._loss(batch, drop)
            per_token = loss.smoothed / self.exchange.summed_tokens(batch)
            if scale is not None:
                per_token *= scale
        return loss, [*map(tf.convert_to_tensor, tape.gradient(per_token, self.trained))]

    def _norm(self, gradients: list[tf.Tensor], scale: tf.Tensor | None) -> tf.Tensor:
        """Global norm of the summed gradients; one number on all ranks where it changes weights.

        Threads add up blocks of a gradient, so ranks with other numbers of threads, or another
        processor, find other last digits. `scale` is the gradients' loss scale; None: they have
        none.
        """
        norm = tf.linalg.global_norm(gradients)
        if scale is not None:
            norm /= scale
        return self.exchange.agreed(norm) if self.config.clip_norm else norm


class _StepClock:
    """Unix time as float64 scalars; `deterministic`: whether all kernels are to be."""

    def __init__(self, *, deterministic: bool) -> None:
        self._deterministic = deterministic
        with tf.device("CPU:0"):
            self._reached = tf.Variable(0.0, trainable=False, name="reached")

    def now(self) -> tf.Tensor:
        """The time when all is there that this depends on."""
        if not self._deterministic:
            return tf.timestamp()  # which TensorFlow refuses where kernels are deterministic
        return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])

    def after(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """The time at which this rank's own gradients are ready.

        From then until the summed gradients are there, this rank has nothing to compute: that is
        the exposed communication. A GPU runs its kernels one after another behind the host's back,
        so one number is fetched that it has only after all gradients.
        """
        with tf.control_dependencies(gradients):
            last = tf.identity(tf.reshape(gradients[-1], [-1])[0])
        # TensorFlow drops what only an order depends on; an assignment it keeps.
        with tf.device("CPU:0"), tf.control_dependencies([self._reached.assign(last)]):
            return self.now()
