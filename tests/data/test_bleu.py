"""BLEU and TER by the language of a target."""

from types import SimpleNamespace

import pytest
import sacrebleu

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.schema import Tokenizer
from hvd_nmt.data import bleu, language

TEXTS = {
    "de": ("13a", "Der Mann sieht den großen Hund.", "groß"),
    "fa": ("13a", "او کتاب‌ها را می‌خواند و می‌نویسد.", "کتاب"),
    "ja": ("char", "私は昨日、新しい本を三冊買いました。", "昨"),
    "yue": ("zh", "我哋今日去商店買麵包。", "商"),
    "hi": ("13a", "वह हर दिन बाज़ार जाता है।", "दिन"),
    "th": ("char", "ฉันไปตลาดทุกเช้า", "ตลาด"),
}
"""language -> tokenizer without MeCab, a sentence, and what another one lacks of it"""


def manifest(target, **corpora):
    of = [SimpleNamespace(name=name, target_language=code) for name, code in corpora.items()]
    return SimpleNamespace(target_language=target, corpora=of)


@pytest.fixture
def no_mecab(monkeypatch):
    monkeypatch.setattr(language, "find_spec", lambda name: None)
    of = sacrebleu.metrics.bleu._get_tokenizer

    def tokenizer(name):
        if name.endswith("-mecab"):
            raise RuntimeError
        return of(name)

    monkeypatch.setattr(sacrebleu.metrics.bleu, "_get_tokenizer", tokenizer)


@pytest.mark.parametrize("code", TEXTS)
def test_a_sentence_against_itself_and_against_one_that_differs_a_little(code, no_mecab):
    tokenizer, text, lost = TEXTS[code]
    assert bleu.tokenizers("auto", manifest(code)) == {"": tokenizer}
    assert bleu.tokenizers("intl", manifest(code)) == {"": "intl"}
    for line, least, most in ((text, 100, 100), (text.replace(lost, ""), 40, 95)):
        score = bleu.metric(tokenizer).corpus_score([line], [[text]]).score
        assert least <= round(score, 6) <= most
    if code in ("ja", "yue"):  # a letter more is no more than that
        assert bleu.ter(tokenizer).corpus_score([text + lost], [[text]]).score < 10
    assert bleu.name(tokenizer) == ("BLEU" if tokenizer == "13a" else f"BLEU[{tokenizer}]")


def test_each_of_several_corpora_has_its_own(no_mecab):
    of = bleu.tokenizers("auto", manifest("en", fr="fr", ja="ja", zh="zh"))
    assert of == {"": "13a", "fr": "13a", "ja": "char", "zh": "zh"}
    assert bleu.tokenizers("auto", manifest("en", a="zh", b="yue"))[""] == "zh"


def test_a_missing_mecab_is_said_and_every_choice_is_sacrebleu_s(no_mecab):
    with pytest.raises(ConfigError, match=r"needs MeCab .* pip install 'sacrebleu\[ja\]'\."):
        bleu.metric("ja-mecab")
    assert {*Tokenizer.__args__} - {"auto"} <= sacrebleu.BLEU.TOKENIZERS
