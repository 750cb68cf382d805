"""The candidates of source pieces, learned from a made-up language."""

import numpy as np

from hvd_nmt.config import EOS
from hvd_nmt.data.corpus import ParallelCorpus, Sentences
from hvd_nmt.formats import shortlist

PIECES = 40


def sentences(lines):
    ids = [np.array([*line, EOS], np.uint16) for line in lines]
    return Sentences(np.concatenate(ids), np.cumsum([0, *map(len, ids)]))


def corpus_of(n_pairs):
    """Word i becomes i + 20, in reverse order; 39 is in every translation, at no word's place."""
    chance = np.random.default_rng(0)
    sources = [chance.integers(4, 16, chance.integers(1, 7)).tolist() for _ in range(n_pairs)]
    targets = [[39, *(word + 20 for word in reversed(source))] for source in sources]
    return ParallelCorpus(sentences(sources), sentences(targets))


def test_each_word_has_its_translation_first(monkeypatch):
    monkeypatch.setattr(shortlist, "_BLOCK_LINKS", 370)
    pairs = shortlist._sample(corpus_of(300))
    assert len(pairs) == 300
    candidates = shortlist.shortlist(pairs, PIECES)
    assert {word: candidates[word][0] for word in range(4, 16)} == {i: i + 20 for i in range(4, 16)}
    assert candidates[EOS][0] == 39, "the NULL word takes what no word explains"
    assert shortlist.shortlist(pairs, PIECES, best=1)[7] == [27]
    keys, probabilities = shortlist.lexical_table(pairs, PIECES)
    np.testing.assert_allclose(np.bincount(keys // PIECES, probabilities)[4:16], 1)
    assert shortlist.frequent(pairs, PIECES)[:2] == [EOS, 39]
    monkeypatch.setattr(shortlist, "_MOST_LINKS", 2000)
    assert 50 < len(shortlist._sample(corpus_of(300))) < 150
    assert shortlist.shortlist([(np.array([5, EOS]), np.array([EOS]))], PIECES) == {}
