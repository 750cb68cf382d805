"""A CTranslate2 model that gives each next token the same probability whatever it reads."""

import os

import numpy as np
from ctranslate2.specs import TransformerSpec

WIDTH = 4


def save(folder, probabilities, add_source_eos=False):
    """Make the folder and write the model into it; `probabilities`: of each piece, by its text."""
    spec = TransformerSpec.from_config(1, 1, pre_norm=True)
    for part in (spec.encoder, spec.decoder):
        _silence(part.layer[0])
        _normalise(part.layer_norm)
        part.position_encodings.encodings = np.zeros((8, WIDTH), "float32")
        part.scale_embeddings = False
    cross = spec.decoder.layer[0].attention
    _normalise(cross.layer_norm)
    for linear, rows in zip(cross.linear, (WIDTH, 2 * WIDTH, WIDTH), strict=True):
        _zero(linear, rows)
    shape = (len(probabilities), WIDTH)
    table = np.random.default_rng(1).normal(size=shape).astype("float32")
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = table
    spec.decoder.projection.weight = np.zeros(shape, "float32")
    spec.decoder.projection.bias = np.log(np.array([*probabilities.values()], "float32"))
    spec.register_source_vocabulary([*probabilities])
    spec.register_target_vocabulary([*probabilities])
    spec.validate()
    spec.optimize()
    spec.config.add_source_eos = add_source_eos
    os.mkdir(folder)
    spec.save(folder)


def _silence(layer):
    """A layer that adds nothing: what is left is the bias of the projection."""
    for norm in (layer.self_attention.layer_norm, layer.ffn.layer_norm):
        _normalise(norm)
    for linear, rows in zip(layer.self_attention.linear, (3 * WIDTH, WIDTH), strict=True):
        _zero(linear, rows)
    for linear in (layer.ffn.linear_0, layer.ffn.linear_1):
        _zero(linear, WIDTH)


def _normalise(norm):
    norm.gamma, norm.beta = np.ones(WIDTH, "float32"), np.zeros(WIDTH, "float32")


def _zero(linear, rows):
    linear.weight, linear.bias = np.zeros((rows, WIDTH), "float32"), np.zeros(rows, "float32")
