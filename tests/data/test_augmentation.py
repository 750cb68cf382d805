"""Without dropout SentencePiece's own ids; with it, a pure function of seed, epoch and sentence."""

import itertools
import random

import numpy as np
import pytest

from hvd_nmt.common.errors import DataError
from hvd_nmt.config import DataConfig
from hvd_nmt.data.augmentation import Augmentation
from hvd_nmt.data.corpus import Sentences
from hvd_nmt.preparation import subwords

WORDS = itertools.product(["lower", "Garten"], ["wide", "new"], ["best", "lowest"], ["newer"] * 40)
LINES = [
    f"{a} {b}s the {c}ing {d}, number {i}" if i % 5 else f"{a}{b}{c}{d}{i} \u4e2d! {a}"
    for i, (a, b, c, d) in enumerate(WORDS)
]
ALL = np.arange(len(LINES))


@pytest.fixture(scope="module")
def model():
    return subwords.load(subwords.train([line for line in LINES if "\u4e2d" not in line], 140))


@pytest.fixture(scope="module")
def sentences(model):
    ids = subwords.encode_lines(model, LINES, 1)
    flat = np.array(list(itertools.chain(*ids)), np.uint16)
    return Sentences(flat, np.concatenate(([0], np.cumsum([len(sentence) for sentence in ids]))))


@pytest.fixture(scope="module")
def pieces(model):
    return [(model.id_to_piece(i), model.get_score(i)) for i in range(model.get_piece_size())]


def lists(sentences):
    return [sentence.tolist() for sentence in sentences]


def test_without_dropout_the_ids_are_those_of_sentencepiece(pieces, sentences):
    """Its pieces, taken apart and put together again: an oracle for every merge."""
    dropout = Augmentation(pieces, 0.0, 1, 128)
    assert lists(dropout.sentences(sentences, ALL, 0, 0)) == lists(sentences)


def test_sentences_are_as_long_as_with_sentencepiece(model, pieces, sentences):
    """The same distribution: means over all sentences agree within 3 %."""
    share = 0.3
    dropouts = [Augmentation(pieces, share, seed, 1000) for seed in range(4)]
    ours = sum(len(dropout.sentences(sentences, ALL, 0, 0).ids) for dropout in dropouts)
    sampling = {"enable_sampling": True, "alpha": share, "nbest_size": -1}
    theirs = sum(len(model.encode(line, **sampling)) + 1 for line in 4 * LINES)
    assert ours == pytest.approx(theirs, rel=0.03)
    assert ours > 1.1 * 4 * len(sentences.ids)


def test_a_sentence_that_would_be_too_long_keeps_its_own_ids(pieces, sentences):
    longest = int(1.8 * sentences.lengths.max())
    found = Augmentation(pieces, 0.5, 1, longest).sentences(sentences, ALL, 0, 0)
    free = Augmentation(pieces, 0.5, 1, 1000).sentences(sentences, ALL, 0, 0)
    over = free.lengths > longest
    assert over.any()
    assert not over.all()
    for i in ALL:
        assert found[i].tolist() == (sentences if over[i] else free)[i].tolist()


def test_golden_segmentation(pieces, sentences):
    """It must never change unnoticed: a resumed run would see other pieces."""
    found = Augmentation(pieces, 0.3, 7, 128).sentences(sentences, np.arange(2), 5, 1)
    assert [" ".join(pieces[i][0] for i in ids) for ids in lists(found)] == [
        "▁low e r w i d e b est n e w er 0 ▁ <unk> ▁ lo w er </s>",
        "▁ l o w er ▁w i d es ▁t h e ▁b es t in g ▁n e w er , ▁number ▁ 1 </s>",
    ]


PLAIN = "abcde\u2581"
NEVER_MERGED = (4, 5)


def vocabulary_of(over_spaces):
    """Merges of random parts, every third as early as the one before it."""
    generator, merged = random.Random(1), list(PLAIN)
    while len(merged) < 80:
        new = generator.choice(merged) + generator.choice(merged)
        if new not in merged and len(new) < 9 and (over_spaces or "\u2581" not in new[1:]):
            merged.append(new)
    merged = [*(piece for piece in merged if piece != "ab"), "xa", "xac"]  # x is no piece
    special = ["<pad>", "</s>", "<s>", "<unk>", "<ph>", "ab"]
    scores = [-float(i - i % 3 // 2) for i in range(len(merged))]
    return [(piece, 0.0) for piece in special] + list(zip(merged, scores, strict=True))


def mixed(x):
    """SplitMix64's finalizer, with the numbers of Python."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def refused(share, chance, places):
    """Whether a merge at (start of left, start of right, end), in characters, is refused."""
    x = 0
    for part in chance:
        x = mixed(x ^ part)
    strides = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
    for place, stride in zip(places, strides, strict=True):
        x ^= place * stride % 2**64
    return mixed(x) < int(share * 2**64)


def by_definition(pieces, sentence, share, chance, over_spaces):
    """The ids of one sentence: always the best merge of all that are allowed, one at a time."""
    known = {piece: i for i, (piece, _) in enumerate(pieces) if i > 3 and i not in NEVER_MERGED}
    merges = {(a, b): known.get(x + y) for x, a in known.items() for y, b in known.items()}
    parts = []
    for i in sentence:
        characters = [known.get(character) for character in pieces[i][0]]
        parts += characters if i in known.values() and all(characters) else [i]
    starts = [*range(len(parts) + 1)]
    begins_word = [i == known["\u2581"] and not over_spaces for i in parts]
    while True:
        allowed = [
            (-pieces[merged][1], at, merged)
            for at, pair in enumerate(itertools.pairwise(parts))
            if (merged := merges.get(pair)) is not None
            and not begins_word[starts[at + 1]]
            and not refused(share, chance, starts[at : at + 3])
        ]
        if not allowed:
            return parts
        _, at, merged = min(allowed)
        parts[at : at + 2] = [merged]
        del starts[at + 1]


@pytest.mark.parametrize("over_spaces", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_segmentation_is_what_its_definition_says(share, over_spaces):
    """Random pieces: with and without spaces, unknown characters, what is never merged, pad.

    The definition has no place for the sentences beside it.
    """
    pieces, generator = vocabulary_of(over_spaces), random.Random(2)
    all_ids = list(range(len(pieces)))
    no_space = [i for i in all_ids if "\u2581" not in pieces[i][0]]
    own = [
        [*generator.choices(kind, k=generator.randrange(size)), 1]
        for kind in (all_ids, no_space, all_ids + 40 * [0, 3, 4])
        for size in (2, 5, 15, 40)
        for _ in range(6)
    ] + [[*generator.choices(no_space[6:], k=80), 1]]
    flat = np.array([*itertools.chain(*own)], np.uint16)
    sentences = Sentences(flat, np.cumsum([0, *map(len, own)]))
    chosen = np.arange(len(own))[::-1].copy()
    dropout = Augmentation(pieces, share, 9, 10_000, {pieces[i][0]: i for i in NEVER_MERGED})
    found = lists(dropout.sentences(sentences, chosen, 3, 1))
    assert found == [
        by_definition(pieces, own[i], share, (9, 3, 1, int(i)), over_spaces) for i in chosen
    ]
    assert {len(ids) for ids in found} > {1, 2}


def test_bytes_and_user_defined_symbols_are_no_merges():
    lines = [f"{line} <ph>{i} <phx 0<ph>E4>" for i, line in enumerate(LINES)]
    learning = subwords.Learning(byte_fallback=True, user_defined_symbols=("<ph>",))
    raw = subwords.train([line for line in lines if "\u4e2d" not in line], 400, learning)
    model = subwords.load(raw)
    own = subwords.encode_lines(model, lines, 1)
    flat = np.array(list(itertools.chain(*own)), np.uint16)
    sentences = Sentences(flat, np.concatenate(([0], np.cumsum([*map(len, own)]))))
    for share in (1e-19, 0.5):  # of the first nothing is left in 64 bits
        augmentation = Augmentation.of_models([raw], DataConfig(bpe_dropout=share), 1, 1000)
        found = lists(augmentation.sentences(sentences, ALL, 0, 0))
        assert (found == own) == (share < 0.5)
        assert list(map(model.decode, found)) == list(map(model.decode, own)) == lines


def test_a_vocabulary_without_merges_is_refused():
    model = subwords.train(LINES, 60, subwords.Learning(vocabulary_type="unigram"))
    with pytest.raises(DataError, match="is not of byte-pair encoding"):
        Augmentation.of_models([model], DataConfig(bpe_dropout=0.1), 1, 9)
