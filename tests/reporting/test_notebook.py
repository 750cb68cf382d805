"""What cells show, and the cross-attention of a sentence pair."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import tensorflow as tf

from hvd_nmt.config import ModelConfig
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.reporting import notebook

SOURCE, TARGET = "the red dog sings", "der rot Hund singt"


def test_a_figure_or_that_there_is_none() -> None:
    assert "<svg" in notebook.figures("<svg></svg>", "")._repr_html_()
    assert "no data" in notebook.figures("")._repr_html_()


def test_table_of_numbers_and_of_words_that_look_like_html() -> None:
    shown = notebook.table(("", "n"), [("a <b>", 12345), (None, 0.123456)]).data
    cells = re.findall("<t[dh]([^>]*)>(.*?)</", shown)
    right = ' style="text-align: right;"'
    assert cells == [
        ("", ""), (right, "n"), ("", "a &lt;b&gt;"), (right, "12,345"), ("", "None"),
        (right, "0.123"),
    ]  # fmt: skip


def test_attention_has_a_weight_for_each_pair_of_pieces_layer_by_layer(toy_data: Path) -> None:
    """A layer whose queries are 0 looks at all of the source alike; the other one does not."""
    tokenizers = Tokenizers.of(toy_data / "spm.model", toy_data / "spm.model")
    model = Transformer(ModelConfig(1, 2, 16, 2, 32, max_length=64), 128)
    model.decoder[1].cross_attention.query.assign(tf.zeros([16, 16]))
    found = notebook.cross_attention(model, tokenizers, SOURCE, TARGET)
    source, target = (len(ids) for ids in tokenizers.target.encode([SOURCE, TARGET]))
    assert found.weights_LxHxTxS.shape == (2, 2, target, source)
    assert (len(found.source), len(found.target)) == (source, target)
    assert found.source[-1] == found.target[-1] == notebook.END
    assert "".join(found.source[:-1]).replace("_", "") == SOURCE.replace(" ", "")
    first, second = found.weights_LxHxTxS
    np.testing.assert_allclose(first.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(second, 1 / source, rtol=1e-5)
    assert np.abs(first - 1 / source).max() > 1e-3
