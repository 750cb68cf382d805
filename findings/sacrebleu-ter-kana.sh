#!/usr/bin/env bash
# sacreBLEU 2.6.0: TER with asian_support does not split kana.
#
# Guess: TER(normalized=True, asian_support=True), `sacrebleu -m ter --ter-normalized --ter-asian-support`, splits
#   Japanese into characters, as it does Chinese. So one wrong character of ten costs 10, in hiragana too.
# Seen:  kanji are split, and one wrong of ten costs 10. A run of hiragana or katakana stays one word: the same
#   mistake costs 100. In sacrebleu/tokenizers/tokenizer_ter.py the "^" of the kana patterns stands before the
#   brackets, where it is the start of the line, and not within them.
# What follows: TER of Japanese depends on how much kana a sentence has. chrF, or BLEU with ja-mecab or char, does not.
#
# Needs Python 3 and PyPI; installs into a temporary folder. Ends with 1 if this is no longer so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q sacrebleu==2.6.0
"$work/venv/bin/python" - <<'END'
import sacrebleu

ter = sacrebleu.TER(normalized=True, asian_support=True)
scores = {}
for name, text, wrong in (
    ("kanji", "山川田中木村上下左右", "山川田中木村上下左石"),
    ("hiragana", "あいうえおかきくけこ", "あいうえおかきくけさ"),
    ("katakana", "アイウエオカキクケコ", "アイウエオカキクケサ"),
):
    scores[name] = round(ter.corpus_score([wrong], [[text]]).score, 1)
print("sacrebleu", sacrebleu.__version__, scores)
assert scores == {"kanji": 10.0, "hiragana": 100.0, "katakana": 100.0}, "it has changed"
END
