"""What averaging the last checkpoints brings: the mean of their weights, scored.

Source: Vaswani et al. 2017, section 6.1, average the last 5 checkpoints of the base model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import sacrebleu

from hvd_nmt.analysis import anatomy, bundle
from hvd_nmt.analysis.checkpoint_size import weight_keys
from hvd_nmt.errors import RunError

if TYPE_CHECKING:
    from hvd_nmt.model.tokenizer import Tokenizer
    from hvd_nmt.model.transformer import Transformer
    from hvd_nmt.model.translator import Translator

Weights = dict[str, np.ndarray]
"""key of a weight in the checkpoint -> its values, float32"""


def average(prefixes: Sequence[Path]) -> Weights:
    """The mean of the weights of some checkpoints of one model; of one, its weights.

    Args:
        prefixes: of checkpoints of this package.

    Raises:
        RunError: none is given, one cannot be read, or they are of different models.
    """
    if not prefixes:
        raise RunError("No checkpoint is given to average: name at least one.")
    sums: Weights = {}
    for prefix in prefixes:
        weights = [v for v in anatomy.read(prefix).variables if v.group in anatomy.WEIGHTS]
        if not sums:
            sums = {weight.name: np.zeros(weight.shape) for weight in weights}
        if {w.name: w.shape for w in weights} != {name: x.shape for name, x in sums.items()}:
            raise RunError(f"{prefix} and {prefixes[0]} are of different models: no mean exists.")
        for weight in weights:
            sums[weight.name] += bundle.values(weight.tensor)
    return {name: (x / len(prefixes)).astype(np.float32) for name, x in sums.items()}


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
    hypotheses = tokenizer.decode([found[index].ids for index in range(len(sources))])
    return sacrebleu.BLEU().corpus_score(hypotheses, [list(references)]).score
