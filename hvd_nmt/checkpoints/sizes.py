"""The sizes of a checkpoint and of its weights, by the configuration alone. No TensorFlow."""

from collections.abc import Mapping
from typing import NamedTuple

from hvd_nmt.checkpoints import names
from hvd_nmt.config import ModelConfig

FLOAT_BYTES = 4
"""bytes of a weight, its average, a moment of Adam or a gradient: float32 in every precision"""


class CheckpointSize(NamedTuple):
    """What a checkpoint of a run takes."""

    trained: int
    """values of the weights that are not frozen, which have gradients"""
    n_bytes: int
    """bytes of weights, their average and slots; counters and names come on top"""


def predict(
    model: ModelConfig, vocabulary_size: int, *, freeze: str = "", averaged: bool = False,
    source_vocabulary_size: int = 0, slots: Mapping[str, int] | None = None,
) -> CheckpointSize:  # fmt: skip
    """The size of a checkpoint of a run; raises ConfigError if `freeze` names no weight.

    Vocabulary sizes are rows of matrices, pieces rounded up to a multiple of 8; the source's is 0
    without a matrix for it alone. `averaged`: there is a moving average. `slots`: how many values
    the optimizer keeps; None: Adam's moments.
    """
    weights = weight_sizes(model, vocabulary_size, source_vocabulary_size)
    kept = names.frozen(list(weights), freeze)
    trained = sum(size for path, size in weights.items() if path not in kept)
    parameters, copies = sum(weights.values()), 2 if averaged else 1
    kept_values = sum(slots.values()) if slots else 2 * trained
    return CheckpointSize(trained, FLOAT_BYTES * (copies * parameters + kept_values))


def weight_sizes(model: ModelConfig, rows: int, source_rows: int = 0) -> dict[str, int]:
    """The number of values of each weight of `model.transformer.Transformer`, by its path."""
    width, hidden, biases = model.width, model.feed_forward_width, model.biases == "all"
    norm = {"scale": width, "offset": width}
    attention = {"qkv": 3 * width**2, "output_kernel": width**2}
    cross = {"query": width**2, "key_value": 2 * width**2, "output_kernel": width**2}
    if biases:
        attention |= {"qkv_bias": 3 * width, "output_bias": width}
        cross |= {"query_bias": width, "key_value_bias": 2 * width, "output_bias": width}
    feed_forward = {"inner": width * hidden, "inner_bias": hidden}
    feed_forward |= {"outer": hidden * width, "outer_bias": width}
    encoder = {"attention": attention, "feed_forward": feed_forward}
    decoder = encoder | {"cross_attention": cross}
    stacks = ("encoder", model.encoder_layers, encoder), ("decoder", model.decoder_layers, decoder)
    weights = {"embedding": rows * width}
    if source_rows:
        weights["source_embedding"] = source_rows * width
    if model.positions == "learned":
        weights["positions"] = model.max_length * width
    if biases:
        weights["logits_bias"] = rows
    for stack, layers, sub_layers in stacks:
        for layer in range(layers):
            for name, inside in sub_layers.items():
                for part, sizes in ((f"{name}_norm", norm), (name, inside)):
                    weights |= {f"{stack}/{layer}/{part}/{w}": n for w, n in sizes.items()}
        if model.norm == "pre":
            weights |= {f"{stack}_norm/{weight}": n for weight, n in norm.items()}
    return weights
