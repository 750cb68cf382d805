#!/usr/bin/env bash
# sacreBLEU 2.6.0: a blank line in a second reference is a reference of length 0, and can treble BLEU.
#
# Guess: a line that is missing in one of several references (there are such sets, and files mark it by a blank line)
#   adds nothing: the score is that of the references which are there.
# Seen:  the blank line counts as a translation of no words. A hypothesis that is much too short is then nearest to it
#   in length, so the brevity penalty goes: BLEU 100.00 where without the line it is 28.65. None in its place is
#   what sacreBLEU takes for missing; the command line has no way to say it.
# What follows: two scores on the same set differ by how a missing line is written.
#
# Needs Python 3 and PyPI; installs into a temporary folder. Ends with 1 if this is no longer so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q sacrebleu==2.6.0
"$work/venv/bin/python" - <<'END'
import sacrebleu

words = "a b c d e f g h i".split()
hypothesis, reference = [" ".join(words[:4])], [" ".join(words)]
scores = [
    round(sacrebleu.corpus_bleu(hypothesis, references).score, 2)
    for references in ([reference], [reference, [""]], [reference, [None]])
]
print("sacrebleu", sacrebleu.__version__, scores)
assert scores == [28.65, 100.0, 28.65], "it has changed"
END
