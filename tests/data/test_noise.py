"""Noise: the same wherever it is asked for, the same on both sides where it must be."""

import functools
import itertools

import numpy as np
import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config import DataConfig
from hvd_nmt.config.noise_rates import NoiseConfig
from hvd_nmt.data import augmentation as augmentation_module
from hvd_nmt.data.augmentation import Augmentation
from hvd_nmt.data.batch_plan import BatchPlan, Position
from hvd_nmt.data.batches import batches
from hvd_nmt.data.corpus import ParallelCorpus, Sentences
from hvd_nmt.preparation import subwords

PAIRS = [
    ("<2de> A small dog runs over the green field.", "Ein kleiner Hund rennt über das Feld."),
    ("<2de> See www.example.org/news or write to me@example.org!", "Siehe www.example.org/news!"),
    ("<2de> Two men and 15 women are sitting outside", "Zwei Männer und 15 Frauen sitzen"),
] * 200
ALL = np.arange(len(PAIRS))


@pytest.fixture(scope="module")
def model():
    lines = [line for pair in PAIRS[:3] for line in pair]
    text = [*lines, *(line.upper() for line in lines), "https://www.example.com/?=_xyz42 q w z"]
    learning = subwords.Learning(byte_fallback=True, tags=("<2de>",))
    return subwords.train(text, 500, learning)


@pytest.fixture(scope="module")
def corpus(model):
    return ParallelCorpus(*(encoded(model, side) for side in zip(*PAIRS, strict=True)))


def encoded(model, lines):
    ids = subwords.encode_lines(subwords.load(model), list(lines), 1)
    return Sentences(np.concatenate(ids), np.cumsum([0, *map(len, ids)]))


def noised(model, corpus, epoch=0, seed=1, max_length=1000, indices=ALL, **rates):
    config = DataConfig(noise=NoiseConfig(**rates))
    pairs = Augmentation.of_models([model], config, seed, max_length).pairs(corpus, indices, epoch)
    decode = subwords.load(model).decode
    return [
        tuple(decode([int(i) for i in side[number]]) for side in (pairs.source, pairs.target))
        for number in range(len(indices))
    ]


def test_without_chance_nothing_changes(model, corpus):
    assert noised(model, corpus, typos=1e-15) == [
        tuple(subwords.load(model).decode(side[i].tolist()) for side in (corpus.source,
                                                                         corpus.target))
        for i in ALL
    ]  # fmt: skip


def test_capitals_and_lost_marks_are_on_both_sides_and_addresses_stay(model, corpus):
    shouted = 0
    for (source, target), (old, old_target) in zip(
        noised(model, corpus, upper_case=0.5), PAIRS, strict=True
    ):
        assert (target == old_target) == (source == old)
        if source != old:
            assert source.removeprefix("<2de> ").isupper() or "example" in source
            assert ("www.example.org/news" in source) == ("www.example.org/news" in old)
            assert source.startswith("<2de> ")
            shouted += 1
    assert 0.4 < shouted / len(PAIRS) < 0.6
    unmarked = noised(model, corpus, no_punctuation=0.25)[0::3]
    lost = [source[-1] not in ".!" for source, _ in unmarked]
    assert 0.15 < np.mean(lost) < 0.35
    assert lost == [target[-1] not in ".!" for _, target in unmarked]
    found = noised(model, corpus, title_case=1 - 1e-9)
    assert found[0] == (
        "<2de> A Small Dog Runs Over The Green Field.", "Ein Kleiner Hund Rennt Über Das Feld."
    )  # fmt: skip


def test_typing_errors_are_in_sources_only_and_leave_marks_and_numbers(model, corpus):
    found = noised(model, corpus, typos=0.3)
    assert [target for _, target in found] == [target for _, target in PAIRS]
    changed = 0
    for (source, _), (old, _) in zip(found, PAIRS, strict=True):
        words = list(zip(source.split(), old.split(), strict=True))
        for new, word in words:
            if new != word:
                changed += 1
                assert word.strip(".!").isalpha()
                assert len(word.strip(".!")) >= 3
                assert abs(len(new) - len(word)) <= 1
                assert new[-1] == word[-1] or word[-1].isalpha()
    words = [word.strip(".!") for source, _ in PAIRS for word in source.split()]
    plain = sum(word.isalpha() and len(word) > 2 for word in words)
    assert 0.2 < changed / plain < 0.35  # a swap of equal letters changes nothing


def test_spaces_are_missing_or_too_many(model, corpus):
    found = noised(model, corpus, spaces=0.4)
    together, apart = 0, 0
    for (source, target), (old, old_target) in zip(found, PAIRS, strict=True):
        assert source.replace(" ", "") == old.replace(" ", "")
        assert target == old_target
        together += len(source.split()) < len(old.split())
        apart += len(source.split()) > len(old.split())
    assert together > 50
    assert apart > 50


def test_copies_are_the_same_on_both_sides_and_behind_the_tag(model, corpus):
    kinds = set()
    for (source, target), (old, old_target) in zip(
        noised(model, corpus, copies=0.5), PAIRS, strict=True
    ):
        if source == old:
            assert target == old_target
            continue
        body, old_body = source.removeprefix("<2de> "), old.removeprefix("<2de> ")
        assert source.startswith("<2de> ")
        copy = body.replace(old_body, "").strip()
        assert target in (f"{copy} {old_target}", f"{old_target} {copy}")
        assert target.startswith(copy) == body.startswith(copy)
        kinds.add(copy)
    assert any("example" in copy for copy in kinds)
    assert any(ord(copy[0]) > 0x2000 for copy in kinds)  # emoji, as bytes


def test_copies_are_those_that_both_vocabularies_can_write(model):
    plain = subwords.train([PAIRS[0][1], PAIRS[2][1]], 80, subwords.Learning())
    config = DataConfig(noise=NoiseConfig(copies=1 - 1e-9))
    augmentation = Augmentation.of_models([model, plain], config, 1, 1000)
    sides = [encoded(each, side) for each, side in zip((model, plain), zip(*PAIRS, strict=True),
                                                       strict=True)]  # fmt: skip
    pairs = augmentation.pairs(ParallelCorpus(*sides), ALL, 0)
    for side, old in ((pairs.source, sides[0]), (pairs.target, sides[1])):
        assert np.array_equal(side.ids, old.ids)  # the second has no colon, slash or emoji


def test_noise_depends_on_seed_epoch_and_sentence_alone(model, corpus):
    rates = {"typos": 0.2, "upper_case": 0.2, "spaces": 0.1, "copies": 0.1}
    whole = noised(model, corpus, **rates)
    some = ALL[::-7]
    assert noised(model, corpus, indices=some, **rates) == [whole[i] for i in some]
    assert noised(model, corpus, epoch=1, **rates) != whole
    assert noised(model, corpus, seed=2, **rates) != whole
    epochs = np.arange(len(ALL)) % 2
    mixed = noised(model, corpus, epoch=epochs, **rates)
    other = noised(model, corpus, epoch=1, **rates)
    assert mixed == [(whole, other)[i % 2][i] for i in ALL]


def test_a_pair_that_would_be_too_long_stays_on_both_sides(model, corpus):
    longest = int(max(corpus.source.lengths.max(), corpus.target.lengths.max()))
    rates = {"copies": 1 - 1e-9, "typos": 0.5}
    found = noised(model, corpus, max_length=longest, **rates)
    free = noised(model, corpus, **rates)
    stayed = [pair == old for pair, old in zip(found, PAIRS, strict=True)]
    assert any(stayed)
    for pair, stays, other in zip(found, stayed, free, strict=True):
        assert stays or pair == other


@pytest.mark.parametrize(
    "config",
    [
        DataConfig(noise=NoiseConfig(upper_case=0.03, title_case=0.02, copies=0.02, typos=0.05)),
        DataConfig(bpe_dropout=0.2),
        DataConfig(bpe_dropout=0.1, noise=NoiseConfig(upper_case=0.03)),
    ],
    ids=["noise", "BPE-dropout", "both"],
)
def test_the_plan_knows_how_long_pairs_become(config, model, corpus, monkeypatch):
    """Else a step has one in capitals, say, and all its other rows are padded to that one."""
    monkeypatch.setattr(augmentation_module, "_AT_ONCE", 7)
    augmentation = Augmentation.of_models([model], config, 1, 1000)
    source, target = augmentation.lengths(corpus, ALL, 3)
    changed = augmentation.pairs(corpus, ALL, 3)
    assert np.array_equal(source, changed.source.lengths)
    assert np.array_equal(target, changed.target.lengths)
    assert not np.array_equal(target, corpus.target.lengths)

    plan = BatchPlan.of(corpus, 700, 1, None, functools.partial(augmentation.lengths, corpus))
    epoch, without = plan.epoch(0), BatchPlan.of(corpus, 700, 1)
    rows, longest, longest_target = plan.padded_shapes(epoch, 2)
    tokens, largest = [], int((rows * (longest + longest_target)).max())
    for each in (plan, without):
        of_ranks = [batches(corpus, each, Position(), rank, 2, augmentation) for rank in (0, 1)]
        tokens.append(0)
        for step, (one, other) in enumerate(itertools.islice(zip(*of_ranks, strict=True), 8)):
            assert each is without or one.target_tokens == epoch.target_tokens[step]
            assert one.source_BxS.shape == other.source_BxS.shape
            size = one.source_BxS.size + one.target_BxT.size
            assert each is without or size <= largest
            tokens[-1] += size
    assert tokens[0] < 0.9 * tokens[1]


def test_rates_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match=r"data\.noise\.typos is 1\.0"):
        NoiseConfig(typos=1.0)
    with pytest.raises(ConfigError, match="share the pairs"):
        NoiseConfig(upper_case=0.6, title_case=0.6)
