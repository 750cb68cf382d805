"""Epochs of several corpora: exact over each stage, and a pure function of step and seed."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.mixture import AS_IS, END, Stage
from hvd_nmt.data.batch_plan import BatchPlan, Position
from hvd_nmt.data.batches import batches
from hvd_nmt.data.corpus import ParallelCorpus, Sentences
from hvd_nmt.data.mixed_epochs import MixedEpochs

property_test = settings(deadline=None, max_examples=100)
NAMES = ("clean", "crawled", "back")


def lengths_of(pairs, seed):
    return np.random.default_rng(seed).integers(1, 12, pairs).astype(np.int32)


def ranges_of(sizes):
    ends = [0, *itertools.accumulate(sizes)]
    return {name: range(*ends) for name, ends in zip(NAMES, itertools.pairwise(ends), strict=True)}


@st.composite
def mixtures(draw):
    sizes = draw(st.lists(st.integers(20, 90), min_size=3, max_size=3))
    weight = st.one_of(st.just(AS_IS), st.sampled_from([0.5, 1.0, 3.0, 0.1]))
    weights = st.dictionaries(st.sampled_from(NAMES), weight, min_size=1)
    ends = sorted(draw(st.sets(st.integers(1, 40), max_size=2)))
    stages = [Stage(end, draw(weights)) for end in [*ends, END]]
    lengths = lengths_of(sum(sizes), draw(st.integers(0, 9)))
    return MixedEpochs(ranges_of(sizes), lengths, stages, 40, draw(st.integers(0, 2**64 - 1)))


@property_test
@given(mixtures(), st.integers(0, 60))
def test_a_step_has_one_place(mixture, step):
    epoch, of_epoch = mixture.position(step)
    place = mixture.place(epoch)
    assert place.first_step + of_epoch == step
    assert 0 <= of_epoch < place.steps
    stage = mixture.stages[place.stage]
    assert stage.until == END or step < stage.until
    assert place.stage == 0 or step >= mixture.stages[place.stage - 1].until


def test_no_stage_ends_with_an_epoch_of_a_few_steps():
    """In which sentences of all lengths would meet."""
    lengths = lengths_of(6000, 3)
    for until in (100, 101, 131, 140, 400):
        stages = [Stage(until, {"clean": 1.0}), Stage(END, {"back": 1.0})]
        mixture = MixedEpochs(ranges_of((3000, 1000, 2000)), lengths, stages, 180, 1)
        places = [mixture.place(epoch) for epoch in range(9)]
        of_first = [place.steps for place in places if place.stage == 0]
        assert sum(of_first) == until
        assert min(of_first) >= 32
        assert max(of_first) < mixture.steps_per_epoch[0] + 32


@property_test
@given(mixtures())
def test_each_sentence_is_seen_equally_often_over_a_stage_or_once_more(mixture):
    for number, stage in enumerate(mixture.stages):
        if stage.until == END:
            break
        seen, epoch = Counter(), 0
        while (place := mixture.place(epoch)).stage <= number:
            if place.stage == number:
                seen.update(mixture.draw(epoch)[0].tolist())
            epoch += 1
        said = mixture.times_seen(number, stage.until)
        for name in stage.weights:
            counts = [seen.pop(index, 0) for index in mixture.ranges[name]]
            assert max(counts) - min(counts) <= 1
            assert sum(counts) / len(counts) == pytest.approx(said[name])
        assert not seen  # of corpora that the stage does not name


@property_test
@given(mixtures())
def test_the_parts_of_an_epoch_are_those_asked_for(mixture):
    last = len(mixture.stages) - 1
    epoch = mixture.position(45)[0]
    assume(mixture.place(epoch).stage == last)
    weights = mixture.stages[last].weights
    counts = Counter(
        name
        for index in mixture.draw(epoch)[0].tolist()
        for name, pairs in mixture.ranges.items()
        if index in pairs
    )
    whole = sum(len(mixture.ranges[name]) for name in weights)
    assert abs(sum(counts.values()) - whole) <= len(weights)
    for name, share in mixture.shares(last).items():
        assert abs(counts[name] - float(share) * whole) <= 1
        if weights[name] == AS_IS:
            assert counts[name] == len(mixture.ranges[name])
    weighted = {n: w for n, w in weights.items() if w != AS_IS}
    for (one, a), (other, b) in itertools.combinations(weighted.items(), 2):
        shares = mixture.shares(last)
        assert shares[one] * Fraction(str(b)) == shares[other] * Fraction(str(a))


@property_test
@given(mixtures())
def test_a_sentence_never_comes_twice_in_one_pass(mixture):
    seen = Counter()
    for epoch in range(8):
        seen.update(zip(*(of_epoch.tolist() for of_epoch in mixture.draw(epoch)), strict=True))
    assert set(seen.values()) == {1}


def corpus_and_plan(stages, seed=5, tokens=60, sizes=(50, 80, 30)):
    source, target = (
        Sentences(np.arange(lengths.sum()) % 900 + 4, np.concatenate(([0], np.cumsum(lengths))))
        for lengths in (lengths_of(sum(sizes), 1), lengths_of(sum(sizes), 2))
    )
    corpus = ParallelCorpus(source, target)
    mixture = MixedEpochs(ranges_of(sizes), target.lengths, stages, tokens, seed)
    return corpus, BatchPlan(corpus.source.lengths, corpus.target.lengths, tokens, seed, mixture)


STAGES = [
    Stage(17, {"clean": 1.0, "crawled": 3.0}),
    Stage(33, {"clean": AS_IS, "back": 2.0}),
    Stage(END, {"back": 1.0}),
]


def test_a_resumed_run_has_the_same_batches():
    corpus, plan = corpus_and_plan(STAGES)
    whole = list(itertools.islice(batches(corpus, plan, Position(), 0, 2), 48))
    for step in (0, 5, 16, 17, 20, 32, 33, 41):
        _, fresh = corpus_and_plan(STAGES)
        resumed = itertools.islice(batches(corpus, fresh, fresh.position(step), 0, 2), 48 - step)
        for one, other in zip(whole[step:], resumed, strict=True):
            assert (one.epoch, one.step) == (other.epoch, other.step)
            np.testing.assert_array_equal(one.source_BxS, other.source_BxS)
            np.testing.assert_array_equal(one.target_BxT, other.target_BxT)


def test_corpora_as_they_are_make_the_plan_of_one_corpus():
    corpus, plan = corpus_and_plan([Stage(END, dict.fromkeys(NAMES, AS_IS))])
    plain = BatchPlan(corpus.source.lengths, corpus.target.lengths, 60, 5)
    assert plan.steps_per_epoch == plain.steps_per_epoch
    for epoch in range(3):
        mixed, one = plan.epoch(epoch), plain.epoch(epoch)
        np.testing.assert_array_equal(mixed.order, one.order)
        np.testing.assert_array_equal(mixed.first, one.first)
        assert set(plan.mixture.draw(epoch)[1].tolist()) == {epoch}


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(ConfigError, match="names the corpus new, but the data have no pairs of it"):
        corpus_and_plan([Stage(END, {"new": 1.0})])
    with pytest.raises(ConfigError, match=r"Stage 1 has 1\.\d pairs a step, too few for 3 corpora"):
        corpus_and_plan([Stage(END, dict.fromkeys(NAMES, 1.0))], tokens=11)
