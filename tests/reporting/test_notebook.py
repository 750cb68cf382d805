"""What cells show: tables, the dev set sentence by sentence, the attention of a sentence pair."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from hvd_nmt.common.errors import RunError
from hvd_nmt.config import ModelConfig
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.model.transformer import Transformer
from hvd_nmt.records.record import Run
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
    source, target, (first, second) = notebook.cross_attention(model, tokenizers, SOURCE, TARGET)
    lengths = [len(ids) for ids in tokenizers.target.encode([SOURCE, TARGET])]
    assert [len(source), len(target)] == lengths
    assert first.shape == second.shape == (2, *reversed(lengths))
    assert source[-1] == target[-1] == "(end)"
    assert "".join(source[:-1]).replace("_", "") == SOURCE.replace(" ", "")
    np.testing.assert_allclose(first.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(second, 1 / lengths[0], rtol=1e-5)
    assert np.abs(first - 1 / lengths[0]).max() > 1e-3


@pytest.fixture
def run(toy_data: Path, tmp_path: Path) -> Run:
    """A run that translated the first 3 dev sentences at step 9 and at 10: at 10, 2 are right."""
    references = (toy_data / "dev.de").read_text(encoding="utf-8").splitlines()
    folder = tmp_path / "hypotheses"
    folder.mkdir()
    (folder / "dev.9.txt").write_text("nein\n" * 3, encoding="utf-8")
    lines = [references[0], "xyz", references[2]]
    (folder / "dev.10.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Run("run", tmp_path, "hvd_nmt", manifest={"directory": str(toy_data)})


def test_newest_translations_beside_source_and_reference(run: Run, toy_data: Path) -> None:
    found = notebook.read_sentences(run)
    sources = (toy_data / "dev.en").read_text(encoding="utf-8").splitlines()
    assert [sentence.source for sentence in found] == sources[:3]
    assert [sentence.number for sentence in found] == [1, 2, 3]
    assert found[1].hypothesis == "xyz"
    assert (found[0].chrf, found[2].chrf) == (pytest.approx(100), pytest.approx(100))
    assert found[1].chrf < 5


def test_what_is_missing_is_said(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"dev set of .* is not on this machine"):
        notebook.read_sentences(Run("run", tmp_path, "hvd_nmt"))
    shutil.rmtree(tmp_path / "hypotheses")
    with pytest.raises(RunError, match="was not evaluated"):
        notebook.read_sentences(run)
