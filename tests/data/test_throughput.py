"""The figures of the input, on lengths like those of the real corpus."""

import tracemalloc

import numpy as np
import pytest

from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.corpus import ParallelCorpus, Sentences
from hvd_nmt.data.throughput import measure


def corpus_of(n_pairs, seed=0):
    """Lengths spread like WMT's: a mean of 29 tokens, up to 100."""
    random = np.random.default_rng(seed)
    source = np.clip(random.gamma(2.6, 11.0, n_pairs), 2, 100).astype(np.int64)
    target = np.clip(source * random.normal(1.03, 0.18, n_pairs), 2, 100).astype(np.int64)
    sides = []
    for lengths in (source, target):
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        sides.append(Sentences((np.arange(offsets[-1]) % 999 + 1).astype(np.uint16), offsets))
    return ParallelCorpus(*sides)


@pytest.fixture(scope="module")
def large():
    return corpus_of(600_000)


@pytest.fixture(scope="module")
def found(large):
    return measure(large, BatchPlan.of(large, 25_000, 1), seconds=1.0)


def test_little_padding_and_far_fewer_shapes_than_possible_at_the_size_of_the_recipe(found):
    assert found.padding < 0.05
    assert found.shapes <= min(found.steps, found.most_shapes)
    assert found.most_shapes == (25_100 // 2) * 100 * 100


def test_the_bound_on_shapes_holds():
    corpus = corpus_of(500)
    plan = BatchPlan.of(corpus, 300, seed=1)
    shapes = set()
    for number in range(30):
        epoch = plan.epoch(number)
        for step in range(epoch.steps):
            chosen = epoch.sentences(step)
            rows = -(-len(chosen) // 3)
            assert rows <= plan.most_shapes(3) // 100**2
            lengths = (side.lengths[chosen].max() for side in (corpus.source, corpus.target))
            shapes.add((rows, *lengths))
    assert len(shapes) <= plan.most_shapes(3)


def test_the_plan_of_a_large_corpus_is_small(large):
    """500 MB for 4.5 million pairs are 111 bytes a pair."""
    tracemalloc.start()
    sides = (Sentences(side.ids, side.offsets) for side in (large.source, large.target))
    BatchPlan.of(ParallelCorpus(*sides), 25_000, 1).epoch(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 111 * len(large)


def test_batches_come_faster_than_any_training(found):
    """20 times the fastest training seen on two cores, 6,500 tokens/s."""
    assert found.tokens_per_s > 130_000


def test_the_table_says_every_figure(found):
    text = "\n".join(value for _, value in found.rows())
    assert f"{found.sentences:,}" in text
    assert f"{found.padding:.2%}" in text
    assert f"{found.tokens_per_s:,.0f}" in text
