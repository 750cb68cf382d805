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

width, pieces = 4, ["<unk>", "<s>", "</s>", "a", "b", "c"]
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
table = rng.normal(size=(6, width)).astype("float32")
spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = table
spec.decoder.projection.weight = np.zeros((6, width), "float32")
spec.decoder.projection.bias = np.log(np.array([1e-9, 1e-9, 0.1, 0.1, 0.2, 0.6], "float32"))
spec.register_source_vocabulary(pieces)
spec.register_target_vocabulary(pieces)
spec.validate()
spec.optimize()
spec.config.add_source_eos = True
os.mkdir("model")
spec.save("model")
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
