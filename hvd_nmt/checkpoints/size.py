"""How many values a model has; bytes of a checkpoint, of a step's gradients and of their way."""

from dataclasses import dataclass

from hvd_nmt.config import ModelConfig
from hvd_nmt.config import freeze as parts

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Prediction:
    """A checkpoint of a run."""

    parameters: int
    """weights of the model"""
    trained: int
    """those that are not frozen, which have gradients and two moments of Adam"""
    averaged: bool
    """whether there is a moving average of the weights"""

    @property
    def n_bytes(self) -> int:
        """Weights, their average and moments, float32; counters and names come on top."""
        return _FLOAT_BYTES * (self.parameters * (1 + self.averaged) + 2 * self.trained)


def predict(
    model: ModelConfig,
    vocabulary_size: int,
    *,
    freeze: str = "",
    averaged: bool = False,
    source_vocabulary_size: int = 0,
) -> Prediction:
    """The values that a checkpoint of a run holds; raises ConfigError if `freeze` names no weight.

    Args:
        vocabulary_size: rows of the shared matrix: pieces rounded up to a multiple of 8.
        averaged: whether there is a moving average (`training.ema_decay`).
        source_vocabulary_size: rows of the source's own matrix; 0: it has none.
    """
    weights = weight_sizes(model, vocabulary_size, source_vocabulary_size)
    kept = parts.frozen(list(weights), freeze)
    trained = sum(size for path, size in weights.items() if path not in kept)
    return Prediction(sum(weights.values()), trained, averaged)


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
    stacks = ("encoder", model.encoder_layers, encoder), (
        "decoder", model.decoder_layers, encoder | {"cross_attention": cross},
    )  # fmt: skip
    found = {"embedding": rows * width}
    if source_rows:
        found["source_embedding"] = source_rows * width
    if model.positions == "learned":
        found["positions"] = model.max_length * width
    if biases:
        found["logits_bias"] = rows
    for stack, layers, sub_layers in stacks:
        for layer in range(layers):
            for name, weights in sub_layers.items():
                for part, of_part in ((f"{name}_norm", norm), (name, weights)):
                    found |= {f"{stack}/{layer}/{part}/{w}": n for w, n in of_part.items()}
        if model.norm == "pre":
            found |= {f"{stack}_norm/{weight}": n for weight, n in norm.items()}
    return found


def bytes_of_gradients(trained_parameters: int) -> int:
    """Bytes of a step's gradients, float32 whatever the precision; frozen weights have none."""
    return _FLOAT_BYTES * trained_parameters


def ring_bytes(gradient_bytes: float, ranks: int) -> float:
    """Bytes each rank sends in one ring all-reduce: 2 (N-1)/N x the gradients.

    Where a host holds neighbours of the ring, this is also what the host sends over its network.
    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms".
    """
    return 2 * (ranks - 1) / ranks * gradient_bytes
