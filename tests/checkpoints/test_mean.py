"""The mean of checkpoints, and its BLEU."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.checkpoints import mean as averaging
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import ModelConfig
from hvd_nmt.model.tokenizer import Tokenizer
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.model.translator import Translation

CONFIG = ModelConfig(1, 1, 16, 2, 32)


def saved(folder: Path, name: str, seed: int, config: ModelConfig = CONFIG) -> Transformer:
    model = Transformer(config, 128, seed=seed)
    state = tf.train.Checkpoint(model=model, step=tf.Variable(seed, dtype=tf.int64))
    state.write(os.fspath(folder / name))
    return model


def test_mean_of_each_weight_and_of_nothing_else(tmp_path: Path) -> None:
    models = [saved(tmp_path, f"c-{seed}", seed) for seed in (1, 2, 6)]
    mean = averaging.average([tmp_path / f"c-{seed}" for seed in (1, 2, 6)])
    target = Transformer(CONFIG, 128, seed=9)
    averaging.assign(target, mean)
    for found, *each in zip(*(m.trainable_variables for m in (target, *models)), strict=True):
        np.testing.assert_allclose(found, np.mean(each, 0), rtol=1e-5, atol=1e-7)
    assert len(mean) == len(target.trainable_variables)  # not the step


def test_of_one_checkpoint_its_own_weights(tmp_path: Path) -> None:
    model = saved(tmp_path, "c-1", 1)
    other = Transformer(CONFIG, 128, seed=2)
    averaging.assign(other, averaging.average([tmp_path / "c-1"]))
    for found, wanted in zip(other.trainable_variables, model.trainable_variables, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_models_that_differ_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, "c-1", 1)
    model = saved(tmp_path, "c-2", 1, ModelConfig(1, 2, 16, 2, 32))
    with pytest.raises(RunError, match="of different models"):
        averaging.average([tmp_path / "c-1", tmp_path / "c-2"])
    with pytest.raises(RunError, match="not of this model"):
        averaging.assign(model, averaging.average([tmp_path / "c-1"]))
    with pytest.raises(RunError, match="at least one"):
        averaging.average([])


class Known:
    """A translator that knows the references, and gives them in any order it likes."""

    def __init__(self, tokenizer: Tokenizer, known: list[str]) -> None:
        self._answers = [[Translation(ids, 0.0)] for ids in tokenizer.encode(known)]

    def translate(self, sources):
        return reversed(list(enumerate(self._answers[: len(sources)])))


def test_bleu_compares_each_translation_with_its_reference(toy_data: Path) -> None:
    tokenizer = Tokenizer(toy_data / "spm.model")
    sources = ["the old man sees a bird", "a dog", "a street and a tree and a house"]
    references = ["der alt Mann sieht a Vogel", "a Hund", "a Straße und a Baum und a Haus"]
    right = averaging.bleu(Known(tokenizer, references), tokenizer, sources, references)
    wrong = averaging.bleu(Known(tokenizer, references[::-1]), tokenizer, sources, references)
    assert right == pytest.approx(100)
    assert wrong < 20
