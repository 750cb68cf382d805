"""Muon: momentum that is made orthogonal before it moves the matrices inside the layers.

Embeddings, norms and biases are left to Adam. Of a momentum U S V' the update is nearly U V', so
that all its large directions learn alike. Every rank computes it from the summed gradients.

Sources: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; the polynomials as by
Amsel et al. 2025 (Polar Express), each the best for the singular values that the last one leaves.
"""

from typing import Any

import tensorflow as tf

from hvd_nmt.training.adam import Adam, descend

_PARTS = {"qkv": 3, "key_value": 2, "query": 1, "output_kernel": 1, "inner": 1, "outer": 1}
"""matrices that Muon moves, by the name of the weight in which so many lie side by side"""
_POLYNOMIALS = (
    (8.0934, -23.6204, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526)
)  # fmt: skip
"""a, b, c of a s + b s^3 + c s^5, in turn: singular values of 0.01 to 1 become 0.73 to 1.27"""
_MARGIN = 1.02
"""above 1 the first polynomial is steep, so rounding must not end there"""


class Muon(Adam):
    """Muon with Nesterov's momentum for the matrices inside the layers, and Adam for the rest.

    The momentum of a matrix is where Adam has its first moment; it has no second one.

    Args:
        rate_factor: rate of these matrices, as a multiple of the learning rate.
        compute_dtype: of the products that make a matrix orthogonal.
        constants, options: of `Adam`.
    """

    def __init__(
        self, *constants: float, rate_factor: float = 1.0, compute_dtype: str = "float32",
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(*constants, **options)
        self._rate_factor, self._compute_dtype = rate_factor, compute_dtype

    def get_config(self) -> dict[str, Any]:
        """See `Adam.get_config`."""
        constants = {"rate_factor": self._rate_factor, "compute_dtype": self._compute_dtype}
        return super().get_config() | constants

    def slots_of(self, variable: tf.Variable) -> tuple[str, ...]:
        """See `Adam.slots_of`."""
        return super().slots_of(variable) if _parts(variable) is None else ("m",)

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Update one weight and its momentum, or its two moments, in place."""
        parts = _parts(variable)
        if parts is None:
            super().update_step(gradient, variable)
            return
        beta = self.of_step["beta1"]
        momentum = self.slot("m", variable)
        descend(momentum, 1 - beta, momentum - gradient)
        ahead_IxO = momentum + (1 - beta) * (gradient - momentum)
        rows, columns = variable.shape[0], variable.shape[1] // parts
        ahead_PxIxO = tf.transpose(tf.reshape(ahead_IxO, [rows, parts, columns]), [1, 0, 2])
        move_PxIxO = orthogonal(ahead_PxIxO, self._compute_dtype)
        move_IxO = tf.reshape(tf.transpose(move_PxIxO, [1, 0, 2]), variable.shape)
        rate = self.of_step["lr"] * self._rate_factor
        self._decay(variable, rate)
        descend(variable, rate * max(1.0, columns / rows) ** 0.5, move_IxO)


def _parts(variable: tf.Variable) -> int | None:
    return _PARTS.get(variable.name.partition(":")[0])


@tf.function(autograph=False)
def orthogonal(matrix: tf.Tensor, compute_dtype: str = "float32") -> tf.Tensor:
    """Nearly U V' of matrices U S V' [..., I, O], in float32, by polynomials of the matrix.

    Singular values from 0.01 of the matrix' norm on become 0.73 to 1.27, smaller ones stay below.
    """
    tall = matrix.shape[-2] > matrix.shape[-1]
    norm = tf.norm(matrix, axis=[-2, -1], keepdims=True)
    x = tf.cast(matrix / (_MARGIN * norm + 1e-7), compute_dtype)
    for a, b, c in _POLYNOMIALS:
        square = tf.matmul(x, x, transpose_a=tall, transpose_b=not tall)
        square = b * square + c * tf.matmul(square, square)
        x = a * x + (tf.matmul(x, square) if tall else tf.matmul(square, x))
    return tf.cast(x, tf.float32)
