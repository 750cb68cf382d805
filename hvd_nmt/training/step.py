"""The Keras model that `fit` drives: one training step, summed over ranks and timed.

B sentences, S source and T target positions, D model width.
"""

import functools
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.checkpoints.state import weights_to_train
from hvd_nmt.config import TrainingConfig
from hvd_nmt.config.schema import AUTO
from hvd_nmt.model import dropout
from hvd_nmt.model.loss import Loss, cross_entropy
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.telemetry.steps import pause_clock, step_time
from hvd_nmt.training import heartbeat, horovod, micro_batches, optimizer
from hvd_nmt.training.gradient_sums import GradientSums
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.islands import Islands
from hvd_nmt.training.micro_batches import Batch, Own

LOWEST_LOSS_SCALE = 1.0
"""float16: the gradient itself overflows there, unscaled; Keras goes no lower"""


class TrainingModel(keras.Model):
    """A Transformer under training.

    `compile` it with the optimizer of `optimizer.build` and `fit` it to batches, dictionaries of
    `source` int32 [B, S], `target` int32 [B, T], `tokens` float32 [3]: real source and target
    tokens of this step over all ranks, and target tokens over the ranks of this host; and
    `sentences` float32 [1 + corpora], how many are in these rows, and of each of several corpora.

    After each step `logs` holds, equal on all ranks: `step`, `loss` and `nll` per target token in
    nats, `gradient_norm`, `source_tokens`, `target_tokens`, `stop` (ranks asked to stop), `end`
    (above 0: the time is over), `sentences` and `by_corpus` (how many all ranks were fed),
    `loss_scale` of this step (0: none), `skipped_steps` of the run until now, `left_out` (NaN or
    Inf kept it from changing the weights, with islands those of a host); and one number for each
    rank: `rank_not_finite` (1: its own loss was NaN or Inf) and, in seconds, `rank_ready_s`,
    `rank_input_wait_s` (see `telemetry.steps`) and `rank_paused_s` of the step before. Of this
    rank: `step_time` (a `StepTime`), of it `step_s`, and `exchange_s`, which islands took for an
    exchange. Without clipping, `gradient_norm` is this rank's, too: its last digits depend on the
    number of threads.

    Args:
        average: gets the moving average of the weights, with `config.ema_decay`; it has the same
            weights to begin with.
    """

    _FIELDS = (
        "loss", "nll", "stop", "end", "sentences", "by_corpus", "rank_ready_s", "rank_input_wait_s",
        "rank_paused_s", "rank_not_finite", "host_tokens", "gradient_norm", "source_tokens",
        "target_tokens", "waited_s", "loss_scale", "skipped_steps",
    )  # fmt: skip
    """of the vector that `train_step` returns; those up to `host_tokens` are summed"""

    train_function: Any  # of keras.Model: what `fit` calls, None until it is made

    def __init__(
        self,
        transformer: Transformer,
        config: TrainingConfig,
        rank: Rank,
        average: Transformer | None = None,
    ) -> None:
        super().__init__(name="training_model", autocast=False, dtype="float32")
        self.transformer, self.average = transformer, average
        self.config, self.rank = config, rank
        auto = config.micro_batches == AUTO  # `micro_batches.choose` then says how many
        self.micro_batches = 1 if auto else int(config.micro_batches)
        with tf.device("CPU:0"):  # nothing that the host has to know is awaited from a GPU
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
            self.paused_s = tf.Variable(0.0, trainable=False, name="paused_s", dtype=tf.float64)
            self._reached = tf.Variable(0.0, trainable=False, name="reached")
        self.stop_requested = tf.Variable(0.0, trainable=False, name="stop_requested")
        self.end_requested = tf.Variable(0.0, trainable=False, name="end_requested")
        self.sums = GradientSums()
        """what the optimizer sums gradients with, where not Horovod alone"""
        self.islands: Islands | None = None
        """where hosts train by themselves"""
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
        """Whether XLA compiles a rank's own part of a step; slices have shapes of their own."""
        return self.config.jit_compile and self.micro_batches == 1

    def train_step(self, batch: Batch, began_2: tf.Tensor) -> tf.Tensor:
        """Forward, backward, all-reduce, update; one float32 vector, see `_named`.

        `began_2` is float64: unix time at which this rank began to wait for the batch, and the
        seconds it waited.
        """
        weights = self.trained
        source_tokens, target_tokens = batch["tokens"][0], batch["tokens"][1]
        clock = _host_clock if self.config.deterministic else tf.timestamp
        loss, own = self.own_gradients(batch, self.micro_batches, compiled=self.compiles)
        ready_s = self._ready_s(own, clock)
        gradients = optimizer.summed_gradients(self.optimizer, own, weights)
        scale = optimizer.loss_scale(self.optimizer)
        norm = self._norm(gradients, scale)
        scale = tf.constant(0.0) if scale is None else scale
        per_token = loss.smoothed / target_tokens
        not_finite = ~tf.math.is_finite(per_token)
        if self.islands is not None:  # of other hosts; an overflow lowers the loss scale by itself
            not_finite = ~tf.math.is_finite(norm) & (scale <= LOWEST_LOSS_SCALE)
        summed = [per_token, loss.nll / target_tokens, self.stop_requested, self.end_requested]
        times_3 = [ready_s - began_2[0], began_2[1], self.paused_s]
        own_4 = tf.cast(tf.stack([*times_3, tf.cast(not_finite, tf.float64)]), tf.float32)
        # Each rank fills its own place, so the sum holds the numbers of all. It is ready with the
        # last gradient and travels with it.
        places_4R = tf.reshape(own_4[:, None] * tf.one_hot(self.rank.index, self.rank.size), [-1])
        parts = [summed, batch["sentences"], places_4R, self._tokens_of_host(batch)]
        sums = horovod.sum_over_ranks(tf.concat(parts, 0), name="step_sums")
        # The norm is read from all sums. An edge from what Horovod returns is not enough: with
        # gradients that travel in two parts, the second was now and then not waited for.
        with tf.control_dependencies([sums, norm]):
            waited_s = tf.cast(clock() - ready_s, tf.float32)
        optimizer.update(self.optimizer, gradients, weights, norm, self.config.clip_norm)
        self.step.assign_add(1)
        if self.average is not None:
            means = weights_to_train(self.average, self.config.freeze).values()
            # With islands the weights of a host are its own; the common ones are equal everywhere.
            newest = weights if self.islands is None else self.islands.common
            optimizer.move_average(means, newest, self.config.ema_decay, self.step)
        skipped = tf.cast(self.step - self.optimizer.iterations, tf.float32)
        return tf.concat([sums, [norm, source_tokens, target_tokens, waited_s, scale, skipped]], 0)

    def own_gradients(self, batch: Batch, slices: int, *, compiled: bool = False) -> Own:
        """Loss and gradients of this rank alone, in slices or as a program of XLA for each shape.

        Gradients are scaled as those of other ranks, with the loss scale if there is one.
        """
        seed_2 = dropout.step_seed(self.config.seed, self.step, self.rank.index)
        scale = optimizer.loss_scale(self.optimizer)
        if not compiled:
            of_rows = functools.partial(self._of_rows, scale=scale)
            return micro_batches.in_slices(batch, seed_2, slices, self.trained, of_rows)
        if self._program is None:
            # What a program reads that lies in the host's memory it gets as an argument.
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
            logs = self._logs(values.numpy().tolist(), started_s)
            self.paused_s.assign(clock() - paused_s)
            horovod.heartbeat.enter(heartbeat.CALLBACKS)
            return logs

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

    def _logs(self, values: list[float], started_s: float) -> dict[str, Any]:
        logs, step, exchange_s = self._named(values), int(self.step), 0.0
        host_tokens = logs.pop("host_tokens")
        if self.islands is not None:
            exchange_s = self.islands.end_step(step, host_tokens)
        ended_s = time.perf_counter()
        total_s, longest_s = ended_s - started_s, ended_s - self._together_s
        self._together_s = ended_s
        # TensorFlow has no clock but the wall's, and one that was set in the step says anything.
        # No rank began this step before all had left the one before.
        ready_s = [min(max(0.0, s), longest_s) for s in logs["rank_ready_s"]]
        waited_s = max(0.0, logs.pop("waited_s")) + exchange_s
        times = waited_s, self.rank.index, ready_s, logs["rank_input_wait_s"]
        return {
            **logs,
            "step": step,
            "exchange_s": exchange_s,
            "left_out": self._is_left_out(logs),
            "step_s": total_s,
            "rank_ready_s": ready_s,
            "step_time": step_time(total_s, *times),
        }

    def _named(self, values: list[float]) -> dict[str, Any]:
        """The fields of what `train_step` returns: a number, or one for each rank, host, corpus."""
        hosts = 0 if self.islands is None else len(self.islands.hosts.names)
        ranks = self.rank.size
        lengths = {
            "by_corpus": self.corpora, "rank_ready_s": ranks, "rank_input_wait_s": ranks,
            "rank_paused_s": ranks, "rank_not_finite": ranks, "host_tokens": hosts,
        }  # fmt: skip
        rest = iter(values)
        return {
            name: list(itertools.islice(rest, lengths[name])) if name in lengths else next(rest)
            for name in self._FIELDS
        }

    def _is_left_out(self, logs: dict[str, Any]) -> bool:
        """Whether NaN or Inf kept a step from changing weights; an overflow of float16 is neither.

        Equal on all ranks.
        """
        if self.islands is not None:
            return any(logs["rank_not_finite"])
        finite = math.isfinite(logs["gradient_norm"]) and not any(logs["rank_not_finite"])
        return not finite and logs["loss_scale"] <= LOWEST_LOSS_SCALE

    def _tokens_of_host(self, batch: Batch) -> tf.Tensor:
        """With islands, what this rank adds to the tokens of each host, float32 [H]; else [0]."""
        if self.islands is None:
            return tf.zeros([0])
        hosts = self.islands.hosts
        speaks = tf.constant(float(self.rank.is_first_on_host))
        return tf.one_hot(hosts.index, len(hosts.names)) * self._summed_tokens(batch) * speaks

    def _summed_tokens(self, batch: Batch) -> tf.Tensor:
        """Target tokens of the sentences whose gradients are summed."""
        return batch["tokens"][1 if self.islands is None else 2]

    def _ready_s(self, gradients: list[tf.Tensor], clock: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Unix time at which this rank's own gradients are ready, float64 scalar.

        From then until the summed gradients are there, this rank has nothing to compute: that is
        the exposed communication. A GPU runs its kernels one after another behind the host's back,
        so one number is fetched that it has only after all gradients.
        """
        with tf.control_dependencies(gradients):
            last = tf.identity(tf.reshape(gradients[-1], [-1])[0])
        # TensorFlow drops what only an order depends on; an assignment it keeps.
        with tf.device("CPU:0"), tf.control_dependencies([self._reached.assign(last)]):
            return clock()

    def _loss(self, batch: Batch, drop: dropout.Dropout) -> Loss:
        return cross_entropy(
            tf.reshape(self._states(batch, drop), [-1, self.transformer.config.width]),
            self.transformer.embedding,
            tf.reshape(batch["target"], [-1]),
            self.config.label_smoothing,
            self.transformer.logits_bias,
        )

    def _states(self, batch: Batch, drop: dropout.Dropout) -> tf.Tensor:
        memory = self.transformer.encode(batch["source"], drop)
        return self.transformer.decode(batch["target"], memory, drop)

    def _of_rows(self, batch: Batch, drop: dropout.Dropout, scale: tf.Tensor | None) -> Own:
        """Loss and gradients of some rows, dense: the tied matrix is looked up in, too."""
        with tf.GradientTape() as tape:
            loss = self._loss(batch, drop)
            per_token = loss.smoothed / self._summed_tokens(batch)
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
        if not self.config.clip_norm:
            return norm
        if self.islands is not None:
            return horovod.of_first_in(self.islands.hosts.local, norm, "gradient_norm")
        return horovod.of_first_rank(norm, "gradient_norm")


def _host_clock() -> tf.Tensor:
    """As tf.timestamp, which TensorFlow refuses where kernels are to be deterministic."""
    return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
