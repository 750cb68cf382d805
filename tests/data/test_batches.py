"""The four properties that the training loop stands on, and the plan's promises about tokens."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.data.batch_plan import BatchPlan, Position
from hvd_nmt.data.batches import PaddedBatch, batches, evaluation_batches
from hvd_nmt.data.corpus import ParallelCorpus, Sentences

property_test = settings(deadline=None, max_examples=100)


def sentences(lengths, first_id):
    """Sentences whose ids are all different within a few thousand tokens, ending with eos."""
    lengths = np.asarray(lengths, np.int64)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    ids = (first_id + np.arange(offsets[-1]) % 30_000).astype(np.uint16)
    ids[offsets[1:] - 1] = 1
    return Sentences(ids, offsets)


def corpus_of(pairs):
    source, target = zip(*pairs, strict=True)
    return ParallelCorpus(sentences(source, 4), sentences(target, 4))


@st.composite
def worlds(draw):
    """A corpus, a plan and a number of ranks."""
    lengths = st.integers(1, 40)
    corpus = corpus_of(draw(st.lists(st.tuples(lengths, lengths), min_size=1, max_size=60)))
    tokens_per_step = draw(st.integers(int(corpus.target.lengths.max()), 200))
    seed = draw(st.integers(0, 2**64 - 1))
    plan = BatchPlan(corpus.source.lengths, corpus.target.lengths, tokens_per_step, seed)
    return corpus, plan, draw(st.integers(1, 5))


def take(corpus, plan, start, rank, size, n_batches):
    return list(itertools.islice(batches(corpus, plan, start, rank, size), n_batches))


def rows(matrix):
    """The rows that are not pad alone, without their padding."""
    return [tuple(row[row != 0]) for row in matrix.tolist() and matrix if row.any()]


@property_test
@given(worlds())
def test_every_rank_has_the_same_steps_and_shapes_and_knows_the_tokens_of_each(world):
    corpus, plan, size = world
    n_batches = 2 * plan.steps_per_epoch + 1
    by_rank = [take(corpus, plan, Position(), rank, size, n_batches) for rank in range(size)]
    for step in zip(*by_rank, strict=True):
        assert len({batch.source_BxS.shape for batch in step}) == 1
        assert len({batch.target_BxT.shape for batch in step}) == 1
        assert len({batch[2:7] for batch in step}) == 1
        assert step[0].source_BxS.dtype == step[0].target_BxT.dtype == np.int32
        assert len(step[0].source_BxS) == len(step[0].target_BxT)
        assert step[0].source_tokens == sum(np.count_nonzero(b.source_BxS) for b in step)
        of_each = tuple(np.count_nonzero(batch.target_BxT) for batch in step)
        assert step[0].rank_target_tokens == of_each
        assert step[0].target_tokens == sum(of_each)
    assert by_rank[0][-1].epoch == 2


@property_test
@given(worlds())
def test_rounded_shapes_hold_the_same_sentences(world):
    corpus, plan, size = world
    plain = take(corpus, plan, Position(), 0, size, plan.steps_per_epoch)
    rounded = itertools.islice(
        batches(corpus, plan, Position(), 0, size, rounded=True), plan.steps_per_epoch
    )
    for one, other in zip(plain, rounded, strict=True):
        rows, source = one.source_BxS.shape
        assert rows <= len(other.source_BxS) <= 9 / 8 * rows
        np.testing.assert_array_equal(other.source_BxS[:rows, :source], one.source_BxS)
        assert other.source_BxS.sum() == one.source_BxS.sum()
        assert other.target_BxT.sum() == one.target_BxT.sum()
        assert {other.source_BxS.shape[1] % 8, other.target_BxT.shape[1] % 8} == {0}
        np.testing.assert_array_equal(one.sentences, other.sentences)
        assert one[2:7] == other[2:7]


def test_few_shapes_remain():
    found = {PaddedBatch(rows, 17, 9).rounded for rows in range(1, 257)}
    assert {shape[1:] for shape in found} == {(24, 16)}
    assert len(found) == 16 + 8 * 4


@property_test
@given(worlds())
def test_the_order_of_sentences_does_not_depend_on_the_ranks(world):
    corpus, plan, size = world
    by_rank = [take(corpus, plan, Position(), r, size, plan.steps_per_epoch) for r in range(size)]
    alone = take(corpus, plan, Position(), 0, 1, plan.steps_per_epoch)
    seen = []
    for step, one in enumerate(alone):
        dealt = [rows(by_rank[rank][step].source_BxS) for rank in range(size)]
        interleaved = [row for row in itertools.chain(*itertools.zip_longest(*dealt)) if row]
        assert interleaved == rows(one.source_BxS)
        indices = plan.epoch(0).sentences(step)
        assert interleaved == [tuple(corpus.source[i].tolist()) for i in indices]
        assert rows(one.target_BxT) == [tuple(corpus.target[i].tolist()) for i in indices]
        for batch in (of_rank[step] for of_rank in by_rank):
            named = [tuple(corpus.target[i].tolist()) for i in batch.sentences]
            assert named == rows(batch.target_BxT)
        seen.extend(indices.tolist())
    assert sorted(seen) == list(range(len(corpus)))


@property_test
@given(worlds(), st.integers(0, 200), st.integers(0, 4))
def test_resuming_gives_the_same_continuation(world, done, rank):
    corpus, plan, size = world
    rank %= size
    done %= 3 * plan.steps_per_epoch
    whole = take(corpus, plan, Position(), rank, size, done + 3)
    position = plan.position(done)
    assert 0 <= position.step < plan.steps_per_epoch
    assert position.epoch * plan.steps_per_epoch + position.step == done
    fresh = dataclasses.replace(plan)
    for a, b in zip(whole[done:], take(corpus, fresh, position, rank, size, 3), strict=True):
        np.testing.assert_array_equal(a.source_BxS, b.source_BxS)
        np.testing.assert_array_equal(a.target_BxT, b.target_BxT)
        np.testing.assert_array_equal(a.sentences, b.sentences)
        assert a[2:7] == b[2:7]


@property_test
@given(worlds())
def test_evaluation_sees_each_sentence_once_in_equal_shapes(world):
    corpus, plan, size = world
    by_rank = [
        list(evaluation_batches(corpus, plan.tokens_per_step, rank, size)) for rank in range(size)
    ]
    seen = []
    for step in zip(*by_rank, strict=True):
        assert len({(source.shape, target.shape) for _, source, target in step}) == 1
        for indices, source, target in step:
            for index, source_row, target_row in zip(indices, source, target, strict=True):
                if index < 0:
                    assert not source_row.any()
                    assert not target_row.any()
                    continue
                seen.append(int(index))
                assert source_row[source_row != 0].tolist() == corpus.source[index].tolist()
                assert target_row[target_row != 0].tolist() == corpus.target[index].tolist()
    assert sorted(seen) == list(range(len(corpus)))
    nothing = sentences([], 4)
    assert list(evaluation_batches(ParallelCorpus(nothing, nothing), 100, 0, 2)) == []


@property_test
@given(worlds())
def test_steps_share_the_tokens_evenly(world):
    corpus, plan, _ = world
    epoch = plan.epoch(0)
    total, longest = int(corpus.target.lengths.sum()), int(corpus.target.lengths.max())
    tokens = epoch.target_tokens.tolist()
    assert epoch.steps == min(len(corpus), -(-total // plan.tokens_per_step))
    assert min(tokens) > 0
    if 2 * longest <= plan.tokens_per_step:
        assert max(abs(count - total / epoch.steps) for count in tokens) < longest + 1


def realistic_lengths(n_pairs, seed=0):
    random = np.random.default_rng(seed)
    source = np.clip(random.gamma(6, 2.6, n_pairs), 3, 60)
    target = np.clip(source * random.normal(1.03, 0.15, n_pairs), 3, 60)
    return source.astype(np.int32), target.astype(np.int32)


def test_golden_order():
    """The plan must never change unnoticed: a resumed run would see other sentences."""
    source, target = np.arange(1, 13) % 5 + 1, np.arange(1, 13) % 4 + 1
    epoch = BatchPlan(source, target, 10, seed=7).epoch(2)
    steps = [epoch.sentences(step).tolist() for step in range(epoch.steps)]
    assert steps == [[11, 7, 3, 8, 1, 0], [6, 2], [5, 9, 4, 10]]
    lengths = realistic_lengths(300)
    one, *others = (
        BatchPlan(*lengths, 100, seed).epoch(number).order
        for seed, number in ((7, 2), (7, 3), (8, 2))
    )
    assert all((one != other).any() for other in others)


def test_little_padding_and_other_company_in_the_next_epoch():
    source, target = realistic_lengths(30_000)
    plan = BatchPlan(source, target, 4096, seed=1)
    padded, step_of = np.zeros(2), np.empty([4, len(source)], np.int64)
    for number in range(4):
        epoch = plan.epoch(number)
        for step in range(epoch.steps):
            chosen = epoch.sentences(step)
            step_of[number, chosen] = step
            padded += len(chosen) * np.array([source[chosen].max(), target[chosen].max()])
    waste = 1 - 4 * np.array([source.sum(), target.sum()]) / padded
    assert waste.max() < 0.09
    assert waste[1] < 0.04
    mates = [np.unique(step_of[0] * 10**6 + steps, return_counts=True)[1] for steps in step_of]
    share = [(counts.astype(float) ** 2).sum() / len(source) for counts in mates]
    assert share[1] < 0.55 * share[0]
    assert max(share[1:]) < 0.8 * share[0]


def test_a_step_must_hold_the_longest_sentence():
    with pytest.raises(ConfigError, match=r"tokens_per_step is 9, but the longest .* 10 tokens"):
        BatchPlan(np.array([3]), np.array([10]), 9, seed=0)


def test_each_epoch_takes_the_next_copy_of_every_sentence():
    copies = corpus_of(
        [(3 + i % 5 + copy, 2 + i % 7 + copy) for i in range(40) for copy in (0, 1, 2)]
    )
    plan = BatchPlan(copies.source.lengths, copies.target.lengths, 30, 1, copies=3)
    longest = max(copies.target.lengths[copy::3].sum() for copy in (0, 1, 2))
    assert plan.steps_per_epoch == -(-longest // 30)
    every = batches(copies, plan, Position(), 0, 1)
    for epoch in range(4):
        seen = []
        for batch in itertools.islice(every, plan.steps_per_epoch):
            assert batch.epoch == epoch
            seen += batch.sentences.tolist()
            for index, row in zip(batch.sentences, batch.target_BxT, strict=True):
                assert row[row != 0].tolist() == copies.target[index * 3 + epoch % 3].tolist()
        assert sorted(seen) == list(range(40))
