"""Rules of normalisation: what they keep, what they change, in SentencePiece and TensorFlow."""

import io
import unicodedata

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_nmt.model.tokenizer import Tokenizer
from hvd_nmt.preparation import normalization, subwords
from hvd_nmt.preparation.normalization import normalizer, normalizer_of, with_rule
from hvd_nmt.preparation.subwords import Learning

TEXTS = {
    "zh": ["我今天去商店，买了面包和牛奶。", "他说：“明天我们去学校！”",
           "价格是１２３元；很便宜。"],
    "ja": ["今日は「りんご」を３個買いました。", "ﾃｽﾄは明日です！", "神\ufa19様"],
    "fa": ["من می\u200cخواهم به خانه بروم.", "کتاب\u200cها روی میز هستند؟"],
    "hi": ["क्\u200dष और क़लम", "वह \u0958लम लाया।"],
    "th": ["ฉันไปตลาดทุกวัน", "น้ำ\u200bแข็ง"],
    "fr": ["Où est la gare\u00a0? Je ne sais pas…", "10⁻³ m², ½ ℃, №\u202f5, ﬁn ™"],
    "he": ["שָׁלוֹם עוֹלָם", "הַכֶּלֶב\u200f רָץ"], "si": ["ශ්\u200dරී ලංකාව"],
    "ko": ["나는 학교에 갔다."], "vi": ["Tiếng Việt rất đẹp."],
}  # fmt: skip


@pytest.mark.parametrize("code", TEXTS)
def test_targets_come_back_as_they_were(code):
    model = subwords.load(subwords.train(TEXTS[code] * 4, 200))
    assert [model.decode(model.encode(line)) for line in TEXTS[code]] == TEXTS[code]


@settings(deadline=None, max_examples=300)
@given(st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="\u2581")))
def test_nfc_changes_nothing_but_composition(text):
    new = normalizer("nfc")(text)
    assert unicodedata.normalize("NFC", new) == unicodedata.normalize("NFC", text)
    assert normalizer("nfc")(new) == new
    assert normalizer("identity")(text) == text


def test_letters_with_marks_are_composed():
    for text in ("Tiếng Việt ệ ḗ ᾄ", "한국어 각", "größe ǭ"):
        apart = unicodedata.normalize("NFD", text)
        assert apart != text
        assert normalizer("nfc")(apart) == normalizer("visible")(apart) == text
    assert normalizer("nfc")("e\u0302\u0323 e\u0323\u0302 \u1eb9\u0302") == "ệ ệ ệ"


def test_visible_takes_what_nobody_sees():
    changed = {
        "Mo\u00adna\u00adco": "Monaco", "ro\u200bse": "rose", "a\u2060b\ufeff": "ab",
        "\u202abread\u200e\u202c": "bread", "a\u00a0b\u3000c\u2009 d": "a b c d",
        "\u0958": "\u0915\u093c", "\ufa19 \u212b": "\u795e \u00c5",
    }  # fmt: skip
    assert {text: normalizer("visible")(text) for text in changed} == changed
    for kept in ("می\u200cخواهم", "ශ්\u200dරී", "❤\ufe0f", "，１½…ﬁ"):
        assert normalizer("visible")(kept) == kept


@pytest.fixture(scope="module")
def folding():
    """A model of an English corpus, as sources have it."""
    lines = [
        "In Monaco, the price of bread rose by 60% in 2015.",
        "Quiz: why? Jade 34789, box!",
    ] * 9
    return with_rule(subwords.train(lines, 90), "visible", folds=True)


def test_unknown_characters_are_read_as_known_ones(folding):
    normal = normalizer_of(folding)
    read = {
        "６０％ in ２０１５": "60% in 2015", "٢٠١٥": "2015", "२०": "20", "Jádé": "Jade",
        "Ja\u0301de": "Jade", "pri\u200dce": "price", "brea\ufe0fd": "bread", "ﬁ": "fi", "①": "1",
        "½ ¿ 日": "½ ¿ 日",
    }  # fmt: skip
    assert {text: normal(text) for text in read} == read


def test_bytes_write_letters_with_unknown_marks():
    learning = Learning(byte_fallback=True)
    model = with_rule(subwords.train(["Jade 2015"] * 9, 300, learning), "visible", folds=True)
    assert normalizer_of(model)("Jádé ２０1５") == "Jádé 2015"


def test_tensorflow_reads_the_same(folding, tmp_path):
    (tmp_path / "spm.model").write_bytes(folding)
    ours, theirs = subwords.load(folding), Tokenizer(tmp_path / "spm.model")
    lines = ["６０％ Jádé pri\u200dce Mo\u00adnaco", *TEXTS["fr"], *TEXTS["fa"]]
    assert [ids.tolist() for ids in theirs.encode(lines)] == subwords.encode_lines(ours, lines)


def test_the_recipes_rule_gives_the_bytes_that_sentencepiece_gives():
    lines = ["größe １２３ ½", "a\u200bb ﬁn"] * 9
    stream = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=stream, model_type="bpe", vocab_size=64,
        hard_vocab_limit=False, character_coverage=1.0, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        num_threads=1, minloglevel=2,
    )  # fmt: skip
    learning = Learning(normalization_rule="nmt_nfkc")
    assert subwords.train(lines, 64, learning) == stream.getvalue()


def test_what_changes():
    lines = ["plain", "a\u00a0b  c", "Mo\u00adnaco", "cafe\u0301 a\u00a0b", "  x"]
    found = normalization.changes(normalizer("visible"), lines)
    assert found == (3, {("\u00a0", " "): 2, ("\u00ad", ""): 1})
    assert normalization.changes(normalizer("nfc"), ["cafe\u0301"]) == (1, {("e\u0301", "é"): 1})
    assert normalization.changes(normalizer("nfkc_cf"), ["A", "a"]) == (1, {("A", "a"): 1})
