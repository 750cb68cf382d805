"""Adam with TensorFlow's fused kernel."""

import collections
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
import tf_keras as keras


class Adam(keras.optimizers.Adam):
    """Adam (Kingma and Ba 2015) with TensorFlow's fused kernel: one pass over each weight.

    tf_keras' own takes about ten passes. Gradients are dense here, see `horovod`. In each step a
    matrix loses `decoupled_decay` of itself times the learning rate, as in AdamW (Loshchilov and
    Hutter 2019); norms and biases, which are vectors, do not.

    Another optimizer says in `slots_of` what it keeps of a weight, and moves it in `update_step`:

        class Momentum(Adam):
            def slots_of(self, variable):
                return ("m",)

            def update_step(self, gradient, variable):
                now, momentum = self.of_step, self.slot("m", variable)
                self._decay(variable, now["lr"])
                momentum.assign(now["beta1"] * momentum + gradient)
                variable.assign_sub(now["lr"] * momentum)

    Constants of its own also go into `get_config`.
    """

    slots: dict[str, dict[int, tf.Variable]]
    """what is kept of weights, by slot and place in `build`; 0 to begin with"""
    of_step: dict[str, tf.Tensor]
    """float32 scalars for all weights, as the kernel calls them; a step that is skipped on a GPU
    has a gradient and a rate `lr` of 0, and `beta1` and `beta2` of 1"""

    def __init__(self, *constants: float, decoupled_decay: float = 0.0, **options: Any) -> None:
        super().__init__(*constants, **options)
        self._decoupled_decay = decoupled_decay

    def get_config(self) -> dict[str, Any]:
        """What makes another like this, which is how Horovod wraps it."""
        return super().get_config() | {"decoupled_decay": self._decoupled_decay}

    def slots_of(self, variable: tf.Variable) -> tuple[str, ...]:
        """The slots that are kept of a weight: Adam's two moments."""
        return "m", "v"

    def slot(self, name: str, variable: tf.Variable) -> tf.Variable:
        """What is kept of a weight."""
        return self.slots[name][self._index_dict[self._var_key(variable)]]

    def build(self, var_list: list[tf.Variable]) -> None:
        """Make the slots."""
        keras.optimizers.Optimizer.build(self, var_list)
        if getattr(self, "_built", False):
            return
        slots: dict[str, dict[int, tf.Variable]] = collections.defaultdict(dict)
        for index, variable in enumerate(var_list):
            for name in self.slots_of(variable):
                slots[name][index] = self.add_variable_from_reference(variable, name)
        self._built, self.slots = True, dict(slots)

    def apply_gradients(
        self, gradients: Iterable[tuple[tf.Tensor, tf.Variable]], *,
        applies: tf.Tensor | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        """As in Keras, with what all weights have in common computed once.

        Where `applies`, a bool scalar, is False nothing is changed, if the gradients are 0.
        """
        steps = tf.cast(self.iterations + 1, tf.float32)
        beta_1, beta_2 = (tf.constant(b, tf.float32) for b in (self.beta_1, self.beta_2))
        rate = tf.convert_to_tensor(self.learning_rate)
        self.of_step = {
            "beta1_power": tf.pow(beta_1, steps), "beta2_power": tf.pow(beta_2, steps),
            "lr": rate, "beta1": beta_1, "beta2": beta_2,
        }  # fmt: skip
        if applies is not None:
            neutral = {"lr": 0.0, "beta1": 1.0, "beta2": 1.0}
            self.of_step |= {
                name: tf.where(applies, self.of_step[name], value)
                for name, value in neutral.items()
            }
        done = super().apply_gradients(gradients, **options)
        if applies is not None:
            self.iterations.assign_sub(tf.cast(~applies, tf.int64))
        return done

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Update one weight and its two moments in place."""
        self._decay(variable, self.of_step["lr"])
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self.slot("m", variable).handle,
            v=self.slot("v", variable).handle,
            **self.of_step,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def _decay(self, variable: tf.Variable, rate: tf.Tensor) -> None:
        if self._decoupled_decay and variable.shape.rank > 1:
            descend(variable, rate * self._decoupled_decay, variable)


def descend(variable: tf.Variable, rate: tf.Tensor, delta: tf.Tensor | tf.Variable) -> None:
    """variable -= rate x delta in one pass; `assign` makes more tensors of the variable's size."""
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=delta)
