"""Label-smoothed cross-entropy, summed over real tokens and divided by a global token count.

The smoothed label has 1 - e on the right token and u = e / (V - 1) on each other one. The loss is
the cross-entropy minus the entropy of that label, so a perfect model has loss 0 (the recipe's
convention, OpenSeq2Seq `losses/sequence_loss.py`; `smoothing_entropy` below the plain one).
"""

import math
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_nmt.model import device

ON_CPU, ON_GPU = 1 << 24, 1 << 26
"""logits held at a time, 64 and 256 MB in float32: pieces of a batch stay nearer to caches"""

_UNDERFLOW = 1e-30
"""probabilities below may have lost digits, or be 0"""


class Loss(NamedTuple):
    """Sums over the real tokens of a batch, float32 scalars."""

    smoothed: tf.Tensor
    """label-smoothed cross-entropy minus the label's entropy, nats"""
    nll: tf.Tensor
    """negative log-likelihood of the right tokens, nats"""


def smoothing_entropy(label_smoothing: float, vocabulary_size: int) -> float:
    """Entropy of the smoothed label in nats: 1.36480 for 0.1 and 32,768."""
    if label_smoothing == 0:
        return 0.0
    kept, other = 1 - label_smoothing, label_smoothing / (vocabulary_size - 1)
    return -(kept * math.log(kept) + (vocabulary_size - 1) * other * math.log(other + 1e-20))


def cross_entropy(
    states_NxD: tf.Tensor, embedding_VxD: tf.Tensor, labels_N: tf.Tensor, label_smoothing: float,
    bias_V: tf.Tensor | None = None,
) -> Loss:  # fmt: skip
    """Loss of decoder states against labels, softmax matrix inside; only `smoothed` has a gradient.

    The gradient with respect to logits is p - u - (1 - e - u) x onehot. Only the softmax p is ever
    made at the size N x V, once: the constant u and the one-hot part enter the gradients of states
    and matrix as products of rank one and as a gather and a scatter. That leaves three matrix
    products and one softmax, where automatic differentiation makes a dozen passes over N x V.

    Args:
        states_NxD: final decoder states, any floating dtype; products use that dtype.
        labels_N: int32 right tokens; 0 is padding and counts nothing.
        label_smoothing: e, probability mass on wrong tokens.
        bias_V: float32, added to the logits of the vocabulary; None: nothing.
    """
    if bias_V is not None:  # one more column of the matrix, of which every state holds 1
        states_NxD = tf.concat([states_NxD, tf.ones_like(states_NxD[:, :1])], 1)
        embedding_VxD = tf.concat([embedding_VxD, bias_V[:, None]], 1)
    entropy = smoothing_entropy(label_smoothing, embedding_VxD.shape[0])

    @tf.custom_gradient
    def summed(states_NxD: tf.Tensor, embedding_VxD: tf.Tensor) -> Any:
        loss, dstates_NxD, dembedding_VxD = _by_pieces(
            states_NxD, embedding_VxD, labels_N, label_smoothing
        )
        real_tokens = tf.math.count_nonzero(labels_N, dtype=tf.float32)
        smoothed = loss.smoothed - entropy * real_tokens

        def gradient(dsmoothed: tf.Tensor, dnll: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return dstates_NxD * tf.cast(dsmoothed, dstates_NxD.dtype), dembedding_VxD * dsmoothed

        return (smoothed, loss.nll), gradient

    return Loss(*summed(states_NxD, embedding_VxD))


def _by_pieces(
    states_NxD: tf.Tensor, embedding_VxD: tf.Tensor, labels_N: tf.Tensor, label_smoothing: float
) -> tuple[Loss, tf.Tensor, tf.Tensor]:
    """Sums and gradients, piece by piece so that N x V is never too large."""
    rows = max(1, (ON_GPU if device.is_gpu() else ON_CPU) // embedding_VxD.shape[0])
    total = tf.shape(labels_N)[0]

    def many_pieces() -> tuple[Loss, tf.Tensor, tf.Tensor]:
        # All of one size, as XLA wants it.
        width, pieces = states_NxD.shape[1], -(-total // rows)
        rows_each = -(-total // pieces)
        missing = pieces * rows_each - total
        states_GxNxD = tf.reshape(
            tf.pad(states_NxD, [[0, missing], [0, 0]]), [pieces, rows_each, width]
        )
        labels_GxN = tf.reshape(tf.pad(labels_N, [[0, missing]]), [pieces, rows_each])

        def body(
            piece: tf.Tensor, sums: Loss, dembedding: tf.Tensor, dstates: tf.TensorArray
        ) -> tuple[Any, ...]:
            loss, dpiece, dmatrix = _piece(
                states_GxNxD[piece], embedding_VxD, labels_GxN[piece], label_smoothing
            )
            sums = Loss(sums.smoothed + loss.smoothed, sums.nll + loss.nll)
            return piece + 1, sums, dembedding + dmatrix, dstates.write(piece, dpiece)

        nothing = Loss(tf.zeros([]), tf.zeros([]))
        parts = tf.TensorArray(states_NxD.dtype, pieces, element_shape=[None, width])
        start = tf.constant(0), nothing, tf.zeros_like(embedding_VxD), parts
        _, sums, dembedding, parts = tf.while_loop(
            lambda piece, *_: piece < pieces, body, start, parallel_iterations=1
        )
        return sums, tf.reshape(parts.stack(), [-1, width])[:total], dembedding

    whole = states_NxD, embedding_VxD, labels_N, label_smoothing
    return tf.cond(total <= rows, lambda: _piece(*whole), many_pieces)


def _piece(
    states_NxD: tf.Tensor, embedding_VxD: tf.Tensor, labels_N: tf.Tensor, label_smoothing: float
) -> tuple[Loss, tf.Tensor, tf.Tensor]:
    """Sums over the real tokens of these rows, the entropy of the labels not yet subtracted.

    And the gradients of the smoothed sum by states and matrix.
    """
    dtype = states_NxD.dtype
    vocabulary_size = embedding_VxD.shape[0]
    other = label_smoothing / (vocabulary_size - 1)
    extra = 1 - label_smoothing - other
    real_N = tf.cast(labels_N != 0, tf.float32)
    real_Nx1 = real_N[:, None]

    matrix_VxD = tf.cast(embedding_VxD, dtype)
    logits_NxV = tf.matmul(states_NxD, matrix_VxD, transpose_b=True)
    # bfloat16 has float32's range and stays as it is; in float16 small probabilities would be 0.
    wide = tf.float32 if dtype == tf.float16 else dtype
    p_NxV = tf.nn.softmax(tf.cast(logits_NxV, wide))
    p_right_N = tf.cast(tf.gather(p_NxV, labels_N, batch_dims=1), tf.float32)
    right_NxD = tf.gather(matrix_VxD, labels_N)
    matrix_sum_D = tf.reduce_sum(embedding_VxD, 0)

    # With Z the softmax's denominator, nll = log Z - logit of the label. The smoothed loss is
    # log Z - u x (sum of logits) - (1 - e - u) x logit of the label.
    states = tf.cast(states_NxD, tf.float32)
    logit_right_N = tf.reduce_sum(states * tf.cast(right_NxD, tf.float32), -1)
    nll_N = _nll(p_NxV, logits_NxV, p_right_N, logit_right_N)
    logit_sum_N = tf.linalg.matvec(states, matrix_sum_D)
    smoothed_N = nll_N + (1 - extra) * logit_right_N - other * logit_sum_N

    # Padding is masked in matrices of width D, never in one of width V.
    p_NxV, real_states_NxD = tf.cast(p_NxV, dtype), states * real_Nx1
    dstates_NxD = real_Nx1 * (
        tf.cast(tf.matmul(p_NxV, matrix_VxD), tf.float32)
        - extra * tf.cast(right_NxD, tf.float32)
        - other * matrix_sum_D
    )
    # As its transpose, because a product with V columns is faster than one with V rows.
    pulled_DxV = tf.matmul(tf.cast(real_states_NxD, dtype), p_NxV, transpose_a=True)
    dembedding_VxD = (
        tf.cast(tf.transpose(pulled_DxV), tf.float32)
        - tf.math.unsorted_segment_sum(extra * real_states_NxD, labels_N, vocabulary_size)
        - other * tf.reduce_sum(real_states_NxD, 0)
    )
    loss = Loss(tf.reduce_sum(smoothed_N * real_N), tf.reduce_sum(nll_N * real_N))
    return loss, tf.cast(dstates_NxD, dtype), dembedding_VxD


def _nll(
    p_NxV: tf.Tensor, logits_NxV: tf.Tensor, p_right_N: tf.Tensor, logit_right_N: tf.Tensor
) -> tf.Tensor:
    """-log of the right tokens' probabilities, also where these underflow; NaN where one is NaN."""
    if device.is_gpu():
        # Two more passes over N x V are less than waiting to learn whether they are needed. The
        # largest probability never underflows, so it gives the softmax's denominator.
        p_most_N, logit_most_N = (
            tf.cast(tf.reduce_max(x_NxV, -1), tf.float32) for x_NxV in (p_NxV, logits_NxV)
        )
        exact_N = logit_most_N - tf.math.log(p_most_N) - logit_right_N
        return tf.where(p_right_N > _UNDERFLOW, -tf.math.log(p_right_N), exact_N)
    return tf.cond(
        tf.reduce_min(p_right_N) > _UNDERFLOW,
        lambda: -tf.math.log(p_right_N),
        lambda: tf.reduce_logsumexp(tf.cast(logits_NxV, tf.float32), -1) - logit_right_N,
    )
