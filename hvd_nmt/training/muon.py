"""Muon: momentum that is made orthogonal before it moves the matrices inside the layers.

Embeddings, norms and biases are left to Adam. Of a momentum U S V' the update is nearly U V', so
that all directions of a matrix learn alike. Every rank computes it from the summed gradients.

Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon.
"""

from typing import Any

import tensorflow as tf

from hvd_nmt.training.adam import Adam

_PARTS = {"qkv": 3, "key_value": 2, "query": 1, "output_kernel": 1, "inner": 1, "outer": 1}
"""matrices that Muon moves, by the name of the weight in which so many lie side by side"""
_STEPS = 5
_LINEAR, _CUBIC, _QUINTIC = 3.4445, -4.7750, 2.0315
"""of the polynomial that takes every singular value in (0, 1] to 0.7 to 1.2 in five steps"""


class Muon(Adam):
    """Muon with Nesterov's momentum for the matrices inside the layers, and Adam for the rest.

    The momentum of a matrix is where Adam has its first moment; the second moment stays 0.

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
        own = {"rate_factor": self._rate_factor, "compute_dtype": self._compute_dtype}
        return super().get_config() | own

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Update one weight and its momentum, or its two moments, in place."""
        parts = _PARTS.get(variable.name.partition(":")[0])
        if parts is None:
            super().update_step(gradient, variable)
            return
        beta = self._of_all_weights["beta1"]
        momentum = self._momentums[self._index_dict[self._var_key(variable)]]
        _descend(momentum, 1 - beta, momentum - gradient)
        ahead_IxO = momentum + (1 - beta) * (gradient - momentum)
        rows, columns = variable.shape[0], variable.shape[1] // parts
        ahead_PxIxO = tf.transpose(tf.reshape(ahead_IxO, [rows, parts, columns]), [1, 0, 2])
        move_PxIxO = orthogonal(ahead_PxIxO, self._compute_dtype)
        move_IxO = tf.reshape(tf.transpose(move_PxIxO, [1, 0, 2]), variable.shape)
        rate = self._of_all_weights["lr"] * self._rate_factor
        self._decay(variable, rate)
        _descend(variable, rate * max(1.0, columns / rows) ** 0.5, move_IxO)


def orthogonal(matrix: tf.Tensor, compute_dtype: str = "float32") -> tf.Tensor:
    """U V' of matrices U S V' [..., I, O], up to singular values of 0.7 to 1.2, in float32.

    Newton-Schulz: a polynomial of the matrix, applied five times.
    """
    tall = matrix.shape[-2] > matrix.shape[-1]
    norm = tf.norm(matrix, axis=[-2, -1], keepdims=True)
    x = tf.cast(matrix / (norm + 1e-7), compute_dtype)
    for _ in range(_STEPS):
        square = tf.matmul(x, x, transpose_a=tall, transpose_b=not tall)
        square = _CUBIC * square + _QUINTIC * tf.matmul(square, square)
        x = _LINEAR * x + (tf.matmul(x, square) if tall else tf.matmul(square, x))
    return tf.cast(x, tf.float32)


def _descend(variable: tf.Variable, rate: tf.Tensor, delta: tf.Tensor) -> None:
    """variable -= rate x delta, in one pass."""
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=delta)
