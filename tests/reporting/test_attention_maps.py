"""Cross-attention of a sentence pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.config import ModelConfig
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.reporting import attention_maps

SOURCE, TARGET = "the red dog sings", "der rot Hund singt"


@pytest.fixture(scope="module")
def tokenizers(toy_data: Path) -> Tokenizers:
    """The toy vocabulary."""
    path = toy_data / "spm.model"
    return Tokenizers.of(path, path)


def small() -> Transformer:
    return Transformer(ModelConfig(1, 2, 16, 2, 32, max_length=64), 128)


def test_a_weight_for_each_pair_of_pieces(tokenizers: Tokenizers) -> None:
    found = attention_maps.cross_attention(small(), tokenizers, SOURCE, TARGET)
    source, target = (len(ids) for ids in tokenizers.target.encode([SOURCE, TARGET]))
    assert found.weights_LxHxTxS.shape == (2, 2, target, source)
    assert (len(found.source), len(found.target)) == (source, target)
    assert found.source[-1] == found.target[-1] == attention_maps.END
    assert "".join(found.source[:-1]).replace("_", "") == SOURCE.replace(" ", "")
    np.testing.assert_allclose(found.weights_LxHxTxS.sum(-1), 1, rtol=1e-5)


def test_layers_are_in_their_order_and_it_is_cross_attention(tokenizers: Tokenizers) -> None:
    """A layer whose queries are 0 looks at all of the source alike; the other one does not."""
    model = small()
    model.decoder[1].cross_attention.query.assign(tf.zeros([16, 16]))
    found = attention_maps.cross_attention(model, tokenizers, SOURCE, TARGET)
    first, second = found.weights_LxHxTxS
    np.testing.assert_allclose(second, 1 / second.shape[-1], rtol=1e-5)
    assert np.abs(first - 1 / first.shape[-1]).max() > 1e-3
    np.testing.assert_allclose(found.mean_TxS(1), second[0], rtol=1e-5)
    mean = (found.mean_TxS(0) + found.mean_TxS(1)) / 2
    np.testing.assert_allclose(found.mean_TxS(), mean, rtol=1e-6)  # float32, in another order
