"""The vocabulary: the recipe's ids, the same bytes every time."""

import pytest
import sentencepiece

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.preparation import subwords
from toy import python

LINES = [
    "A man in a green jacket waters the old garden behind his house.",
    "Ein Mann in grüner Jacke gießt den alten Garten hinter seinem Haus.",
    "Two children are playing with 12 coloured balls, aren't they?",
    "The quick brown fox jumps over the lazy dog.",
    "Zwei Kinder spielen mit 12 bunten Bällen, nicht wahr?",
] * 20


@pytest.fixture(scope="module")
def model():
    return subwords.load(subwords.train(LINES, 200))


def test_the_size_is_rounded_up_to_a_multiple_of_8():
    assert [subwords.rounded_up(n) for n in (0, 1, 8, 9, 32_768)] == [0, 8, 8, 16, 32_768]
    assert subwords.load(subwords.train(LINES, 101)).get_piece_size() == 104
    # A small corpus gives fewer pieces.
    assert 100 < subwords.load(subwords.train(LINES, 8000)).get_piece_size() < 8000


def test_training_is_deterministic_with_the_ids_of_the_recipe(model):
    assert [model.id_to_piece(i) for i in range(4)] == ["<pad>", "</s>", "<s>", "<unk>"]
    assert (subwords.PAD, subwords.EOS, subwords.BOS, subwords.UNK) == (0, 1, 2, 3)
    script = (
        "import hashlib; from hvd_nmt.preparation import subwords;"
        f"print(hashlib.sha256(subwords.train({LINES!r}, 200)).hexdigest())"
    )
    environments = ({"PYTHONHASHSEED": seed, "PYTHONPATH": "."} for seed in "12")
    assert len({python("-c", script, env=each).stdout for each in environments}) == 1


def test_lines_end_with_eos(model):
    one = subwords.encode_lines(model, [*LINES, "a </s> <pad> <s>", "", " ", "x" * 10_000])
    special = {subwords.PAD, subwords.EOS, subwords.BOS}  # no text is one of these
    assert all(ids[-1] == subwords.EOS and not special & {*ids[:-1]} for ids in one)
    assert one[-2] == one[-3] == [subwords.EOS]


def test_what_cannot_be_learned_is_a_sentence_to_the_user():
    with pytest.raises(DataError, match="SentencePiece cannot make a vocabulary from the text: "):
        subwords.train(["x" * 5000], 100)
    alphabet = [" ".join(map(chr, range(0x4E00, 0x4E00 + 100)))]
    with pytest.raises(DataError, match=r"8 is too small .* give at least \d+\.") as caught:
        subwords.train(alphabet, 8)
    least = int(str(caught.value).split("at least ")[1].rstrip("."))
    assert subwords.load(subwords.train(alphabet, least)).get_piece_size() <= least


def test_a_tag_that_is_given_twice_is_refused():
    with pytest.raises(ConfigError, match="tag '<a>'"):
        subwords.Learning(tags=("<a>", "<a>"))


@pytest.mark.parametrize(
    ("options", "says"),
    [({"treat_whitespace_as_suffix": True, "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3},
      "train it without --treat_whitespace_as_suffix"),
     ({}, r"theirs\.model has other ids for pad, eos, bos and unk")],
)  # fmt: skip
def test_a_vocabulary_of_another_form_is_refused(tmp_path, options, says):
    prefix = tmp_path / "theirs"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_prefix=prefix, vocab_size=80, minloglevel=2, **options
    )
    with pytest.raises(DataError, match=says):
        subwords.require_fit(prefix.with_suffix(".model"), [])
