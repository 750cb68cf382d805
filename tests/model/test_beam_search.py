"""Beam search against full enumeration, against a plain search in NumPy, and against itself.

The models here are tables of random log-probabilities picked by a hash of the whole history, kept
in the state: a hypothesis that loses track of its places gives wrong translations. Attention is
picked by the same hash.
"""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.config import BOS, EOS
from hvd_nmt.model.beam_search import Given, beam_search
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.translator import lengths

HASHES = 997
SOURCE = 5
"""source positions that attention is spread over"""


def make_table(seed, vocabulary_size, sharpness=1.0, eos_bonus=0.0):
    logits = sharpness * np.random.default_rng(seed).normal(size=(HASHES, vocabulary_size))
    logits[:, EOS] += eos_bonus
    logits -= logits.max(-1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits.astype(np.float32)


ATTENTION = np.exp(np.random.default_rng(0).normal(0, 2, (HASHES, SOURCE))).astype(np.float32)
ATTENTION /= ATTENTION.sum(-1, keepdims=True)


def next_hash(old, token):
    return (old * 31 + token * 7 + 3) % HASHES


def step_of(table_NxV):
    """The step of a table model. Its state: the hashes, and what grows position by position."""

    def step(ids_BxK, position, origins_BxKxT, state):
        hash_BxK, hashes_BxTxK = state
        origin_BxK = origins_BxKxT[:, :, position - 1]
        parent_BxK = tf.where(position > 0, origin_BxK, tf.zeros_like(origin_BxK))
        hash_BxK = next_hash(tf.gather(hash_BxK, parent_BxK, batch_dims=1), ids_BxK)
        hashes_BxTxK = tf.concat([hashes_BxTxK, hash_BxK[:, None]], 1)
        # At each position in the past a hypothesis finds what it left there.
        tf.debugging.assert_equal(tf.shape(hashes_BxTxK)[1], position + 1)
        tf.debugging.assert_greater(tf.shape(origins_BxKxT)[2], position)
        past_BxTxK = tf.transpose(origins_BxKxT[:, :, : position + 1], [0, 2, 1])
        now_BxK = tf.gather(hashes_BxTxK, past_BxTxK, batch_dims=2)[:, -1]
        tf.debugging.assert_equal(now_BxK, hash_BxK)
        state = hash_BxK, hashes_BxTxK
        return tf.gather(table_NxV, hash_BxK), tf.gather(ATTENTION, hash_BxK), state

    return step


@functools.cache
def searcher(decoding, vocabulary_size, real, compiled, names):
    """`beam_search` with a table model, for many tests one graph."""
    K = decoding.hypotheses

    def run(table_NxV, seed_B, *given):
        B = tf.size(seed_B)
        is_pad_BxS = tf.repeat(tf.range(SOURCE)[None] >= real, B, 0)
        return beam_search(
            step_of(table_NxV),
            (tf.repeat(tf.cast(seed_B, tf.int64)[:, None], K, 1), tf.zeros([B, 0, K], tf.int64)),
            Given(**dict(zip(names, given, strict=True))),
            decoding,
            is_pad_BxS=is_pad_BxS if decoding.coverage_penalty else None,
        )

    specs = {
        "most_B": tf.TensorSpec([None], tf.int32),
        "least_B": tf.TensorSpec([None], tf.int32),
        "draws_BxKxT": tf.TensorSpec([None, K, None], tf.float32),
    }
    signature = [tf.TensorSpec([HASHES, vocabulary_size]), specs["most_B"]]
    signature += [specs[name] for name in names]
    return tf.function(run, input_signature=signature, autograph=False) if compiled else run


def search_table(table, seeds, decoding, most, compiled=True, real=SOURCE, **given):
    """Run `beam_search` on sentences that differ in the hash they start from.

    `real` source positions are not padding.
    """
    given["most_B"] = np.broadcast_to(np.asarray(most, np.int32), len(seeds))
    run = searcher(decoding, table.shape[1], real, compiled, tuple(given))
    given = map(tf.constant, given.values())
    return [t.numpy() for t in run(tf.constant(table), tf.constant(seeds, tf.int32), *given)]


def hypotheses(result, sentence):
    """[(ids, score)] of one sentence, best first, without padding."""
    ids, length, scores = (t[sentence] for t in result)
    rows = zip(ids, length, scores, strict=True)
    return [(tuple(row[:n].tolist()), float(score)) for row, n, score in rows if n]


def hashes_of(seed, ids):
    """What the model's table is asked for before each token."""
    for last in (BOS, *ids[:-1]):
        seed = next_hash(seed, last)
        yield seed


def logp_of(table, seed, ids):
    return sum(float(table[h, x]) for h, x in zip(hashes_of(seed, ids), ids, strict=True))


def score_of(table, seed, ids, decoding, real=SOURCE):
    score = logp_of(table, seed, ids) / decoding.penalty(len(ids))
    attention_S = sum(ATTENTION[h][:real] for h in hashes_of(seed, ids))
    return score + decoding.coverage_penalty * float(np.log(np.minimum(attention_S, 1)).sum())


def is_allowed(ids, decoding, least=0):
    if ids[-1] == EOS and len(ids) < least:
        return False
    n = decoding.no_repeat_ngram
    grams = [ids[i : i + n] for i in range(len(ids) - n + 1)] if n else []
    return len(set(grams)) == len(grams)


def enumerate_finished(table, seed, most, decoding, real=SOURCE, **rules):
    """Every finished sentence up to the maximum length with its score, best first.

    It is empty only if nothing is more probable than its end.
    """
    others = [v for v in range(table.shape[1]) if v != EOS]
    found = []
    for length in range(1, most + 1):
        for words in itertools.product(others, repeat=length - 1):
            ids = (*words, EOS)
            if is_allowed(ids, decoding, **rules):
                found.append((ids, score_of(table, seed, ids, decoding, real)))
    first = [(token,) for token in range(table.shape[1])]
    first = [ids for ids in first if is_allowed(ids, decoding, **rules)]
    likeliest = max(first, key=lambda ids: logp_of(table, seed, ids))
    found = [pair for pair in found if pair[0] == likeliest or pair[0] not in first]
    return sorted(found, key=lambda pair: -pair[1])


def reference_search(table, seed, most, decoding, **rules):
    """The same search for one sentence with lists, to the maximum length without ending early.

    With "marian" it ends as Hugging Face's generate() does.
    """
    K, alive, finished = decoding.beam_size, [()], []
    is_marian = decoding.normalization == "marian"

    def best(sentences):
        scored = [(ids, score_of(table, seed, ids, decoding)) for ids in sentences]
        return sorted(scored, key=lambda pair: -pair[1])[:K]

    for position in range(most):
        grown = [(*ids, token) for ids in alive for token in range(table.shape[1])]
        grown = [ids for ids in grown if is_allowed(ids, decoding, **rules)]
        grown = sorted(grown, key=lambda ids: -logp_of(table, seed, ids))[: 2 * K]
        ending = grown[: 1 if position == 0 and not is_marian else K]
        finished += [ids for ids in ending if ids[-1] == EOS]
        alive = [ids for ids in grown if ids[-1] != EOS][:K]
        if finished and K == 1:  # greedy
            break
        if is_marian and len(finished) >= K and best(finished)[-1][1] >= best(alive)[0][1]:
            break
    return best(finished or alive)


def assert_same(found, expected, tolerance=2e-5):
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    found, expected = ([score for _, score in pairs] for pairs in (found, expected))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-5)


def wide(K, **options):
    """A search of which all K results must be right."""
    return Decoding(beam_size=K, n_best=K, **options)


@pytest.mark.parametrize(
    ("options", "least", "left", "more"),
    [
        ({"length_penalty": 0}, 0, 39, {}),
        ({"length_penalty": 0.6}, 0, 39, {}),
        ({"length_penalty": 0.6}, 0, 39, {"compiled": False}),
        ({"length_penalty": 2}, 0, 39, {"sharpness": 1e5}),  # no low score passes for infinity
        ({"coverage_penalty": 0.7}, 0, 39, {}),
        ({}, 3, 36, {}),
        ({"no_repeat_ngram": 1}, 0, 15, {}),
        ({"no_repeat_ngram": 2}, 0, 36, {}),
        ({"coverage_penalty": 0.2, "length_penalty": 0.3, "no_repeat_ngram": 1}, 3, 12, {}),
    ],
)
def test_wide_beam_finds_what_enumeration_finds(options, least, left, more):
    table, seeds, most = make_table(1, 4, more.get("sharpness", 1.0)), [5, 77, 300], 4
    # More hypotheses than there are candidates in any step.
    decoding = wide(120, min_length=least, **options)
    given = {"least_B": np.array([least] * 3, np.int32), "compiled": more.get("compiled", True)}
    result = search_table(table, seeds, decoding, most, real=3, **given)
    for i, seed in enumerate(seeds):
        rules = {"real": 3, "least": least}
        expected = enumerate_finished(table, seed, most, decoding, **rules)
        assert len(expected) == left  # 39: without the empty one, whose eos is not the best token
        assert_same(hypotheses(result, i), expected)


@pytest.mark.parametrize(
    ("K", "vocabulary_size", "options"),
    [
        (1, 50, {}),
        (4, 16, {"coverage_penalty": 0.3}),
        (5, 160, {"length_penalty": 1.0}),
        (3, 10, {"length_penalty": 2.0, "no_repeat_ngram": 2}),
    ],
)
def test_equals_plain_search(K, vocabulary_size, options):
    rng = np.random.default_rng(K)
    bonus = np.log(vocabulary_size) - 1  # sentences of about a dozen tokens
    table = make_table(K, vocabulary_size, sharpness=1.5, eos_bonus=bonus)
    seeds = rng.integers(0, HASHES, 40).tolist()
    most = rng.integers(1, 20, 40)
    least = np.minimum(rng.integers(0, 5, 40), most)
    given = {"least_B": least.astype(np.int32)}
    decoding = wide(K, min_length=1, **options)
    exact = search_table(table, seeds, decoding, most, **given)
    quick = search_table(table, seeds, dataclasses.replace(decoding, n_best=1), most, **given)
    for i, seed in enumerate(seeds):
        rules = {"least": least[i]}
        expected = reference_search(table, seed, int(most[i]), decoding, **rules)
        assert_same(hypotheses(exact, i), expected)
        assert_same(hypotheses(quick, i)[:1], expected[:1])  # ending early loses only the others


@pytest.mark.parametrize("alpha", [0.5, pytest.param(2.0, marks=pytest.mark.long)])
def test_marian_normalization_ends_as_generate_does(alpha):
    table, seeds = make_table(11, 16, sharpness=1.5, eos_bonus=1.5), list(range(30))
    decoding = Decoding(beam_size=3, n_best=3, normalization="marian", length_penalty=alpha)
    found = search_table(table, seeds, decoding, 40)
    exact = search_table(table, seeds, Decoding(beam_size=3, length_penalty=alpha), 40)
    expected = [reference_search(table, seed, 40, decoding) for seed in seeds]
    for i, wanted in enumerate(expected):
        assert_same(hypotheses(found, i), wanted)
    assert any(hypotheses(exact, i)[0][0] != ids for i, ((ids, _), *_) in enumerate(expected))


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(beam_size=1),
        Decoding(n_best=2, coverage_penalty=0.2),
        Decoding(sample=True, n_best=3, top_p=0.9),
    ],
)
def test_result_does_not_depend_on_the_neighbours(decoding):
    """Of many sentences some are done early and dropped; alone none is."""
    rng, count = np.random.default_rng(4), 64
    table, seeds = make_table(4, 30, 2.0, -1.0), rng.integers(0, HASHES, count)
    most = rng.integers(0, 40, count).astype(np.int32)
    draws = rng.random((count, decoding.hypotheses, 40), np.float32)
    each = {"draws_BxKxT": draws} if decoding.sample else {}
    together = search_table(table, seeds, decoding, most, **each)
    for i in range(0, count, 4):
        row = slice(i, i + 1)
        own = {name: values[row] for name, values in each.items()}
        alone = search_table(table, seeds[row], decoding, most[row], **own)
        assert_same(hypotheses(together, i), hypotheses(alone, 0))
    assert (together[1].max(1) > 16).any()  # needs room twice


def test_maximum_length_holds_for_each_sentence():
    table = make_table(6, 12, 1.0, eos_bonus=-30.0)  # never ends by itself
    ids, found, scores = search_table(table, [1, 2, 3, 4], Decoding(beam_size=3), [4, 0, 37, 1])
    assert ids.shape == (4, 3, 37)
    assert found.tolist() == [[4] * 3, [0] * 3, [37] * 3, [1] * 3]
    assert not (ids == EOS).any()
    assert np.isneginf(scores[1]).all()
    assert np.isfinite(scores[[0, 2, 3]]).all()
    assert (np.diff(scores[[0, 2, 3]], axis=1) <= 0).all()
    ids, found, scores = search_table(make_table(1, 4), [], Decoding(), 5)  # no sentences
    assert ids.shape == (0, 4, 0)
    assert found.shape == scores.shape == (0, 4)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_nan_ends_only_the_sentence_it_is_in(poison):
    table, seeds, decoding = make_table(8, 30, 2.0, 1.0), [3, 99], Decoding(beam_size=3)
    sound = search_table(table, seeds, decoding, 10)
    sick_table = table.copy()
    sick_table[next_hash(3, BOS)] = poison
    sick = search_table(sick_table, seeds, decoding, 10)
    assert hypotheses(sick, 0) == []
    assert np.isneginf(sick[2][0]).all()
    assert_same(hypotheses(sick, 1), hypotheses(sound, 1))


def test_draws_follow_the_models_probabilities():
    table, seed, count = make_table(10, 6), 7, 4000
    draws = np.random.default_rng(1).random((1, count, 3), np.float32)
    decoding = Decoding(sample=True, n_best=count)
    result = search_table(table, [seed], decoding, 3, draws_BxKxT=draws)
    found = hypotheses(result, 0)
    assert len(found) == count
    for ids, score in found[::200]:
        np.testing.assert_allclose(score, score_of(table, seed, ids, decoding), rtol=1e-4)
    for ids in {ids for ids, _ in found}:
        expected = np.exp(logp_of(table, seed, ids))
        share = sum(other == ids for other, _ in found) / count
        assert abs(share - expected) < 5 * np.sqrt(expected / count) + 1e-3


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({}, [0, 0, 0], [51, 60, 0]),
        ({"max_length": 7, "min_length": 3}, [3, 3, 0], [7, 7, 0]),
        ({"max_length": 9, "min_length": 9}, [9, 9, 0], [9, 9, 0]),
    ],
)
def test_lengths_are_bound(options, least, most):
    found = lengths(tf.constant([1, 10, 0]), Decoding(**options), model_length=60)
    assert [t.numpy().tolist() for t in found] == [least, most]
