"""What averaging the last checkpoints brings: the mean of their weights, scored.

Source: Vaswani et al. 2017, section 6.1, average the last 5 checkpoints of the base model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import sacrebleu

from hvd_nmt.checkpoints import contents, index_file
from hvd_nmt.checkpoints.size import weight_keys
from hvd_nmt.common.errors import RunError

if TYPE_CHECKING:
    from hvd_nmt.model.tokenizer import Tokenizer
    from hvd_nmt.model.transformer import Transformer
    from hvd_nmt.model.translator import Translator

Weights = dict[str, np.ndarray]
"""key of a weight in the checkpoint -> its values, float32"""


def average(prefixes: Sequence[Path]) -> Weights:
    """The mean of the weights of some checkpoints of one model; of one, its weights.

    Summed in float64, one weight after the other: memory holds the result and one weight more.

    Args:
        prefixes: of checkpoints of this package.

    Raises:
        RunError: none is given, one cannot be read, or they are of different models.
    """
    if not prefixes:
        raise RunError("No checkpoint is given to average: name at least one.")
    each = [_weights(prefix) for prefix in prefixes]
    for prefix, weights in zip(prefixes, each, strict=True):
        if {n: w.shape for n, w in weights.items()} != {n: w.shape for n, w in each[0].items()}:
            raise RunError(f"{prefix} and {prefixes[0]} are of different models: no mean exists.")
    return {name: _mean([weights[name] for weights in each]) for name in each[0]}


def moving_average(prefix: Path) -> Weights | None:
    """The moving average of the weights that a checkpoint of a run with `training.ema_decay` holds.

    Args:
        prefix: of a checkpoint of this package.

    Returns:
        The average under the keys of the weights themselves; None if there is none.

    Raises:
        RunError: the checkpoint cannot be read.
    """
    variables = contents.read(prefix).variables
    return {
        v.name.replace("ema/", "model/", 1): index_file.values(v.tensor)
        for v in variables if v.group == contents.AVERAGE
    } or None  # fmt: skip


def assign(model: Transformer, weights: Weights) -> None:
    """Give a model these weights, in place.

    Raises:
        RunError: they are of another model.
    """
    keys = weight_keys(model.config, model.vocabulary_size)
    variables = model.trainable_variables
    shapes = {key: tuple(variable.shape) for key, variable in zip(keys, variables, strict=True)}
    if shapes != {name: x.shape for name, x in weights.items()}:
        raise RunError("The weights are not of this model: load the model of the same run.")
    for key, variable in zip(keys, variables, strict=True):
        variable.assign(weights[key])


def bleu(
    translator: Translator, tokenizer: Tokenizer, sources: Sequence[str], references: Sequence[str]
) -> float:
    """sacreBLEU, 0 to 100, of the translations that a model now gives.

    Args:
        translator: translates with the weights that its model has at the moment.
        tokenizer: of the model's vocabulary.
        sources: sentences.
        references: a translation of each.
    """
    found = dict(translator.translate(tokenizer.encode(sources)))
    hypotheses = tokenizer.decode([found[index][0].ids for index in range(len(sources))])
    return sacrebleu.BLEU().corpus_score(hypotheses, [list(references)]).score


def _weights(prefix: Path) -> dict[str, index_file.Tensor]:
    """Where each weight of a checkpoint is."""
    variables = contents.read(prefix).variables
    return {v.name: v.tensor for v in variables if v.group in contents.WEIGHTS}


def _mean(tensors: Sequence[index_file.Tensor]) -> np.ndarray:
    total = np.zeros(tensors[0].shape)
    for tensor in tensors:
        total += index_file.values(tensor)
    return (total / len(tensors)).astype(np.float32)
