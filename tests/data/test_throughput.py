"""The figures of the input, on lengths like those of the real corpus."""

import itertools
import tracemalloc
from types import SimpleNamespace

import numpy as np

from hvd_nmt.data import throughput
from hvd_nmt.data.batch_plan import BatchPlan
from hvd_nmt.data.corpus import ParallelCorpus, Sentences


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


def test_the_figures_of_a_corpus_of_the_size_of_the_recipe(monkeypatch):
    """Little padding, few shapes, and a plan that needs little memory: 111 bytes a pair.

    That is 500 MB for 4.5 million pairs. By its clock each batch takes a second.
    """
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(throughput, "time", clock)
    corpus = corpus_of(600_000)
    plan = BatchPlan.of(corpus, 25_000, 1)
    found = throughput.measure(corpus, plan, seconds=3.0)
    assert found.padding < 0.05
    assert found.shapes <= min(found.steps, found.most_shapes)
    assert found.most_shapes == (25_100 // 2) * 100 * 100
    assert 1e6 * found.plan_mb < 111 * len(corpus)
    assert (found.plan_s, found.batches_per_s) == (1, 1)
    epoch = plan.epoch(0)
    assert 4 * found.tokens_per_s == sum(epoch.source_tokens[:4]) + sum(epoch.target_tokens[:4])
    assert not tracemalloc.is_tracing()
    said = dict(found.rows())
    assert said["sentence pairs, steps an epoch"] == f"600,000, {epoch.steps:,}"
    assert said["batches, real tokens/s, source + target"] == f"{found.tokens_per_s:,.0f}"
    assert said["padding, share of all tokens"] == f"{found.padding:.2%}"


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
