"""Letters, words, capitals and sentence ends of many scripts; tokenizers for BLEU."""

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.data import language


@pytest.mark.parametrize(
    ("code", "base", "scripts", "tokenizer"),
    [
        ("deu", "de", "Latn", "13a"), ("eng_Latn", "en", "Latn", "13a"),
        ("cmn", "zh", "Hani", "zh"), ("yue", "yue", "Hani", "zh"), ("zh_TW", "zh", "Hani", "zh"),
        ("jpn", "ja", "Hani Hira Kana", None), ("ko", "ko", "Hang Hani", None),
        ("th", "th", "Thai", "char"), ("khm", "km", "Khmr", "char"),
        ("srp_Cyrl", "sr", "Cyrl", "13a"), ("pes", "fa", "Arab", "13a"),
        ("hin", "hi", "Deva", "13a"), ("no", "no", "Latn", "13a"),
    ],
)  # fmt: skip
def test_codes_of_two_and_three_letters(code, base, scripts, tokenizer, monkeypatch):
    monkeypatch.setattr(language, "find_spec", lambda name: None)
    assert (language.base(code), " ".join(language.scripts(code))) == (base, scripts)
    assert language.bleu_tokenizer(code) == (tokenizer or "char")
    monkeypatch.setattr(language, "find_spec", lambda name: name)
    assert language.bleu_tokenizer(code) == (tokenizer or f"{base}-mecab")


def test_a_language_that_nobody_knows():
    for code in ("source", "cmn_Hanz"):
        with pytest.raises(ConfigError, match=f"No script is known for the language '{code}'"):
            language.scripts(code)
    assert language.bleu_tokenizer("source") == "13a"


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        ("A man , sees a dog .", 7, ""), ("", 1, ""), ("मैं घर जाता हूँ।", 4, ""),
        ("من می\u200cخواهم بروم.", 3, ""), ("나는 학교에 갔다.", 3, "ko"),
        ("我今天去商店，买了面包和牛奶。", 13 / 1.5, "zh"),
        ("今日は「りんご」を３個買いました。", 13 / 1.5 + 1, "ja"),
        ("ฉันไปตลาดทุกวัน", 4, "th"), ("我今天有 iPhone", 4 / 1.5 + 1, ""),
    ],
)  # fmt: skip
def test_words(line, words, code):
    assert language.words(line) == pytest.approx(words, abs=0.1)
    assert language.language_of([line]) == code


def test_shares_of_scripts():
    shares = language.script_shares(["Größe ЖЖ", "日本 2015!", "Ａー"])
    assert shares == {"Latin": 6 / 11, "Cyrillic": 2 / 11, "Han": 2 / 11, "Katakana": 1 / 11}


@pytest.mark.parametrize(
    ("code", "text", "upper", "title"),
    [
        ("tr", "istanbul ılık ve iyi", "İSTANBUL ILIK VE İYİ", "İstanbul Ilık Ve İyi"),
        ("aze", "bizim işimiz", "BİZİM İŞİMİZ", "Bizim İşimiz"),
        ("nl", "het ijs is koud", "HET IJS IS KOUD", "Het IJs Is Koud"),
        ("de", "die straße ist naß", "DIE STRASSE IST NASS", "Die Straße Ist Naß"),
        ("el", "καλημέρα κόσμε", "ΚΑΛΗΜΕΡΑ ΚΟΣΜΕ", "Καλημέρα Κόσμε"),
        ("el", "μάιος ρολόι έξω", "ΜΑΪΟΣ ΡΟΛΟΪ ΕΞΩ", "Μάιος Ρολόι Έξω"),
        ("en", '"hello (world) «yes» 5', '"HELLO (WORLD) «YES» 5', '"Hello (World) «Yes» 5'),
        ("nl", "'s morgens 5km 1st", "'S MORGENS 5KM 1ST", "'s Morgens 5km 1st"),
        ("fa", "کتاب\u200cها", "کتاب\u200cها", "کتاب\u200cها"),
    ],
)
def test_capitals(code, text, upper, title):
    assert language.upper(text, code) == upper
    assert " ".join(language.capitalized(word, code) for word in text.split()) == title


@pytest.mark.parametrize(
    ("line", "without"),
    [
        ("Ja!", "Ja"), ("Wait...", "Wait"), ('He said "yes."', 'He said "yes"'), ("سلام؟", "سلام"),
        ("آمد۔", "آمد"), ("वह गया।", "वह गया"), ("他说：“好。”", "他说：“好”"),
        ("行きます。", "行きます"),
        ("ฉันไปตลาด", "ฉันไปตลาด"), ("a.", "a."), ("www.x.org", "www.x.org"),
    ],
)  # fmt: skip
def test_marks_at_the_end(line, without):
    assert language.without_mark(line) == without


def test_sentences_in_a_row():
    assert language.joined(["我去。", "他来。", "", "OK."]) == "我去。他来。OK."
    assert language.joined(["行く", "犬"]) == "行く犬"
    assert language.joined(["Yes.", "No."]) == "Yes. No."
    assert language.joined(["ไป", "มา"]) == "ไป มา"
    assert [language.ends_sentence(text, False) for text in ("好。”", "Yes.", "好，")] == [1, 0, 0]
    assert [language.ends_sentence(text, True) for text in ("Yes.)", "है।", "and")] == [1, 1, 0]
