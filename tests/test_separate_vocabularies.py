"""Source and target with vocabularies of their own: what two matrices change, from end to end."""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import hvd_nmt
import toy
from hvd_nmt import export
from hvd_nmt.checkpoints import contents, weights
from hvd_nmt.checkpoints.find import newest_first
from hvd_nmt.checkpoints.run_files import RunDirectory
from hvd_nmt.common.errors import RunError
from hvd_nmt.data import corpus
from hvd_nmt.formats import ctranslate2
from hvd_nmt.model.tokenizer import Tokenizers


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The toy corpus with 64 pieces of the source and 120 of the target."""
    own = ("--separate-vocabularies", "--source-vocabulary-size", "64")
    return toy.toy_data(tmp_path_factory.mktemp("separate"), more=own)


@pytest.fixture(scope="module")
def options(data):
    return toy.train_options(
        data, "run", 40, "--checkpoints.every-steps", "20",
        "--evaluation.every-steps", "40", "--evaluation.beam-size", "1",
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(options, toy_commands, tmp_path_factory):
    cwd = tmp_path_factory.mktemp("run")
    done = toy_commands.train(*options, cwd=cwd, eager=True)
    assert done.returncode == 0, done.stderr
    assert "vocabulary 64 (source) + 120," in done.stdout
    return cwd / "run"


@pytest.fixture(scope="module")
def model(run):
    return weights.load_model(run, "latest")[0]


def test_the_source_has_a_matrix_of_its_own_and_it_learns(run, model, data):
    assert (model.source_embedding.shape[0], model.embedding.shape[0]) == (64, 120)
    fresh = type(model)(model.config, 120, source_vocabulary_size=64)
    moved = np.abs(model.source_embedding - fresh.source_embedding).max(1)
    assert moved[np.unique(corpus.load(data).train.source.ids)].min() > 1e-3
    assert toy.metrics(run, "eval")[-1]["eval_loss"] < 0.7 * np.log(120)  # of who knows nothing
    anatomy, manifest = contents.read(newest_first(run)[0].prefix), newest_first(run)[0].manifest
    assert anatomy.predicted_bytes == anatomy.model_bytes
    embedding = next(group for group in anatomy.groups() if group.name == "embedding")
    assert embedding.count == (64 + 120) * 16
    spm = corpus.load(data).manifest.files["spm.source.model"].sha256
    assert (manifest.source_vocabulary_hash, manifest.source_vocabulary_size) == (spm, 64)


def test_another_kind_of_vocabulary_is_refused_by_its_name(run, toy_data, toy_commands, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    for name, more, message in (
        ("run", (), "were trained with another vocabulary than that of"),
        ("new", ("--init-from", os.fspath(run)), f"--source-vocabulary {run}/spm.source.model."),
    ):
        said = toy_commands.train(*toy.train_options(toy_data, name, 40), *more, cwd=tmp_path)
        assert (said.returncode, said.stderr.count("\n")) == (4, 1), said.stderr
        assert message in said.stderr


def test_a_run_directory_without_its_own_or_with_one_too_many(run, toy_run, tmp_path):
    golden = Path(__file__).parent / "golden" / "run"
    copy, joint = (shutil.copytree(path, tmp_path / path.parent.name) for path in (run, golden))
    (copy / "spm.source.model").unlink()
    with pytest.raises(RunError, match=r"spm\.source\.model is missing, the vocabulary that"):
        weights.load_model(copy)
    shutil.copyfile(copy / "spm.model", copy / "spm.source.model")
    with pytest.raises(RunError, match=r"spm\.source\.model is not the vocabulary that"):
        ctranslate2.cached(copy, "latest")
    shutil.copyfile(joint / "spm.model", joint / "spm.source.model")
    with pytest.raises(RunError, match=r"spm\.source\.model is not the vocabulary .*: remove it"):
        weights.load_model(joint)


def test_scores_are_of_the_pieces_of_the_target(run, model, data):
    sources, targets = (lines[:6] for lines in corpus.load(data).text("dev"))
    scores = hvd_nmt.load(run, "latest").score(zip(sources, targets, strict=True))
    tokenizers = Tokenizers.of(*RunDirectory(run).vocabularies())
    ids = tokenizers.source.encode(sources), tokenizers.target.encode(targets)
    for source_S, target_T, score in zip(*ids, scores, strict=True):
        logits = model(source_S[None], target_T[None])[0].numpy()
        logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        wanted = logp[np.arange(len(target_T)), target_T].sum()
        assert score == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("to", ["ctranslate2", pytest.param("saved-model", marks=pytest.mark.long)])
def test_exports_translate_as_the_run(run, data, tmp_path, capsys, to):
    words = ["--run", run, "--to", to, "--out", tmp_path / "model", "--checkpoint", "latest"]
    assert export.main([*map(str, words), "--verify-on", str(data / "dev.en")]) == 0
    assert "verified    24 of 24 lines are translated as" in capsys.readouterr().out


@pytest.mark.long
def test_a_run_with_other_vocabularies_begins_with_the_rows_of_the_same_pieces(
    run, model, toy_commands, tmp_path
):
    own = ("--separate-vocabularies", "--source-vocabulary-size", "56")
    data = toy.toy_data(tmp_path, seed=2, more=own)
    options = toy.train_options(data, "new", 1, "--init-from", os.fspath(run))
    done = toy_commands.train(
        *options, "--training.freeze", "embedding,source_embedding", cwd=tmp_path, eager=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"step 40: \d+ of 56 source pieces and \d+ of", done.stdout)
    new, _ = weights.load_model(tmp_path / "new")
    tokenizers = [
        Tokenizers.of(*RunDirectory(each).vocabularies()) for each in (run, tmp_path / "new")
    ]
    for side, matrix in (("source", "source_embedding"), ("target", "embedding")):
        ids = [
            {piece: i for i, piece in enumerate(getattr(each, side).pieces)} for each in tokenizers
        ]
        rows = [getattr(each, matrix).numpy() for each in (model, new)]
        shared = ids[0].keys() & ids[1].keys()
        assert len(shared) > 10
        for piece in shared:
            np.testing.assert_array_equal(rows[1][ids[1][piece]], rows[0][ids[0][piece]])
