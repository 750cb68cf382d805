"""Beam search in the TensorFlow graph. It takes a step function and knows nothing of the model.

Capitals in names: B sentences, K beams per sentence, N = B*K rows (the K beams of one sentence lie
side by side), V vocabulary, T target length, C candidates per sentence and step (2K).

A hypothesis is *alive* until it predicts eos; then it is *finished*, keeps its score, and no later
step can make it worse. "No hypothesis" is a score of -inf: no large number stands in for infinity,
so scores may be as low as they like.

Source: Wu et al. 2016, "Google's Neural Machine Translation System" (arXiv 1609.08144), section 7;
the 2K candidates and the rule that ends the search follow Tensor2Tensor's beam_search.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_nmt.config import BOS, EOS, PAD

# step(ids_N, position, state) -> (logits_NxV, state)
Step = Callable[[tf.Tensor, tf.Tensor, Any], tuple[tf.Tensor, Any]]


class BeamResult(NamedTuple):
    """Hypotheses of every sentence, best first."""

    ids_BxKxT: tf.Tensor  # int32; ends with eos unless cut at the maximum length; then pad
    lengths_BxK: tf.Tensor  # int32, tokens including eos; 0 where there is no hypothesis
    scores_BxK: tf.Tensor  # float32, logp / penalty(length); -inf where there is no hypothesis


class _Search(NamedTuple):
    """What one step hands to the next."""

    position: tf.Tensor  # int32 scalar: tokens generated so far
    alive_ids_BxKxT: tf.Tensor
    alive_logp_BxK: tf.Tensor  # descending; all -inf once the sentence is done
    finished: BeamResult
    state: Any  # the caller's, re-ordered so that row n belongs to alive hypothesis n


class _Task(NamedTuple):
    """What stays the same through a search; see `beam_search`."""

    step: Step
    max_length_B: tf.Tensor
    vocabulary_size: int
    beam_size: int
    length_penalty_alpha: float
    exact_best: int
    bos: int
    eos: int


def beam_search(
    step: Step,
    initial_state: Any,
    max_length_B: tf.Tensor,
    *,
    vocabulary_size: int,
    beam_size: int = 4,
    length_penalty_alpha: float = 0.6,
    exact_best: int = 1,
    bos: int = BOS,
    eos: int = EOS,
) -> BeamResult:
    """Find the most probable target sentences, B at a time.

    With `beam_size=1` this is greedy search: a sentence ends when eos is the most probable token.

    Args:
        step: `step(ids_N, position, state) -> (logits_NxV, state)`. It gets the last tokens (bos
            at position 0) and returns float32 scores of the next ones, of which a softmax makes
            probabilities (log-probabilities are such scores too). What does not depend on the
            hypothesis, such as the encoder's memory, belongs into the closure of `step`: the
            state is gathered anew in every step. A row with a NaN has no successors.
        initial_state: nested structure of tensors with N = B*K as leading dimension. A dimension
            that is statically 0 may grow from step to step (caches that grow by concatenation).
        max_length_B: int32, most tokens to generate for each sentence, eos included. 0 gives no
            hypothesis. The result for a sentence does not depend on its neighbours in the batch.
        vocabulary_size: V, at least 2.
        beam_size: K, alive and finished hypotheses kept per sentence.
        length_penalty_alpha: exponent of the length penalty, at least 0; see `length_penalty`.
        exact_best: how many of the K results must be what a search up to the maximum length would
            give. 1 ends a sentence as soon as its best hypothesis cannot be beaten.
        bos: id of the first decoder input.
        eos: id that finishes a hypothesis.

    Returns:
        BeamResult; T is the longest hypothesis in it. Where a sentence has none finished at its
        maximum length, its alive ones are returned, without eos.

    Raises:
        ValueError: an argument is out of range.
    """
    if beam_size < 1 or length_penalty_alpha < 0 or not 1 <= exact_best <= beam_size:
        raise ValueError(
            f"beam_size {beam_size} must be at least 1, length_penalty_alpha"
            f" {length_penalty_alpha} at least 0, exact_best {exact_best} in 1..beam_size"
        )
    if vocabulary_size < 2:
        raise ValueError(f"vocabulary_size is {vocabulary_size}; eos and one word make at least 2")
    max_length_B = tf.convert_to_tensor(max_length_B, tf.int32)
    max_length = tf.maximum(tf.reduce_max(max_length_B), 0)  # the maximum of no sentence is INT_MIN
    task = _Task(
        step, max_length_B, vocabulary_size, beam_size, length_penalty_alpha, exact_best, bos, eos
    )
    search = _start(initial_state, max_length_B, max_length, beam_size)
    shapes = tf.nest.map_structure(_loop_shape, search)
    (search,) = tf.while_loop(
        lambda search: tf.reduce_any(search.alive_logp_BxK[:, 0] > -float("inf")),
        lambda search: (_extended(search, task),),
        (search,),
        shape_invariants=(shapes,),
        maximum_iterations=max_length,
    )
    found = search.finished
    longest = tf.maximum(tf.reduce_max(found.lengths_BxK), 0)
    return found._replace(ids_BxKxT=found.ids_BxKxT[:, :, :longest])


def _extended(search: _Search, task: _Task) -> _Search:
    """Every alive hypothesis one token longer, or finished."""
    position = search.position
    last_N = tf.where(position == 0, task.bos, search.alive_ids_BxKxT[:, :, position - 1])
    logits_NxV, state = task.step(tf.reshape(last_N, [-1]), position, search.state)
    logp_BxC, parent_BxC, token_BxC = _candidates(
        logits_NxV, search.alive_logp_BxK, task.vocabulary_size
    )
    ids_BxCxT = _append(search.alive_ids_BxKxT, parent_BxC, token_BxC, position)
    length_B = tf.fill(tf.shape(task.max_length_B), position + 1)
    penalty_B = length_penalty(length_B, task.length_penalty_alpha)

    ended_BxC = token_BxC == task.eos
    ended_logp_BxC = _where_else_none(ended_BxC, logp_BxC)
    finished = _keep_best(
        search.finished, ids_BxCxT, length_B, ended_logp_BxC / penalty_B[:, None]
    )
    # At most one candidate per beam is eos, so K others are always left of 2K.
    logp_BxK, best_BxK = tf.math.top_k(_where_else_none(~ended_BxC, logp_BxC), task.beam_size)
    ids_BxKxT = tf.gather(ids_BxCxT, best_BxK, batch_dims=1)

    at_limit_B = length_B >= task.max_length_B
    unfinished_B = at_limit_B & (finished.lengths_BxK[:, 0] == 0)
    cut_logp_BxK = _where_else_none(unfinished_B[:, None], logp_BxK)
    finished = _keep_best(finished, ids_BxKxT, length_B, cut_logp_BxK / penalty_B[:, None])
    # Log-probabilities only fall, and for them the longest length has the kindest penalty.
    attainable_B = logp_BxK[:, 0] / length_penalty(task.max_length_B, task.length_penalty_alpha)
    done_B = at_limit_B | (finished.scores_BxK[:, task.exact_best - 1] >= attainable_B)
    logp_BxK = _where_else_none(~done_B[:, None], logp_BxK)

    parent_BxK = tf.gather(parent_BxC, best_BxK, batch_dims=1)
    return _Search(
        position + 1, ids_BxKxT, logp_BxK, finished, _reorder(state, parent_BxK)
    )


def length_penalty(length: tf.Tensor, alpha: float) -> tf.Tensor:
    """((5 + length) / 6) ** alpha, by which a log-probability is divided.

    Args:
        length: int32 tensor of lengths in tokens, eos included.
        alpha: 0 for none; the larger, the longer the translations.

    Returns:
        float32 tensor of the same shape.

    Source: Wu et al. 2016 (arXiv 1609.08144), equation 14, without the coverage term.
    """
    return ((5.0 + tf.cast(length, tf.float32)) / 6.0) ** alpha


def top_k(x_NxV: tf.Tensor, k: int, vocabulary_size: int) -> tuple[tf.Tensor, tf.Tensor]:
    """`tf.math.top_k` along a long axis, 3 to 5 times faster on a CPU (8,000 to 32,768 wide, k 8).

    The k largest numbers lie in the k blocks with the largest maxima: find these blocks, then look
    into them only. Equal numbers may come in another order than from `tf.math.top_k`.

    Args:
        x_NxV: float tensor.
        k: how many, at most V.
        vocabulary_size: V, known when the graph is built.

    Returns:
        values_Nxk in descending order, and their int32 indices_Nxk into V.
    """
    width = max(d for d in range(1, 65) if vocabulary_size % d == 0)
    if vocabulary_size < 4 * k * width:
        return tf.math.top_k(x_NxV, k)
    blocks_NxRxW = tf.reshape(x_NxV, [-1, vocabulary_size // width, width])
    _, block_Nxk = tf.math.top_k(tf.reduce_max(blocks_NxRxW, -1), k)
    chosen_NxkxW = tf.gather(blocks_NxRxW, block_Nxk, batch_dims=1)
    values_Nxk, index_Nxk = tf.math.top_k(tf.reshape(chosen_NxkxW, [-1, k * width]), k)
    block_Nxk = tf.gather(block_Nxk, index_Nxk // width, batch_dims=1)
    return values_Nxk, block_Nxk * width + index_Nxk % width


def _start(state: Any, max_length_B: tf.Tensor, max_length: tf.Tensor, K: int) -> _Search:
    """One alive hypothesis per sentence, the empty one: K equal ones would stay equal."""
    B = tf.size(max_length_B)
    first_BxK = tf.one_hot(tf.where(max_length_B > 0, 0, -1), K) > 0
    ids_BxKxT = tf.fill([B, K, max_length], PAD)
    none_BxK = tf.fill([B, K], -float("inf"))
    return _Search(
        position=tf.constant(0),
        alive_ids_BxKxT=ids_BxKxT,
        alive_logp_BxK=tf.where(first_BxK, 0.0, none_BxK),
        finished=BeamResult(ids_BxKxT, tf.zeros([B, K], tf.int32), none_BxK),
        state=state,
    )


def _candidates(
    logits_NxV: tf.Tensor, alive_logp_BxK: tf.Tensor, vocabulary_size: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The C best continuations of each sentence, best first.

    Returns:
        logp_BxC, parent_BxC (beam 0..K-1 they continue) and token_BxC.
    """
    K = alive_logp_BxK.shape[1]
    # 2K, so that K are left if eos is the best of every beam. Greedy search has no second choice.
    C = 2 * K if K > 1 else 1
    per_row = min(C, vocabulary_size)
    logits_Nxc, token_Nxc = top_k(logits_NxV, per_row, vocabulary_size)
    # Normalise the few that count instead of the vocabulary; the maximum is known already.
    max_Nx1 = logits_Nxc[:, :1]
    sum_Nx1 = tf.reduce_sum(tf.exp(logits_NxV - max_Nx1), -1, keepdims=True)
    logp_Nxc = logits_Nxc - max_Nx1 - tf.math.log(sum_Nx1)
    logp_BxKxc = alive_logp_BxK[:, :, None] + tf.reshape(logp_Nxc, [-1, K, per_row])
    logp_BxKxc = _where_else_none(~tf.math.is_nan(logp_BxKxc), logp_BxKxc)

    logp_BxC, index_BxC = tf.math.top_k(tf.reshape(logp_BxKxc, [-1, K * per_row]), C)
    token_BxC = tf.gather(tf.reshape(token_Nxc, [-1, K * per_row]), index_BxC, batch_dims=1)
    return logp_BxC, index_BxC // per_row, token_BxC


def _append(
    ids_BxKxT: tf.Tensor, parent_BxC: tf.Tensor, token_BxC: tf.Tensor, position: tf.Tensor
) -> tf.Tensor:
    """The candidates' ids_BxCxT: those of their parents with the new token at `position`."""
    ids_BxCxT = tf.gather(ids_BxKxT, parent_BxC, batch_dims=1)
    here_T = tf.range(tf.shape(ids_BxKxT)[2]) == position
    return tf.where(here_T, token_BxC[:, :, None], ids_BxCxT)


def _keep_best(
    old: BeamResult, ids_BxCxT: tf.Tensor, length_B: tf.Tensor, scores_BxC: tf.Tensor
) -> BeamResult:
    """The K best of the old hypotheses and the new; at equal scores the old stay."""
    K = old.scores_BxK.shape[1]
    lengths_BxC = tf.where(scores_BxC > -float("inf"), length_B[:, None], 0)
    scores_BxK, index_BxK = tf.math.top_k(tf.concat([old.scores_BxK, scores_BxC], 1), K)
    ids = tf.concat([old.ids_BxKxT, ids_BxCxT], 1)
    lengths = tf.concat([old.lengths_BxK, lengths_BxC], 1)
    return BeamResult(
        tf.gather(ids, index_BxK, batch_dims=1),
        tf.gather(lengths, index_BxK, batch_dims=1),
        scores_BxK,
    )


def _where_else_none(condition: tf.Tensor, score: tf.Tensor) -> tf.Tensor:
    return tf.where(condition, score, -float("inf"))


def _reorder(state: Any, parent_BxK: tf.Tensor) -> Any:
    """Give every alive hypothesis its parent's rows of the state."""
    K = parent_BxK.shape[1]
    if K == 1:  # greedy: every parent is its own row
        return state
    first_Bx1 = tf.range(tf.shape(parent_BxK)[0])[:, None] * K
    row_N = tf.reshape(first_Bx1 + parent_BxK, [-1])
    return tf.nest.map_structure(lambda t: tf.gather(t, row_N), state)


def _loop_shape(tensor: tf.Tensor) -> tf.TensorShape:
    """The shape that holds in every step: a dimension of 0 at the start may grow."""
    return tf.TensorShape([size or None for size in tensor.shape])
