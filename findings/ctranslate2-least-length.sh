#!/usr/bin/env bash
# CTranslate2 4.8.5: the least length of a translation changes the score of its first token.
#
# Guess: min_decoding_length=1, the default, only keeps a translation from being empty. What is not empty has the same
#   score with 0 and with 1, and the score that `score_batch` gives its first token.
# Seen:  the end of the sentence is taken out before the softmax, so the probabilities of all other tokens grow: with
#   an end that has half of the probability, the other token's score is 0.0 where score_batch has -0.693.
# What follows: scores of CTranslate2 are not comparable with those of the model where an empty translation is likely,
#   and a filter by score (of synthetic or noisy text, where it is) keeps the wrong lines.
#
# Needs Python 3 and PyPI; installs into a temporary folder. Ends with 1 if this is no longer so.
set -euo pipefail
export PYTHONPATH=$(cd "$(dirname "$0")" && pwd) PYTHONDONTWRITEBYTECODE=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q ctranslate2==4.8.5 numpy
cd "$work"
"$work/venv/bin/python" - <<'END'
import ctranslate2
import ctranslate2_constant_model

probabilities = {"<unk>": 1e-9, "<s>": 1e-9, "</s>": 0.5, "a": 0.5}
ctranslate2_constant_model.save("model", probabilities)
translator = ctranslate2.Translator("model", device="cpu", compute_type="float32")
options = {"beam_size": 1, "max_decoding_length": 1, "return_scores": True, "length_penalty": 0}
seen = {}
for least in (0, 1):
    (result,) = translator.translate_batch(
        [["a"]], target_prefix=None, min_decoding_length=least, num_hypotheses=1,
        sampling_topk=1, **options,
    )
    seen[least] = result.hypotheses[0], round(result.scores[0], 3)
(scored,) = translator.score_batch([["a"]], [["a"]])
print("ctranslate2", ctranslate2.__version__, seen, [round(x, 3) for x in scored.log_probs])
assert seen[1] == (["a"], 0.0), "it has changed"
assert round(scored.log_probs[0], 3) == -0.693, "it has changed"
END
