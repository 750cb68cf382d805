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
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q ctranslate2==4.8.5 numpy
cd "$work"
"$work/venv/bin/python" - <<'END'
import os

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec

width, pieces = 4, ["<unk>", "<s>", "</s>", "a"]
spec = TransformerSpec.from_config(1, 1, pre_norm=True)
rng = np.random.default_rng(1)


def zeros(layer):
    """A layer that adds nothing: what is left is the bias of the projection."""
    for norm in (layer.self_attention.layer_norm, layer.ffn.layer_norm):
        norm.gamma, norm.beta = np.ones(width, "float32"), np.zeros(width, "float32")
    shapes = [(3 * width, width), (width, width)]
    for linear, shape in zip(layer.self_attention.linear, shapes):
        linear.weight, linear.bias = np.zeros(shape, "float32"), np.zeros(shape[0], "float32")
    for linear in (layer.ffn.linear_0, layer.ffn.linear_1):
        linear.weight, linear.bias = np.zeros((width, width), "float32"), np.zeros(width, "float32")


for part in (spec.encoder, spec.decoder):
    zeros(part.layer[0])
    part.layer_norm.gamma, part.layer_norm.beta = np.ones(width, "float32"), np.zeros(width, "float32")
    part.position_encodings.encodings = np.zeros((8, width), "float32")
    part.scale_embeddings = False
cross = spec.decoder.layer[0].attention
cross.layer_norm.gamma, cross.layer_norm.beta = np.ones(width, "float32"), np.zeros(width, "float32")
for linear, rows in zip(cross.linear, (width, 2 * width, width)):
    linear.weight, linear.bias = np.zeros((rows, width), "float32"), np.zeros(rows, "float32")
table = rng.normal(size=(4, width)).astype("float32")
spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = table
spec.decoder.projection.weight = np.zeros((4, width), "float32")
spec.decoder.projection.bias = np.log(np.array([1e-9, 1e-9, 0.5, 0.5], "float32"))
spec.register_source_vocabulary(pieces)
spec.register_target_vocabulary(pieces)
spec.validate()
spec.optimize()
os.mkdir("model")
spec.save("model")
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
