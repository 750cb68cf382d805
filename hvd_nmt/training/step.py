"""The Keras model that `fit` drives: one training step, summed over ranks and timed.

B sentences, S source and T target positions, D model width.
"""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf
import tf_keras as keras

from hvd_nmt.config import TrainingConfig
from hvd_nmt.model import dropout
from hvd_nmt.model.loss import cross_entropy
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.telemetry.steps import step_time
from hvd_nmt.training import horovod


class TrainingModel(keras.Model):
    """A Transformer under training.

    `compile` it with the optimizer of `optimizer.build` and `fit` it to batches, dictionaries of
    `source` int32 [B, S], `target` int32 [B, T], and `tokens` float32 [2]: real source and target
    tokens of this step over all ranks.

    After each step `logs` holds, equal on all ranks: `loss` and `nll` per target token in nats,
    `gradient_norm`, `source_tokens`, `target_tokens`, `stop` (ranks that were asked to stop),
    `not_finite` (ranks whose own loss was NaN or Inf); and of this rank `own_not_finite`, and in
    seconds `input_wait_s`, `compute_s`, `communication_s` and `step_s`.

    Args:
        transformer: the model.
        config: loss and seed.
        rank: of this process.
    """

    _METRICS = (
        "loss", "nll", "stop", "not_finite", "gradient_norm", "source_tokens", "target_tokens",
        "own_not_finite", "communication_s",
    )

    train_function: Any  # of keras.Model: what `fit` calls, None until it is made

    def __init__(self, transformer: Transformer, config: TrainingConfig, rank: int) -> None:
        super().__init__(name="training_model", autocast=False, dtype="float32")
        self.transformer = transformer
        self.config, self.rank = config, rank
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.stop_requested = tf.Variable(0.0, trainable=False, name="stop_requested")

    def train_step(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Forward, backward, all-reduce, update; `_METRICS` as one float32 vector."""
        weights = self.transformer.trainable_variables
        seed_2 = dropout.step_seed(self.config.seed, self.step, self.rank)
        source_tokens, target_tokens = tf.unstack(batch["tokens"])
        with TimedTape() as tape:
            states_BxTxD = self._states(batch, dropout.Dropout(seed_2))
            loss = cross_entropy(
                tf.reshape(states_BxTxD, [-1, self.transformer.config.width]),
                self.transformer.embedding,
                tf.reshape(batch["target"], [-1]),
                self.config.label_smoothing,
            )
            per_token = loss.smoothed / target_tokens
        mine = tf.stack([
            per_token,
            loss.nll / target_tokens,
            self.stop_requested,
            tf.cast(~tf.math.is_finite(per_token), tf.float32),
        ])
        pulse = horovod.sum_over_ranks(mine, name="pulse")
        gradients = self.optimizer.compute_gradients(per_token, weights, tape)
        norm = tf.linalg.global_norm([gradient for gradient, _ in gradients])
        with tf.control_dependencies([pulse, *(gradient for gradient, _ in gradients)]):
            communication_s = tf.cast(tf.timestamp() - tape.ready_s, tf.float32)
        self._apply(gradients, norm)
        self.step.assign_add(1)
        return tf.concat([pulse, [norm, source_tokens, target_tokens, mine[3], communication_s]], 0)

    def make_train_function(self, force: bool = False) -> Any:
        """What `fit` calls once a step: takes a batch, trains on it, and times both."""
        if self.train_function is not None and not force:
            return self.train_function
        ids, counts = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([2], tf.float32)
        graph_step = tf.function(
            # Nothing here needs AutoGraph, and converting Horovod's code takes it many seconds.
            tf.autograph.experimental.do_not_convert(self.train_step),
            input_signature=[{"source": ids, "target": ids, "tokens": counts}],
        )

        def train_function(iterator: Any) -> dict[str, float]:
            started_s = time.perf_counter()
            batch = next(iterator)
            input_wait_s = time.perf_counter() - started_s
            logs = dict(zip(self._METRICS, graph_step(batch).numpy().tolist(), strict=True))
            total_s = time.perf_counter() - started_s
            times = step_time(total_s, input_wait_s, max(0.0, logs["communication_s"]))
            return logs | {
                "input_wait_s": times.input_wait_s,
                "compute_s": times.compute_s,
                "communication_s": times.communication_s,
                "step_s": times.total_s,
            }

        self.train_function = train_function
        return train_function

    def _states(self, batch: dict[str, tf.Tensor], drop: dropout.Dropout) -> tf.Tensor:
        memory = self.transformer.encode(batch["source"], drop)
        return self.transformer.decode(batch["target"], memory, drop)

    def _apply(self, gradients: list[tuple[tf.Tensor, tf.Variable]], norm: tf.Tensor) -> None:
        """Update the weights, unless a summed gradient is NaN or Inf: then all ranks skip alike."""
        if isinstance(self.optimizer, keras.mixed_precision.LossScaleOptimizer):
            self.optimizer.apply_gradients(gradients)  # skips by itself, and lowers the scale
            return

        def apply() -> tf.Tensor:
            self.optimizer.apply_gradients(gradients)
            return tf.constant(True)

        tf.cond(tf.math.is_finite(norm), apply, lambda: tf.constant(False))


class TimedTape(tf.GradientTape):
    """A tape that notes when this rank's own gradients are ready.

    From then until the summed gradients are there, this rank has nothing to compute: that is the
    exposed communication. The first element of each gradient is fetched to the host, so that the
    time is right on a GPU too, where kernels run behind the host's back.
    """

    ready_s: tf.Tensor
    """float64 scalar, unix time in seconds"""

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """As `tf.GradientTape.gradient`, with dense gradients."""
        gradients = super().gradient(target, sources, *args, **kwargs)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        with tf.device("/CPU:0"):
            ready = [tf.reshape(gradient, [-1])[:1] for gradient in gradients]
            with tf.control_dependencies(ready):
                self.ready_s = tf.timestamp()
        return gradients
