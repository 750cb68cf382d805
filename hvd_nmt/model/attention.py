"""Where a decoder looks: its cross-attention weights.

B sentences, H heads, T target and S source positions, D model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from hvd_nmt.model.transformer import Transformer


class Looks:
    """Stands in for dropout, drops nothing and keeps the attention weights that pass by."""

    def __init__(self) -> None:
        self.weights: list[tf.Tensor] = []

    def __call__(self, x: Any, rate: float) -> Any:
        # Dropout is called with attention weights (four dimensions) and with states (three).
        if len(x.shape) == 4:
            self.weights.append(x)
        return x

    def mean_BxTxS(self, width_S: tf.Tensor) -> tf.Tensor:
        """Mean over the heads of the last layer, float32.

        Args:
            width_S: source positions of the batch. A model may put others of its own before them.
        """
        return tf.reduce_mean(tf.cast(self.weights[-1], tf.float32), 1)[:, :, -width_S:]


def decode(model: Transformer, target_BxT: tf.Tensor, memory: Any) -> tuple[tf.Tensor, Looks]:
    """`model.decode`, and the weights [B, H, T, S] of each layer while a token is predicted."""
    looks = Looks()
    states_BxTxD = model.decode(target_BxT, memory, looks)
    looks.weights = looks.weights[1::2]  # a layer attends to the target, then to the source
    return states_BxTxD, looks
