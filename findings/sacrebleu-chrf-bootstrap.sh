#!/usr/bin/env bash
# sacreBLEU 2.6.0: the interval of chrF is a TypeError where some resamples match nothing.
#
# Guess: corpus_score(..., n_bootstrap=1000) gives an interval for any text that has a score; where a resample matches
#   nothing its score is 0 as a float, like all others.
# Seen:  scores of resamples are float32 (their statistics are), but a score of nothing is the float 0.0, and Python's
#   statistics.mean refuses the mixture: "don't know how to coerce float and float32". BLEU has no such mixture. The
#   command's paired test (significance.PairedTest) takes numpy's mean, and gives 37.36 with an interval of 50.0.
# What follows: chrF of a few sentences, or of a model that has learned nothing yet, ends a program that asks for it.
#
# Needs Python 3 and PyPI; installs into a temporary folder. Ends with 1 if this is no longer so.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q sacrebleu==2.6.0
"$work/venv/bin/python" - <<'END'
import sacrebleu
from sacrebleu.significance import PairedTest

hypotheses, references = ["A A A", "b c", "q"], [["A A A", "xyz", "xyz"]]
try:
    sacrebleu.CHRF().corpus_score(hypotheses, references, n_bootstrap=1000)
    seen = "an interval"
except TypeError as error:
    seen = str(error)
test = PairedTest([("x", hypotheses)], {"chrF": sacrebleu.CHRF()}, references, "bs", 1000)
(result,) = test()[1]["chrF2"]
print("sacrebleu", sacrebleu.__version__, seen, round(result.score, 2), round(float(result.ci), 2))
assert "coerce float" in seen, "it has changed"
assert (round(result.score, 2), round(float(result.ci), 2)) == (37.36, 50.0), "it has changed"
END
