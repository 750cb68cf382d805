"""Beam search in the TensorFlow graph. It takes a step function and knows nothing of the model.

Letters as in `model`; B are the sentences still searched, T positions for which there is room.

A hypothesis is *alive* until it predicts eos; then it is *finished* and keeps its score. "No
hypothesis" is a score of -inf, so scores may be as low as they like.

Two loops: the inner one makes steps until a share of the sentences is done, or the room for
positions used up. The outer one then drops the sentences that are done, and makes room.

Source: Wu et al. 2016, "Google's Neural Machine Translation System" (arXiv 1609.08144), section 7;
the 2K candidates and the rule that ends the search follow Tensor2Tensor's beam_search.py. Only a
hypothesis among the K best can finish, as in fairseq, Marian and Hugging Face: see `_may_end`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from hvd_nmt.config import BOS, EOS, PAD
from hvd_nmt.model.candidates import TokenRules, candidates, largest, where_else_none
from hvd_nmt.model.decoding import Decoding

# step(ids_BxK, position, origins_BxKxT, state) -> (logits_BxKxV, attention_BxKxS or None, state)
Step = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, Any], tuple[tf.Tensor, tf.Tensor | None, Any]]
# Positions for which room is made at once: making it copies the caches.
ROOM = 8
# Sentences are dropped when no more than this share of them is left: dropping copies the caches.
KEPT_SHARE = 0.75


class BeamResult(NamedTuple):
    """Hypotheses of every sentence, best first. Whole numbers are int32, in a search int64."""

    ids_BxKxT: tf.Tensor  # ends with eos unless cut at the maximum length; then pad
    lengths_BxK: tf.Tensor  # tokens including eos; 0 where there is no hypothesis
    scores_BxK: tf.Tensor  # float32, see `beam_search`; -inf where there is no hypothesis


class Given(NamedTuple):
    """What is given for each sentence. Whole numbers are int32, in a search int64."""

    most_B: tf.Tensor  # most tokens to generate, eos included; 0 gives no hypothesis
    least_B: tf.Tensor = ()  # with `min_length`: fewest tokens, eos included; at most `most_B`
    draws_BxKxT: tf.Tensor = ()  # with `sample`: float32 in [0, 1), what decides each drawn token


class _Search(NamedTuple):
    """What one step hands to the next."""

    position: tf.Tensor  # int32 scalar: tokens generated so far
    ids_BxKxT: tf.Tensor  # of the alive hypotheses, like all up to `coverage_BxKxS`
    origins_BxKxT: tf.Tensor
    logp_BxK: tf.Tensor  # all -inf once the sentence is done
    coverage_BxKxS: tf.Tensor  # attention so far; S is 0 without a coverage penalty
    finished: BeamResult
    state: Any


class _Round(NamedTuple):
    """What one round of the outer loop hands to the next."""

    results: BeamResult  # of all sentences
    number_B: tf.Tensor  # int64, which of all sentences these are
    given: Given  # for these sentences
    search: _Search


def beam_search(
    step: Step, state: Any, given: Given, decoding: Decoding, *, is_pad_BxS: tf.Tensor | None = None
) -> BeamResult:
    """Find the most probable target sentences, or draw some, B at a time.

    A hypothesis has the score log-probability / `decoding.penalty` + `decoding.coverage_penalty` x
    the sum over source tokens of log(min(attention they got, 1)). With a beam of 1 this is greedy
    search: a sentence ends when eos is the most probable token.

    Args:
        step: see `Step`. It gets the last tokens (bos at position 0) and returns float32 scores of
            the next ones as in `candidates`, and without a coverage penalty perhaps no attention.
            Hypotheses change places from step to step and `state` is not re-ordered: `origins`
            says at which place 0..K-1 each one was at every position so far, and -1 beyond.
        state: nested structure of tensors with B as leading dimension. Sentences that are done are
            taken out of it. A dimension that is statically 0 may grow from step to step.
        decoding: its lengths are not used here, see `Given`; of n_best results each is what
            a search up to the maximum length would give (not with "marian").
        is_pad_BxS: bool, for a coverage penalty: the source positions that need no attention.

    Returns:
        BeamResult; K is `decoding.hypotheses`, T the longest hypothesis in it. Where a sentence
        has none finished at its maximum length, its alive ones are returned, without eos. The
        result for a sentence does not depend on its neighbours in the batch.
    """
    start = _start(state, _with_whole_numbers(given, tf.int64), is_pad_BxS, decoding)
    (end,) = tf.while_loop(
        lambda round_: tf.reduce_any(_active(round_.search)),
        lambda round_: (_round(round_, step, decoding),),
        (start,),
        shape_invariants=(tf.nest.map_structure(_loop_shape, start),),
    )
    results = _with_whole_numbers(end.results, tf.int32)
    longest = tf.maximum(tf.reduce_max(results.lengths_BxK), 0)  # of no sentence it is INT_MIN
    return results._replace(ids_BxKxT=results.ids_BxKxT[:, :, :longest])


def _with_whole_numbers(tensors: Any, dtype: tf.DType) -> Any:
    """Tensors with the whole numbers among them in another type; see `candidates` for why."""
    return tf.nest.map_structure(lambda x: x if x.dtype.is_floating else tf.cast(x, dtype), tensors)


def _start(state: Any, given: Given, is_pad_BxS: tf.Tensor | None, decoding: Decoding) -> _Round:
    """One alive hypothesis per sentence, the empty one: K equal ones would stay equal."""
    B, K = tf.size(given.most_B), decoding.hypotheses
    alive_K = tf.constant([decoding.sample or k == 0 for k in range(K)])
    is_alive_BxK = (given.most_B > 0)[:, None] & alive_K
    longest = tf.cast(tf.maximum(tf.reduce_max(given.most_B), 0), tf.int32)
    none_BxK = tf.fill([B, K], -float("inf"))
    none_BxKxT = tf.fill([B, K, longest], tf.constant(PAD, tf.int64))
    nothing = BeamResult(none_BxKxT, tf.zeros([B, K], tf.int64), none_BxK)
    coverage_BxKxS = tf.zeros([B, K, 0])
    if is_pad_BxS is not None:  # padding is covered from the start
        coverage_BxKxS = tf.repeat(tf.cast(is_pad_BxS, tf.float32)[:, None], K, 1)
    no_room_BxKx0 = tf.zeros([B, K, 0], tf.int64)
    search = _Search(
        position=tf.constant(0),
        ids_BxKxT=no_room_BxKx0,
        origins_BxKxT=no_room_BxKx0,
        logp_BxK=tf.where(is_alive_BxK, 0.0, none_BxK),
        coverage_BxKxS=coverage_BxKxS,
        finished=nothing._replace(ids_BxKxT=no_room_BxKx0),
        state=state,
    )
    return _Round(nothing, tf.range(tf.cast(B, tf.int64)), given, search)


def _round(round_: _Round, step: Step, decoding: Decoding) -> _Round:
    """Drop the sentences that are done, make room, and search until there is cause for it again."""
    kept_B, position = tf.where(_active(round_.search))[:, 0], round_.search.position
    of_each = (round_.number_B, round_.given, round_.search._replace(position=()))
    number_B, given, search = tf.nest.map_structure(lambda x: tf.gather(x, kept_B), of_each)
    search = _with_room(search._replace(position=position))

    B, room = tf.size(number_B), tf.shape(search.ids_BxKxT)[2]
    few = tf.cast(tf.cast(B, tf.float32) * KEPT_SHARE, tf.int64)
    (search,) = tf.while_loop(
        lambda search: (search.position < room) & (tf.math.count_nonzero(_active(search)) > few),
        lambda search: (_extended(search, given, step, decoding),),
        (search,),
        shape_invariants=(tf.nest.map_structure(_loop_shape, search),),
    )
    return _Round(_written(round_.results, number_B, search.finished), number_B, given, search)


def _with_room(search: _Search) -> _Search:
    """Room for `ROOM` more positions if there is none left."""
    more = tf.where(search.position == tf.shape(search.ids_BxKxT)[2], ROOM, 0)

    def longer(ids_BxKxT: tf.Tensor, nothing: int) -> tf.Tensor:
        B, K = tf.shape(ids_BxKxT)[0], ids_BxKxT.shape[1]
        return tf.concat([ids_BxKxT, tf.fill([B, K, more], tf.constant(nothing, tf.int64))], 2)

    finished = search.finished
    return search._replace(
        ids_BxKxT=longer(search.ids_BxKxT, PAD),
        origins_BxKxT=longer(search.origins_BxKxT, -1),
        finished=finished._replace(ids_BxKxT=longer(finished.ids_BxKxT, PAD)),
    )


def _extended(search: _Search, given: Given, step: Step, decoding: Decoding) -> _Search:
    """Every alive hypothesis one token longer, or finished."""
    position, K = search.position, decoding.hypotheses
    is_here_T = tf.range(tf.shape(search.ids_BxKxT)[2]) == position
    bos = tf.constant(BOS, tf.int64)
    last_BxK = tf.where(position == 0, bos, search.ids_BxKxT[:, :, position - 1])
    place_Kx1 = tf.range(K, dtype=tf.int64)[:, None]
    origins_BxKxT = tf.where(is_here_T, place_Kx1, search.origins_BxKxT)
    logits_BxKxV, attention_BxKxS, state = step(last_BxK, position, origins_BxKxT, search.state)
    draw_BxK = given.draws_BxKxT[:, :, position] if decoding.sample else None
    rules = TokenRules(position, search.ids_BxKxT, given.least_B, draw_BxK)
    logp_BxC, parent_BxC, token_BxC = candidates(logits_BxKxV, search.logp_BxK, rules, decoding)
    ids_BxCxT = tf.gather(search.ids_BxKxT, parent_BxC, batch_dims=1)
    ids_BxCxT = tf.where(is_here_T, token_BxC[:, :, None], ids_BxCxT)
    coverage_BxKxS = search.coverage_BxKxS
    if decoding.coverage_penalty:
        coverage_BxKxS += attention_BxKxS
    coverage_BxCxS = tf.gather(coverage_BxKxS, parent_BxC, batch_dims=1)
    score_BxC = _score(logp_BxC, position + 1, coverage_BxCxS, decoding)

    ended_BxC = token_BxC == EOS
    is_finished_BxC = ended_BxC & _may_end(position, decoding, ended_BxC.shape[1])
    finished = _keep_best(
        search.finished, ids_BxCxT, position + 1, where_else_none(is_finished_BxC, score_BxC)
    )
    logp_BxC = where_else_none(~ended_BxC, logp_BxC)
    # At most one candidate per hypothesis is eos, so of 2K always K others are left.
    best_BxK = None if logp_BxC.shape[1] == K else largest(logp_BxC, K)[1]
    logp_BxK, ids_BxKxT, score_BxK, parent_BxK, coverage_BxKxS = (
        x if best_BxK is None else tf.gather(x, best_BxK, batch_dims=1)
        for x in (logp_BxC, ids_BxCxT, score_BxC, parent_BxC, coverage_BxCxS)
    )
    at_limit_B = tf.cast(position + 1, tf.int64) >= given.most_B
    # A drawing keeps what was cut, a search only where nothing was finished.
    cut_B = at_limit_B if decoding.sample else at_limit_B & (finished.lengths_BxK[:, 0] == 0)
    cut_BxK = cut_B[:, None] & (logp_BxK > -float("inf"))
    finished = _keep_best(finished, ids_BxKxT, position + 1, where_else_none(cut_BxK, score_BxK))
    done_B = at_limit_B | _is_over(finished, logp_BxK, position + 1, given, decoding)
    return _Search(
        position=position + 1,
        ids_BxKxT=ids_BxKxT,
        origins_BxKxT=tf.gather(origins_BxKxT, parent_BxK, batch_dims=1),
        logp_BxK=where_else_none(~done_B[:, None], logp_BxK),
        coverage_BxKxS=coverage_BxKxS,
        finished=finished,
        state=state,
    )


def _may_end(position: tf.Tensor, decoding: Decoding, count: int) -> tf.Tensor:
    """Which of so many candidates, best first, may be the end: bool [C].

    Those among the K best: an eos of a lower rank would be kept however improbable. As the first
    token eos must be the best of all, or larger beams give empty translations where greedy search
    gives none (CTranslate2, issue 277).
    """
    is_best_C, is_kept_C = (tf.range(count) < n for n in (1, decoding.hypotheses))
    if decoding.sample or decoding.normalization == "marian":  # generate() has no such rule
        return is_kept_C
    return tf.where(position == 0, is_best_C, is_kept_C)


def _score(
    logp_BxC: tf.Tensor, length: tf.Tensor, coverage_BxCxS: tf.Tensor, decoding: Decoding
) -> tf.Tensor:
    """Wu et al. 2016, equation 14; `coverage_BxCxS` is the attention, summed over the target."""
    score_BxC = logp_BxC / decoding.penalty(tf.cast(length, tf.float32))
    if decoding.coverage_penalty:
        share_BxCxS = tf.clip_by_value(coverage_BxCxS, 1e-30, 1.0)  # a score stays finite
        score_BxC += decoding.coverage_penalty * tf.reduce_sum(tf.math.log(share_BxCxS), -1)
    return score_BxC


def _is_over(
    finished: BeamResult, logp_BxK: tf.Tensor, length: tf.Tensor, given: Given, decoding: Decoding
) -> tf.Tensor:
    """Whether no alive hypothesis can get among the n_best finished ones.

    With "marian": whether K have finished and no alive one, as long as it is now, beats the worst.

    Source: transformers, generation/utils.py, `_check_early_stop_heuristic` by default.
    """
    alive_B = tf.reduce_max(logp_BxK, 1)
    if decoding.normalization == "marian" and not decoding.sample:
        worst_B = finished.scores_BxK[:, -1]
        alive_B /= decoding.penalty(tf.cast(length, tf.float32))
        return (worst_B > -float("inf")) & (worst_B >= alive_B)
    # Log-probabilities only fall; the longest length and no coverage penalty are the kindest.
    alive_B /= decoding.penalty(tf.cast(given.most_B, tf.float32))
    return finished.scores_BxK[:, decoding.n_best - 1] >= alive_B


def _keep_best(
    old: BeamResult, ids_BxCxT: tf.Tensor, length: tf.Tensor, scores_BxC: tf.Tensor
) -> BeamResult:
    """The K best of the old hypotheses and the new; at equal scores the old stay."""
    K = old.scores_BxK.shape[1]
    length = tf.cast(length, tf.int64)
    lengths_BxC = tf.where(scores_BxC > -float("inf"), length, tf.zeros_like(length))
    scores_BxK, index_BxK = largest(tf.concat([old.scores_BxK, scores_BxC], 1), K)
    ids = tf.concat([old.ids_BxKxT, ids_BxCxT], 1)
    lengths = tf.concat([old.lengths_BxK, lengths_BxC], 1)
    ids_BxKxT, lengths_BxK = (tf.gather(x, index_BxK, batch_dims=1) for x in (ids, lengths))
    return BeamResult(ids_BxKxT, lengths_BxK, scores_BxK)


def _written(results: BeamResult, number_B: tf.Tensor, finished: BeamResult) -> BeamResult:
    """The results of all sentences with those of these sentences put in."""
    longest, T = tf.shape(results.ids_BxKxT)[2], tf.shape(finished.ids_BxKxT)[2]
    ids_BxKxT = finished.ids_BxKxT[:, :, :longest]
    B, K, _ = tf.unstack(tf.shape(ids_BxKxT))
    pad_BxKxT = tf.fill([B, K, tf.maximum(longest - T, 0)], tf.constant(PAD, tf.int64))
    ids_BxKxT = tf.concat([ids_BxKxT, pad_BxKxT], 2)
    new = finished._replace(ids_BxKxT=ids_BxKxT)
    at_Bx1 = number_B[:, None]
    return BeamResult(
        *(tf.tensor_scatter_nd_update(x, at_Bx1, y) for x, y in zip(results, new, strict=True))
    )


def _active(search: _Search) -> tf.Tensor:
    """Which sentences have a hypothesis alive, bool [B]."""
    return tf.reduce_any(search.logp_BxK > -float("inf"), 1)


def _loop_shape(tensor: tf.Tensor) -> tf.TensorShape:
    """The shape that holds in every step: B shrinks, and a dimension of 0 at the start may grow."""
    if not tensor.shape.rank:
        return tensor.shape
    return tf.TensorShape([None, *(size or None for size in tensor.shape[1:])])
