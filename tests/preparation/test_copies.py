"""Copies of training pairs: what noise and BPE-dropout may do, and that nothing else decides."""

import random

import pytest

from hvd_nmt import prepare
from hvd_nmt.data import corpus
from hvd_nmt.preparation import subwords
from hvd_nmt.preparation.copies import Copier, Copying, Noise, flat, noised

LINES = [f"the big man {i} sees a dog at www.dogs.org, and a child" for i in range(100)]
PAIR = ("Two dogs, one cat at www.dogs.org.", "Zwei Hunde, eine Katze auf www.dogs.org.")
ALWAYS = 1 - 1e-9


@pytest.fixture(scope="module")
def model():
    return subwords.load(subwords.train(LINES + [line.upper() for line in LINES], 200))


def copies_of(model, copying, lines, max_length=60):
    plain = flat(subwords.encode_lines(model, lines))
    pairs = list(zip(lines, lines, strict=True))
    made = Copier([model, model], copying).copies(
        pairs, range(len(lines)), (plain, plain), max_length
    )
    return [[ids[end - n : end].tolist() for n, end in zip(lengths, lengths.cumsum(), strict=True)]
            for ids, lengths in made]  # fmt: skip


def test_bpe_dropout_cuts_the_same_text_in_other_ways(model):
    source, target = copies_of(model, Copying(bpe_dropout=0.3, copies=4), LINES)
    assert len(source) == len(target) == 400
    own = subwords.encode_lines(model, LINES)
    assert [model.decode(ids) for ids in source] == [line for line in LINES for _ in range(4)]
    assert all(ids[-1] == 1 for ids in source)
    assert len({tuple(ids) for ids in source}) > 380
    assert source != target, "each side has its own chance"
    assert copies_of(model, Copying(bpe_dropout=0.3), []) == [[], []]
    assert 1.1 * sum(map(len, own)) < sum(map(len, source)) / 4 < 3 * sum(map(len, own))
    assert copies_of(model, Copying(bpe_dropout=0.3, copies=4), LINES) == [source, target]
    assert copies_of(model, Copying(0.3, copies=4, seed=2), LINES) != [source, target]


def test_without_refused_merges_the_cut_is_sentencepieces_own(model):
    own = subwords.encode_lines(model, LINES)
    assert copies_of(model, Copying(bpe_dropout=1e-12, copies=1), LINES) == [own, own]


def test_what_would_be_too_long_or_unknown_stays_as_it_is(model):
    longest = max(map(len, subwords.encode_lines(model, LINES)))
    half = copies_of(model, Copying(bpe_dropout=0.5, copies=1), LINES, max_length=longest)
    assert all(len(ids) <= longest for ids in half[0])
    new = Copying(noise=Noise(typos=ALWAYS), copies=1)
    lines = ["dog dog xylophone", *LINES]  # q, z and w are not in the text
    for ids in copies_of(model, new, lines)[0][1:]:
        assert 3 not in ids


@pytest.mark.parametrize(
    ("rates", "source", "target"),
    [
        ({"upper_case": ALWAYS}, "TWO DOGS, ONE CAT AT www.dogs.org.",
         "ZWEI HUNDE, EINE KATZE AUF www.dogs.org."),
        ({"title_case": ALWAYS}, "Two Dogs, One Cat At www.dogs.org.",
         "Zwei Hunde, Eine Katze Auf www.dogs.org."),
        ({"no_punctuation": ALWAYS}, PAIR[0][:-1], PAIR[1][:-1]),
    ],
)  # fmt: skip
def test_noise_of_both_sides(rates, source, target):
    assert noised(PAIR, Noise(**rates), random.Random(1).random) == (source, target)


def test_each_side_has_the_capitals_of_its_language():
    pair, draw = ("in istanbul", "istanbul ılık"), random.Random(1).random
    found = noised(pair, Noise(upper_case=ALWAYS), draw, languages=("en", "tr"))
    assert found == ("IN ISTANBUL", "İSTANBUL ILIK")
    assert noised(("I go.", "ฉันไป"), Noise(no_punctuation=ALWAYS), draw) == ("I go.", "ฉันไป")


def test_misspelled_words_are_of_letters_and_of_the_source():
    rates = Noise(typos=ALWAYS, spaces=0.5)
    found = [noised(PAIR, rates, random.Random(seed).random) for seed in range(200)]
    assert {target for _, target in found} == {PAIR[1]}
    sources = [source for source, _ in found]
    assert all(source.endswith(" at www.dogs.org.") for source in sources)
    assert len(set(sources)) > 150
    assert all("," in source for source in sources), "marks stay at the end of their words"


def test_an_emoji_is_the_same_on_both_sides_behind_tags():
    pair, rates = ("<2de> <bt> a dog", "ein Hund"), Noise(emoji=ALWAYS)
    found = {
        noised(pair, rates, random.Random(seed).random, {"<2de>", "<bt>"}, ["🔥"])
        for seed in range(20)
    }
    assert found == {("<2de> <bt> 🔥 a dog", "🔥 ein Hund"), ("<2de> <bt> a dog 🔥", "ein Hund 🔥")}
    assert noised(pair, rates, random.Random(1).random, (), []) == pair
    capitals = noised(pair, Noise(upper_case=ALWAYS), random.Random(1).random, {"<2de>", "<bt>"})
    assert capitals == ("<2de> <bt> A DOG", "EIN HUND")


def test_prepare_writes_them_beside_the_text(tmp_path, capsys, monkeypatch):
    for part, lines in (("train", LINES), ("dev", LINES[:5]), ("to", LINES), ("dev.to", LINES[:5])):
        (tmp_path / part).write_text("\n".join(lines) + "\n", encoding="utf-8")
    argv = [
        "--train-source", str(tmp_path / "train"), "--train-target", str(tmp_path / "to"),
        "--dev-source", str(tmp_path / "dev"), "--dev-target", str(tmp_path / "dev.to"),
        "--vocabulary-size", "120", "--out",
    ]  # fmt: skip
    assert prepare.main([*argv, str(tmp_path / "plain")]) == 0
    more = ["--bpe-dropout", "0.2", "--noise.upper-case", "0.1", "--copies", "3"]
    assert prepare.main([*argv, str(tmp_path / "out"), *more]) == 0
    assert prepare.main([*argv, str(tmp_path / "out"), *more]) == 0
    assert "nothing to prepare" in capsys.readouterr().out
    plain, data = (corpus.load(tmp_path / name, verify=True) for name in ("plain", "out"))
    assert len(data.copies) == 3 * len(data.train)
    assert (data.epochs, plain.epochs, plain.copies) == (data.copies, plain.train, None)
    model = subwords.load(data.spm_path.read_bytes())
    for i in range(30):
        assert model.decode(data.copies.source[i].tolist()).lower() == LINES[i // 3]
    for name, facts in plain.manifest.files.items():
        assert data.manifest.files[name] == facts
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert prepare.main([*argv, str(tmp_path / "one"), *more]) == 0
    assert corpus.load(tmp_path / "one").manifest.hash == data.manifest.hash
    unigram = ["--vocabulary-type", "unigram"]
    assert prepare.main([*argv, str(tmp_path / "none"), *more, *unigram]) == 3
    assert "--bpe-dropout needs a byte-pair vocabulary" in capsys.readouterr().err
