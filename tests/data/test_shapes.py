"""Few shapes for the batches of many, with little padding and the same sentences."""

import numpy as np
import pytest

from hvd_nmt.data import shapes
from hvd_nmt.data.batch_plan import BatchPlan, Position
from hvd_nmt.data.batches import PaddedBatch, batches
from hvd_nmt.data.corpus import ParallelCorpus, Sentences
from hvd_nmt.data.shapes import FewShapes


def corpus(sentences=20_000, seed=0):
    rng = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        lengths = np.clip(rng.lognormal(2.8, 0.5, sentences), 2, 60).astype(np.int64)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        sides.append(Sentences(np.full(offsets[-1], 7, np.int32), offsets))
    return ParallelCorpus(*sides)


CORPUS = corpus()
PLAN = BatchPlan.of(CORPUS, 1024, 1)
RANKS = 2


@pytest.fixture(scope="module")
def few():
    return shapes.choose(PLAN, RANKS)


def padded_tokens(shape):
    return shape[0] * (shape[1] + shape[2])


def batch_shapes(rounded, rank=0):
    """Of an epoch's batches."""
    made = batches(CORPUS, PLAN, Position(), rank, RANKS, rounded=rounded)
    return [
        PaddedBatch(*batch.source_BxS.shape, batch.target_BxT.shape[1])
        for batch, _ in zip(made, range(PLAN.steps_per_epoch), strict=False)
    ]


def test_no_more_programs_and_padding_than_promised_alike_on_all_ranks(few):
    plain, rounded = batch_shapes(None), batch_shapes(few.rounded)
    of_program = [shape for shape in rounded if shape in few]
    assert len(few) <= shapes.MOST
    assert len(set(plain)) > 2 * shapes.MOST
    assert len(set(of_program)) <= shapes.MOST
    more = sum(map(padded_tokens, rounded)) / sum(map(padded_tokens, plain)) - 1
    assert 0 < more <= 1.1 * shapes.MORE_PADDING  # the other epoch looked at may have less
    assert few.more_padding <= shapes.MORE_PADDING
    assert len(of_program) / len(rounded) == pytest.approx(few.share, abs=0.05)
    assert few.share > 0.4
    for before, after in zip(plain, rounded, strict=True):
        assert all(a >= b for a, b in zip(after, before, strict=True))
        assert padded_tokens(after) <= (1 + few.slack) * padded_tokens(before)
        assert after in few or after == before
    assert rounded == batch_shapes(few.rounded, rank=1)
    again = shapes.choose(BatchPlan.of(corpus(), 1024, 1), RANKS)
    np.testing.assert_array_equal(again.shapes_Nx3, few.shapes_Nx3)


def test_sentences_tokens_and_steps_stay(few):
    for rank in range(RANKS):
        plain = batches(CORPUS, PLAN, Position(), rank, RANKS)
        rounded = batches(CORPUS, PLAN, Position(), rank, RANKS, rounded=few.rounded)
        for one, other, _ in zip(plain, rounded, range(200), strict=False):
            np.testing.assert_array_equal(one.sentences, other.sentences)
            assert one[2:7] == other[2:7]
            rows, source = one.source_BxS.shape
            np.testing.assert_array_equal(other.source_BxS[:rows, :source], one.source_BxS)
            assert other.source_BxS.sum() == one.source_BxS.sum()
            assert other.target_BxT.sum() == one.target_BxT.sum()


def test_shapes_that_do_not_fit_are_not_offered():
    found = shapes.choose(PLAN, RANKS, lambda shapes_Nx3: shapes_Nx3[:, 1] <= 20)
    assert found.shapes_Nx3[:, 1].max() <= 20
    assert 0 < found.share < 1


def test_the_smallest_shape_that_holds_is_taken():
    few = FewShapes(np.array([[10, 9, 9], [10, 8, 8], [11, 8, 8]]), 0.2, 1.0, 0.0)
    assert few.rounded(PaddedBatch(10, 8, 7)) == (10, 8, 8)
    assert few.rounded(PaddedBatch(10, 9, 8)) == (10, 9, 9)
    assert few.rounded(PaddedBatch(10, 10, 8)) == (10, 10, 8)  # none holds it
    assert few.rounded(PaddedBatch(5, 8, 8)) == (5, 8, 8)  # too much padding
    assert (10, 8, 8) in few
    assert (8, 8, 8) not in few
