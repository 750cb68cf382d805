"""The next tokens of the hypotheses: which are allowed, how probable they are, which are taken.

Letters as in `model`; rows N = B x K, those of one sentence side by side. Tokens and places are
int64: TensorFlow keeps int32 on the host, where a GPU must be waited for.
"""

from typing import NamedTuple

import tensorflow as tf

from hvd_nmt.config import EOS
from hvd_nmt.model.decoding import Decoding


class TokenRules(NamedTuple):
    """What the next token of each sentence depends on, with its probability."""

    position: tf.Tensor  # int32 scalar, of the next token
    ids_BxKxT: tf.Tensor  # int64, the hypotheses so far
    least_B: tf.Tensor  # with `min_length`: int64, fewest tokens of a translation, eos included
    draw_BxK: tf.Tensor  # with `sample`: float32 in [0, 1), decides what is drawn


def candidates(
    logits_BxKxV: tf.Tensor, alive_logp_BxK: tf.Tensor, rules: TokenRules, decoding: Decoding
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The continuations among which the next hypotheses are.

    A search gets the C = 2K best, best first (greedy search the best one). A drawing gets the one
    drawn for each hypothesis, in the order of the hypotheses. What is not allowed has no
    probability, but its share is not given to the others: a log-probability is always the model's.

    Args:
        logits_BxKxV: float32 scores of the next tokens, of which a softmax makes probabilities. A
            row with a NaN has no successors.
        alive_logp_BxK: float32, of the hypotheses; -inf for none.

    Returns:
        logp_BxC of the whole hypothesis, -inf for none; parent_BxC, the place 0..K-1 of the
        hypothesis that is continued; token_BxC.
    """
    K, V = alive_logp_BxK.shape[1], logits_BxKxV.shape[2]
    logits_NxV = tf.reshape(logits_BxKxV, [-1, V])
    allowed_NxV = _allowed(logits_NxV, rules, decoding)
    # 2K, so that K are left if eos is the best of every one. Greedy search has no second choice.
    C = K if decoding.sample or K == 1 else 2 * K
    if decoding.sample:
        token_NxJ = drawn(allowed_NxV, tf.reshape(rules.draw_BxK, [-1]), decoding)[:, None]
        logits_NxJ = tf.gather(allowed_NxV, token_NxJ, batch_dims=1)
    else:
        logits_NxJ, token_NxJ = top_k(allowed_NxV, min(C, V))
    # The softmax is one pass; its largest share p gives the normaliser: log(sum) = max - log(p).
    p_NxV = tf.nn.softmax(logits_NxV)
    if allowed_NxV is logits_NxV and not decoding.sample:
        max_Nx1, p_Nx1 = logits_NxJ[:, :1], tf.gather(p_NxV, token_NxJ[:, :1], batch_dims=1)
    else:
        max_Nx1, p_Nx1 = (tf.reduce_max(x, -1, keepdims=True) for x in (logits_NxV, p_NxV))
    per_row = token_NxJ.shape[1]
    logp_BxKxJ = tf.reshape(logits_NxJ - max_Nx1 + tf.math.log(p_Nx1), [-1, K, per_row])
    logp_BxKxJ += alive_logp_BxK[:, :, None]
    logp_BxKxJ = where_else_none(~tf.math.is_nan(logp_BxKxJ), logp_BxKxJ)
    token_BxKJ = tf.reshape(token_NxJ, [-1, K * per_row])
    logp_BxKJ = tf.reshape(logp_BxKxJ, [-1, K * per_row])
    if C == K:  # one for each hypothesis
        return logp_BxKJ, tf.zeros_like(token_BxKJ) + tf.range(K, dtype=tf.int64), token_BxKJ
    logp_BxC, index_BxC = largest(logp_BxKJ, C)
    return logp_BxC, index_BxC // per_row, tf.gather(token_BxKJ, index_BxC, batch_dims=1)


def top_k(x_NxV: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`largest` along a long axis, 3 to 5 times faster on a CPU (8,000 to 32,768 wide, k 8).

    The k largest numbers lie in the k blocks with the largest maxima: find these blocks, then look
    into them only. Equal numbers may come in another order than from `largest`. k is at most V.
    """
    V = x_NxV.shape[1]
    width = max(d for d in range(1, 65) if V % d == 0)
    if 4 * k * width > V:
        return largest(x_NxV, k)
    blocks_NxGxW = tf.reshape(x_NxV, [-1, V // width, width])
    _, block_NxJ = largest(tf.reduce_max(blocks_NxGxW, -1), k)
    chosen_NxJxW = tf.gather(blocks_NxGxW, block_NxJ, batch_dims=1)
    values_NxJ, index_NxJ = largest(tf.reshape(chosen_NxJxW, [-1, k * width]), k)
    block_NxJ = tf.gather(block_NxJ, index_NxJ // width, batch_dims=1)
    return values_NxJ, block_NxJ * width + index_NxJ % width


def largest(x: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.math.top_k` of the last axis, with indices of int64."""
    values, indices = tf.math.top_k(x, k)
    return values, tf.cast(indices, tf.int64)


def drawn(logits_NxV: tf.Tensor, draw_N: tf.Tensor, decoding: Decoding) -> tf.Tensor:
    """One token for each row, int64, as probable as its softmax, within top_k and then top_p.

    What is not allowed has the logit -inf. `draw_N`, float32 in [0, 1), is a cumulative share.

    Source: Fan et al. 2018 (arXiv 1805.04833), top-k; Holtzman et al. 2020 (1904.09751), nucleus.
    """
    logits_NxJ, token_NxJ = logits_NxV / decoding.temperature, None
    if decoding.top_k or decoding.top_p < 1:  # the most probable must come first
        V = logits_NxV.shape[1]
        logits_NxJ, token_NxJ = top_k(logits_NxJ, min(decoding.top_k or V, V))
    p_NxJ = tf.nn.softmax(logits_NxJ)
    before_NxJ = tf.cumsum(p_NxJ, -1, exclusive=True)
    p_NxJ = tf.where(before_NxJ < decoding.top_p, p_NxJ, 0.0)
    up_to_NxJ = tf.cumsum(p_NxJ, -1)
    passed_NxJ = up_to_NxJ <= draw_N[:, None] * up_to_NxJ[:, -1:]
    index_N = tf.math.count_nonzero(passed_NxJ, -1)
    return index_N if token_NxJ is None else tf.gather(token_NxJ, index_N, batch_dims=1)


def where_else_none(condition: tf.Tensor, score: tf.Tensor) -> tf.Tensor:
    """The score where the condition holds, "no hypothesis" elsewhere."""
    return tf.where(condition, score, -float("inf"))


def _allowed(logits_NxV: tf.Tensor, rules: TokenRules, decoding: Decoding) -> tf.Tensor:
    """The logits, -inf where a token may not come next; the same tensor if all may."""
    K = rules.ids_BxKxT.shape[1]
    if decoding.min_length:
        early_N = tf.repeat(tf.cast(rules.position + 1, tf.int64) < rules.least_B, K)
        is_eos_V = tf.range(logits_NxV.shape[1]) == EOS
        logits_NxV = where_else_none(~(early_N[:, None] & is_eos_V), logits_NxV)
    if decoding.no_repeat_ngram:
        ids_NxT = tf.reshape(rules.ids_BxKxT, [-1, tf.shape(rules.ids_BxKxT)[2]])
        logits_NxV = _without_repeats(logits_NxV, ids_NxT, rules.position, decoding.no_repeat_ngram)
    return logits_NxV


def _without_repeats(
    logits_NxV: tf.Tensor, ids_NxT: tf.Tensor, position: tf.Tensor, n: int
) -> tf.Tensor:
    """-inf for each token that would end a sequence of n tokens which occurred before.

    Such a token stands in the hypothesis already, behind the n - 1 tokens that are its last now.
    """
    position_T = tf.range(tf.shape(ids_NxT)[1])
    repeats_NxT = tf.ones_like(ids_NxT, tf.bool) & (position_T >= n - 1) & (position_T < position)
    for back in range(1, n):
        repeats_NxT &= tf.roll(ids_NxT, back, 1) == ids_NxT[:, position - back, None]
    place_M = tf.where(tf.reshape(repeats_NxT, [-1]))[:, 0]
    row_M = place_M // tf.shape(ids_NxT, tf.int64)[1]
    banned_Mx2 = tf.stack([row_M, tf.gather(tf.reshape(ids_NxT, [-1]), place_M)], 1)
    return tf.tensor_scatter_nd_update(
        logits_NxV, banned_Mx2, tf.fill([tf.size(row_M)], -float("inf"))
    )
