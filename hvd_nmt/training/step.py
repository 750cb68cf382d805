"""The Keras model that `fit` drives: one training step, summed over ranks and timed.

B sentences, S source and T target positions, D model width.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.checkpoints.state import weights_to_train
from hvd_nmt.config import TrainingConfig
from hvd_nmt.config.exchange import Joined
from hvd_nmt.config.schema import AUTO
from hvd_nmt.model import dropout
from hvd_nmt.model.loss import Loss, cross_entropy
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.telemetry.steps import step_time
from hvd_nmt.training import heartbeat, horovod, micro_batches, optimizer
from hvd_nmt.training.gradient_sums import GradientSums
from hvd_nmt.training.horovod import Rank
from hvd_nmt.training.islands import Islands
from hvd_nmt.training.micro_batches import Accumulated, Batch

LOWEST_LOSS_SCALE = 1.0
"""float16: the gradient itself overflows there, unscaled; Keras goes no lower"""


class TrainingModel(keras.Model):
    """A Transformer under training.

    `compile` it with the optimizer of `optimizer.build` and `fit` it to batches, dictionaries of
    `source` int32 [B, S], `target` int32 [B, T], `tokens` float32 [3]: real source and target
    tokens of this step over all ranks, and target tokens over the ranks of this host; and
    `sentences` float32 [1 + corpora], how many are in these rows, and of each of several corpora.

    After each step `logs` holds, equal on all ranks: `loss` and `nll` per target token in nats,
    `gradient_norm`, `source_tokens`, `target_tokens`, `stop` (ranks that were asked to stop), `end`
    (above 0: the time is over), `not_finite` (ranks whose own loss was NaN or Inf), `sentences` and
    `by_corpus` (how many all ranks were fed), `loss_scale` of this step (0: none), `skipped_steps`
    of the run until now, `left_out` (NaN or Inf kept it from changing the weights, with islands
    those of a host), and in seconds, one number for each rank, `rank_ready_s` and
    `rank_input_wait_s` (see `telemetry.steps`). Of this rank: `own_not_finite`, `step_time` (a
    `StepTime`) and, from it, `step_s`. Without clipping, `gradient_norm` is this rank's, too: its
    last digits depend on the number of threads.

    Args:
        average: gets the moving average of the weights, with `config.ema_decay`; it has the same
            weights to begin with.
        sums: what the optimizer sums gradients with, where not Horovod alone.
    """

    _FIELDS = (
        "loss", "nll", "stop", "end", "not_finite", "sentences", "by_corpus", "rank_ready_s",
        "rank_input_wait_s", "host_tokens", "gradient_norm", "source_tokens", "target_tokens",
        "own_not_finite", "waited_s", "loss_scale", "skipped_steps",
    )  # fmt: skip
    """of the vector that `train_step` returns; those up to `host_tokens` are summed"""

    train_function: Any  # of keras.Model: what `fit` calls, None until it is made

    def __init__(
        self,
        transformer: Transformer,
        config: TrainingConfig,
        rank: Rank,
        average: Transformer | None = None,
        sums: GradientSums | None = None,
    ) -> None:
        super().__init__(name="training_model", autocast=False, dtype="float32")
        self.transformer, self.average = transformer, average
        self.config, self.rank = config, rank
        auto = config.micro_batches == AUTO  # `micro_batches.choose` then says how many
        self.micro_batches = 1 if auto else int(config.micro_batches)
        with tf.device("CPU:0"):  # nothing that the host has to know is awaited from a GPU
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
            self._reached = tf.Variable(0.0, trainable=False, name="reached")
        self.stop_requested = tf.Variable(0.0, trainable=False, name="stop_requested")
        self.end_requested = tf.Variable(0.0, trainable=False, name="end_requested")
        self.sums = sums or GradientSums()
        self.islands: Islands | None = None
        """where hosts train by themselves"""
        self.joined_at: Callable[[int], Joined] = lambda step: Joined.NOTHING
        """what they then make equal after a step"""
        self.corpora = 0
        """number of corpora, of each of which the sentences of a step are counted"""
        self._programs: set[tuple[int, int, int]] = set()
        """shapes of batches for which XLA has made a program"""
        self._graph_step: Any = None
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
        seed_2 = dropout.step_seed(self.config.seed, self.step, self.rank.index)
        source_tokens, target_tokens = batch["tokens"][0], batch["tokens"][1]
        clock = _host_clock if self.config.deterministic else tf.timestamp
        earlier = None
        if self.compiles:
            loss, made = self.compiled_gradients(batch, seed_2)
            tape = _TimedTape(self._reached, clock, made=made)
            per_token = loss.smoothed / self._summed_tokens(batch)
        else:
            last, earlier = micro_batches.all_but_last(
                batch, seed_2, self.micro_batches, weights, self._own_gradients
            )
            with _TimedTape(self._reached, clock, earlier) as tape:
                loss = self._loss(*last)
                per_token = loss.smoothed / self._summed_tokens(batch)
        gradients, scale = optimizer.summed_gradients(self.optimizer, per_token, weights, tape)
        if earlier is not None:
            loss = earlier.with_loss(loss)
        per_token = loss.smoothed / target_tokens
        norm = self._norm(gradients, scale)
        scale = tf.constant(0.0) if scale is None else scale
        not_finite = ~tf.math.is_finite(per_token)
        if self.islands is not None:  # of other hosts; an overflow lowers the loss scale by itself
            not_finite = ~tf.math.is_finite(norm) & (scale <= LOWEST_LOSS_SCALE)
        not_finite = tf.cast(not_finite, tf.float32)
        wishes = [self.stop_requested, self.end_requested]
        summed = [per_token, loss.nll / target_tokens, *wishes, not_finite]
        times = tf.cast(tf.stack([tape.ready_s - began_2[0], began_2[1]]), tf.float32)
        # Each rank fills its own place, so the sum holds the times of all. It is ready with the
        # last gradient and travels with it.
        places_2R = tf.reshape(times[:, None] * tf.one_hot(self.rank.index, self.rank.size), [-1])
        parts = [summed, batch["sentences"], places_2R, self._tokens_of_host(batch)]
        sums = horovod.sum_over_ranks(tf.concat(parts, 0), name="step_sums")
        # The norm is read from all sums. An edge from what Horovod returns is not enough: with
        # gradients that travel in two parts, the second was now and then not waited for.
        with tf.control_dependencies([sums, norm]):
            waited_s = tf.cast(clock() - tape.ready_s, tf.float32)
        optimizer.update(self.optimizer, gradients, weights, norm, self.config.clip_norm)
        self.step.assign_add(1)
        if self.average is not None:
            means = weights_to_train(self.average, self.config.freeze).values()
            # With islands the weights of a host are its own; the common ones are equal everywhere.
            newest = weights if self.islands is None else self.islands.common
            optimizer.move_average(means, newest, self.config.ema_decay, self.step)
        skipped = tf.cast(self.step - self.optimizer.iterations, tf.float32)
        own = [norm, source_tokens, target_tokens, not_finite, waited_s, scale, skipped]
        return tf.concat([sums, own], 0)

    def own_gradients(self, batch: Batch, slices: int) -> list[tf.Tensor]:
        """Gradients of this rank alone, in slices, as in a step; with the loss scale, if any."""
        seed_2 = dropout.step_seed(self.config.seed, self.step, self.rank.index)
        last, earlier = micro_batches.all_but_last(
            batch, seed_2, slices, self.trained, self._own_gradients
        )
        _, gradients = self._own_gradients(*last)
        return gradients if earlier is None else earlier.with_gradients(gradients)

    def compiled_gradients(self, batch: Batch, seed_2: tf.Tensor) -> tuple[Loss, list[tf.Tensor]]:
        """This rank's own loss and gradients, as one program of XLA for each shape."""
        if self._program is None:
            # What a program reads that lies in the host's memory it gets as an argument.
            self._program = tf.function(
                lambda batch, seed_2, scale: self._own_gradients(
                    batch, dropout.Dropout(seed_2), scale
                ),
                jit_compile=True,
                autograph=False,
            )
        fed = {name: batch[name] for name in ("source", "target", "tokens")}
        return self._program(fed, seed_2, optimizer.loss_scale(self.optimizer))

    def make_train_function(self, force: bool = False) -> Any:
        """What `fit` calls once a step: takes a batch, trains on it, and times both."""
        if self.train_function is not None and not force:
            return self.train_function

        def train_function(iterator: Any) -> dict[str, Any]:
            horovod.heartbeat.enter(heartbeat.INPUT)
            began_s, started_s = time.time(), time.perf_counter()
            batch = next(iterator)
            input_wait_s = time.perf_counter() - started_s
            shape = (*batch["source"].shape, batch["target"].shape[1])
            is_new = self.compiles and shape not in self._programs
            if is_new:
                self._programs.add(shape)
            horovod.heartbeat.enter(heartbeat.COMPILATION if is_new else heartbeat.STEP, waits=True)
            if self._graph_step is None:
                self._graph_step = self._traced_step()
            began_2 = tf.constant([began_s, input_wait_s], tf.float64)
            values = self._graph_step(batch, began_2)
            logs = self._logs(values.numpy().tolist(), started_s)
            horovod.heartbeat.enter(heartbeat.CALLBACKS)
            return logs

        self.train_function = train_function
        return train_function

    def join(self, step: int, joined: Joined) -> dict[str, float]:
        """Make equal on all hosts what they must have in common after this step; a collective."""
        if self.islands is None or joined == Joined.NOTHING:
            return {}
        with horovod.heartbeat.section(heartbeat.EXCHANGE), horovod.heartbeat.waiting():
            if joined == Joined.EVERYTHING:
                return self.islands.join(step)
            return self.islands.exchange()

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
        logs, exchanged = self._named(values), {}
        host_tokens = logs.pop("host_tokens")
        if self.islands is not None:
            step = int(self.step)
            self.islands.end_step(host_tokens)
            exchanged = self.join(step, self.joined_at(step))
        ended_s = time.perf_counter()
        total_s, longest_s = ended_s - started_s, ended_s - self._together_s
        self._together_s = ended_s
        # TensorFlow has no clock but the wall's, and one that was set in the step says anything.
        # No rank began this step before all had left the one before.
        ready_s = tuple(min(max(0.0, s), longest_s) for s in logs["rank_ready_s"])
        input_wait_s = tuple(logs["rank_input_wait_s"])
        waited_s = max(0.0, logs.pop("waited_s")) + exchanged.get("exchange_s", 0.0)
        return {
            **logs,
            **exchanged,
            "left_out": self._is_left_out(logs),
            "step_s": total_s,
            "rank_ready_s": ready_s,
            "rank_input_wait_s": input_wait_s,
            "step_time": step_time(total_s, waited_s, self.rank.index, ready_s, input_wait_s),
        }

    def _named(self, values: list[float]) -> dict[str, Any]:
        """The fields of what `train_step` returns: a number, or one for each rank, host, corpus."""
        hosts = 0 if self.islands is None else len(self.islands.hosts.names)
        ranks = self.rank.size
        lengths = {
            "by_corpus": self.corpora, "rank_ready_s": ranks, "rank_input_wait_s": ranks,
            "host_tokens": hosts,
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
            return logs["not_finite"] > 0
        finite = math.isfinite(logs["gradient_norm"]) and not logs["not_finite"]
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

    def _own_gradients(
        self, batch: Batch, drop: dropout.Dropout, scale: tf.Tensor | None = None
    ) -> tuple[Loss, list[tf.Tensor]]:
        """Loss and gradients of some rows, without those of other ranks, but scaled as theirs."""
        scale = optimizer.loss_scale(self.optimizer) if scale is None else scale
        with tf.GradientTape() as tape:
            loss = self._loss(batch, drop)
            per_token = loss.smoothed / self._summed_tokens(batch)
            if scale is not None:
                per_token *= scale
        return loss, _dense(tape.gradient(per_token, self.trained))

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


class _TimedTape(tf.GradientTape):
    """A tape that notes when this rank's own gradients are ready.

    From then until the summed gradients are there, this rank has nothing to compute: that is the
    exposed communication. A GPU runs its kernels one after another behind the host's back, so one
    number is fetched that it has only after all gradients.

    Args:
        reached: a variable of the host, which gets that number.
        clock: gives unix time in seconds, a float64 scalar.
        earlier: slices of the same step, whose gradients are added: each becomes ready by itself,
            so what is sent hides behind the last slice's backward pass. None: there are none.
        made: the gradients, where something else has made them; None: the tape makes them.
    """

    ready_s: tf.Tensor
    """float64 scalar, unix time in seconds"""

    def __init__(
        self,
        reached: tf.Variable,
        clock: Callable[[], tf.Tensor],
        earlier: Accumulated | None = None,
        made: Sequence[tf.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._reached, self._clock = reached, clock
        self._earlier, self._made = earlier, made

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """As `tf.GradientTape.gradient`, with dense gradients."""
        gradients = self._made
        if gradients is None:
            gradients = _dense(super().gradient(target, sources, *args, **kwargs))
        if self._earlier is not None:
            gradients = self._earlier.with_gradients(gradients)
        with tf.control_dependencies(gradients):
            last = tf.identity(tf.reshape(gradients[-1], [-1])[0])
        # TensorFlow drops what only an order depends on; an assignment it keeps.
        with tf.device("CPU:0"), tf.control_dependencies([self._reached.assign(last)]):
            self.ready_s = self._clock()
        return gradients


def _dense(gradients: Sequence[tf.Tensor | tf.IndexedSlices]) -> list[tf.Tensor]:
    """Gradients without the sparse form that a look-up in the tied matrix gives."""
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def _host_clock() -> tf.Tensor:
    """As tf.timestamp, which TensorFlow refuses where kernels are to be deterministic."""
    return tf.ensure_shape(tf.numpy_function(time.time, [], tf.float64), [])
