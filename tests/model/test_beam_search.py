"""Beam search against full enumeration, against a plain search in NumPy, and against itself.

The models here are tables of random log-probabilities picked by a hash of the whole history, kept
in the state: a state that is not re-ordered with its hypothesis gives wrong translations.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.config import BOS, EOS
from hvd_nmt.model.beam_search import beam_search, length_penalty, top_k

HASHES = 997


def make_table(seed, vocabulary_size, sharpness=1.0, eos_bonus=0.0):
    logits = sharpness * np.random.default_rng(seed).normal(size=(HASHES, vocabulary_size))
    logits[:, EOS] += eos_bonus
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits.astype(np.float32)


def next_hash(old, token):
    return (old * 31 + token * 7 + 3) % HASHES


def search_table(table, seeds, beam_size, max_length, compiled=True, shift=0.0, **options):
    """Run `beam_search` on sentences that differ in the hash they start from."""
    table_tf = tf.constant(table) + shift  # not normalised: the search must do that

    def step(ids_N, position, state):
        hash_N, length_Nxt = state  # the second grows by concatenation, like a cache
        hash_N = next_hash(hash_N, ids_N)
        length_Nxt = tf.concat([length_Nxt, hash_N[:, None]], 1)
        tf.debugging.assert_equal(tf.shape(length_Nxt)[1], position + 1)
        return tf.gather(table_tf, hash_N), (hash_N, length_Nxt)

    def run(seed_B, max_length_B):
        seed_N = tf.repeat(seed_B, beam_size)
        state = (seed_N, tf.zeros([tf.size(seed_N), 0], tf.int32))
        return beam_search(
            step,
            state,
            max_length_B,
            vocabulary_size=table.shape[1],
            beam_size=beam_size,
            **options,
        )

    spec = tf.TensorSpec([None], tf.int32)
    run = tf.function(run, input_signature=[spec, spec]) if compiled else run
    max_length = np.broadcast_to(np.asarray(max_length, np.int32), len(seeds))
    return [t.numpy() for t in run(tf.constant(seeds, tf.int32), tf.constant(max_length))]


def hypotheses(result, sentence):
    """[(ids, score)] of one sentence, best first, without padding."""
    ids, lengths, scores = (t[sentence] for t in result)
    rows = zip(ids, lengths, scores, strict=True)
    return [(tuple(row[:n].tolist()), float(score)) for row, n, score in rows if n]


def penalty(length, alpha):
    return ((5 + length) / 6) ** alpha


def logp_of(table, seed, ids):
    total, last = 0.0, BOS
    for token in ids:
        seed = next_hash(seed, last)
        total += float(table[seed, token])
        last = token
    return total


def enumerate_finished(table, seed, max_length, alpha):
    """Every finished sentence up to the maximum length with its score, best first."""
    others = [v for v in range(table.shape[1]) if v != EOS]
    found = []
    for length in range(1, max_length + 1):
        for words in itertools.product(others, repeat=length - 1):
            ids = (*words, EOS)
            found.append((ids, logp_of(table, seed, ids) / penalty(length, alpha)))
    return sorted(found, key=lambda pair: -pair[1])


def reference_search(table, seed, K, max_length, alpha):
    """The same search for one sentence with lists, to the maximum length without ending early."""
    alive, finished = [((), 0.0)], []
    for length in range(1, max_length + 1):
        grown = [
            ((*ids, token), logp_of(table, seed, (*ids, token)))
            for ids, _ in alive
            for token in range(table.shape[1])
        ]
        grown = sorted(grown, key=lambda pair: -pair[1])[: 2 * K]
        finished += [
            (ids, logp / penalty(length, alpha)) for ids, logp in grown if ids[-1] == EOS
        ]
        finished = sorted(finished, key=lambda pair: -pair[1])[:K]
        alive = [pair for pair in grown if pair[0][-1] != EOS][:K]
    return finished or [(ids, logp / penalty(max_length, alpha)) for ids, logp in alive]


def assert_same(found, expected, tolerance=2e-5):
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], rtol=tolerance)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("sharpness", [1.0, 1e5])  # no low score is mistaken for infinity
def test_wide_beam_finds_what_enumeration_finds(alpha, compiled, sharpness):
    table, seeds, max_length, K = make_table(1, 4, sharpness), [5, 77, 300], 4, 60
    result = search_table(
        table, seeds, K, max_length, compiled, length_penalty_alpha=alpha, exact_best=K
    )
    for i, seed in enumerate(seeds):
        expected = enumerate_finished(table, seed, max_length, alpha)
        assert len(expected) == 1 + 3 + 9 + 27
        assert_same(hypotheses(result, i), expected)


@pytest.mark.parametrize(
    ("K", "vocabulary_size", "alpha"), [(2, 7, 0.0), (4, 16, 0.6), (5, 640, 1.0), (3, 10, 2.0)]
)
def test_equals_plain_search(K, vocabulary_size, alpha):
    rng = np.random.default_rng(K)
    bonus = np.log(vocabulary_size) - 1  # sentences of about a dozen tokens
    table = make_table(K, vocabulary_size, sharpness=1.5, eos_bonus=bonus)
    seeds = rng.integers(0, HASHES, 50).tolist()
    max_lengths = rng.integers(1, 20, 50)
    exact, quick = (
        search_table(table, seeds, K, max_lengths, length_penalty_alpha=alpha, exact_best=n)
        for n in (K, 1)
    )
    for i, seed in enumerate(seeds):
        expected = reference_search(table, seed, K, int(max_lengths[i]), alpha)
        assert_same(hypotheses(exact, i), expected)
        assert_same(hypotheses(quick, i)[:1], expected[:1])  # ending early loses only the others


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_beam_1_is_greedy(alpha):
    table, seeds, max_length = make_table(3, 50, 2.0, 2.0), list(range(40)), 15
    result = search_table(table, seeds, 1, max_length, length_penalty_alpha=alpha)
    lengths = []
    for i, seed in enumerate(seeds):
        ids, state, last = [], seed, BOS
        while len(ids) < max_length and last != EOS:
            state = next_hash(state, last)
            last = int(table[state].argmax())
            ids.append(last)
        score = logp_of(table, seed, ids) / penalty(len(ids), alpha)
        assert_same(hypotheses(result, i), [(tuple(ids), score)])
        lengths.append(len(ids))
    assert min(lengths) < max_length  # some finished
    assert max(lengths) == max_length  # some did not


@pytest.mark.parametrize("K", [1, 4])
def test_result_does_not_depend_on_the_neighbours(K):
    table, seeds = make_table(4, 30, 2.0, 2.0), [3, 99, 500, 7, 260]
    max_lengths = [9, 2, 0, 14, 5]
    together = search_table(table, seeds, K, max_lengths)
    for i, seed in enumerate(seeds):
        alone = search_table(table, [seed], K, max_lengths[i])
        assert hypotheses(together, i) == hypotheses(alone, 0)


def test_scores_need_not_be_normalised_by_the_step():
    table, seeds = make_table(5, 30, 2.0, 2.0), [3, 99, 500]
    for shift in (-1e4, 50.0):
        plain, shifted = (search_table(table, seeds, 4, 12, shift=s) for s in (0.0, shift))
        np.testing.assert_array_equal(plain[0], shifted[0])
        np.testing.assert_allclose(plain[2], shifted[2], rtol=1e-3)


def test_maximum_length_holds_for_each_sentence():
    table = make_table(6, 12, 1.0, eos_bonus=-30.0)  # never ends by itself
    ids, lengths, scores = search_table(table, [1, 2, 3, 4], 3, [4, 0, 7, 1])
    assert ids.shape == (4, 3, 7)
    assert lengths.tolist() == [[4] * 3, [0] * 3, [7] * 3, [1] * 3]
    assert not (ids == EOS).any()
    assert np.isneginf(scores[1]).all()
    assert np.isfinite(scores[[0, 2, 3]]).all()
    assert (np.diff(scores[[0, 2, 3]], axis=1) <= 0).all()


def test_larger_length_penalty_gives_longer_sentences():
    table, seeds = make_table(7, 20, 1.5, 1.5), list(range(60))
    mean_lengths = []
    for alpha in (0.0, 0.6, 1.5):
        _, lengths, _ = search_table(table, seeds, 4, 25, length_penalty_alpha=alpha)
        mean_lengths.append(lengths[:, 0].mean())
    assert mean_lengths[0] < mean_lengths[1] < mean_lengths[2]
    np.testing.assert_allclose(length_penalty(tf.constant([1, 7]), 0.6), [1, 2**0.6], rtol=1e-6)


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nan_ends_only_the_sentence_it_is_in(K, poison):
    table, seeds = make_table(8, 30, 2.0, 1.0), [3, 99]
    sound = search_table(table, seeds, K, 10)
    sick_table = table.copy()
    sick_table[next_hash(3, BOS)] = poison
    sick = search_table(sick_table, seeds, K, 10)
    assert hypotheses(sick, 0) == []
    assert np.isneginf(sick[2][0]).all()
    assert hypotheses(sick, 1) == hypotheses(sound, 1)


def test_one_sick_row_leaves_the_other_beams():
    table = make_table(9, 30, 1.0, -1.0)
    seed = 3
    first = next_hash(seed, BOS)
    best = int(table[first].argmax())
    table[next_hash(first, best), 5] = np.nan
    found = hypotheses(search_table(table, [seed], 3, 10), 0)
    assert found
    assert all(ids[0] != best or ids == (best,) for ids, _ in found)


def test_ends_as_soon_as_every_sentence_is_done():
    steps = []

    def step(ids_N, position, state):
        steps.append(int(position))
        return tf.one_hot(tf.ones_like(ids_N), 9, on_value=20.0), state  # eos at once

    result = beam_search(step, (), tf.constant([50, 60]), vocabulary_size=9)
    assert result.lengths_BxK[:, 0].numpy().tolist() == [1, 1]
    assert len(steps) <= 2


def test_no_sentences():
    ids, lengths, scores = search_table(make_table(1, 4), [], 4, 5)
    assert ids.shape == (0, 4, 0)
    assert lengths.shape == scores.shape == (0, 4)


@pytest.mark.parametrize("vocabulary_size", [1000, 8000, 8008, 32768, 97])
@pytest.mark.parametrize("k", [1, 8])
def test_top_k_equals_tensorflow(vocabulary_size, k):
    x = tf.random.stateless_normal([20, vocabulary_size], seed=[1, k])
    values, indices = top_k(x, k, vocabulary_size)
    expected_values, expected_indices = tf.math.top_k(x, k)
    np.testing.assert_array_equal(values, expected_values)
    np.testing.assert_array_equal(indices, expected_indices)


@pytest.mark.parametrize(
    "bad",
    [
        {"beam_size": 0},
        {"length_penalty_alpha": -0.1},
        {"exact_best": 5, "beam_size": 4},
        {"vocabulary_size": 1},
    ],
)
def test_refuses_what_cannot_work(bad):
    options = {"vocabulary_size": 9, **bad}
    with pytest.raises(ValueError, match="|".join(bad)):
        beam_search(lambda ids_N, position, state: (ids_N, state), (), tf.constant([3]), **options)
