#!/usr/bin/env bash
# CTranslate2 4.8.5: a vocabulary map's row for the end of the source is read, and never used.
#
# Guess: with add_source_eos each source ends with </s>, so a row "</s>" of vmap.txt gives its candidates to every
#   sentence, as the row of a piece does that stands in all of them.
# Seen:  only the tokens that the caller gives are looked up; the end is added later. Its candidates are used when the
#   caller writes </s>. And scores are over the candidates: 0.0 where a token is the only one.
# What follows: what an aligner gives the NULL word belongs in the row of no piece, and scores with a map are not
#   comparable with those without.
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

probabilities = {"<unk>": 1e-9, "<s>": 1e-9, "</s>": 0.1, "a": 0.1, "b": 0.2, "c": 0.6}
ctranslate2_constant_model.save("model", probabilities, add_source_eos=True)
with open("model/vmap.txt", "w") as file:
    file.write("a\tb\n</s>\tc\n")
translator = ctranslate2.Translator("model", device="cpu", compute_type="float32")
options = {"beam_size": 1, "max_decoding_length": 1, "return_scores": True, "length_penalty": 0}
seen = {}
for source, use_vmap in ((["a"], False), (["a"], True), (["a", "</s>"], True)):
    (result,) = translator.translate_batch([source], use_vmap=use_vmap, **options)
    seen[" ".join(source), use_vmap] = result.hypotheses[0], round(result.scores[0], 2)
print("ctranslate2", ctranslate2.__version__, seen)
assert seen["a", False][0] == ["c"], "it has changed"
assert seen["a", True] == (["b"], 0.0), "it has changed"
assert seen["a </s>", True][0] == ["c"], "it has changed"
END
