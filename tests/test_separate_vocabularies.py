"""Source and target with vocabularies of their own: every command, from text to exports."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import toy
from hvd_nmt import export, translate
from hvd_nmt.checkpoints import contents, records, weights
from hvd_nmt.checkpoints.find import newest_first
from hvd_nmt.checkpoints.run_files import vocabularies
from hvd_nmt.common.errors import RunError
from hvd_nmt.config import DataConfig
from hvd_nmt.data import corpus
from hvd_nmt.data.augmentation import Augmentation
from hvd_nmt.formats import ctranslate2
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.model.tokenizer import Tokenizers
from hvd_nmt.model.translator import Translator
from hvd_nmt.reporting import attention_maps

SEPARATE = ("--separate-vocabularies", "--source-vocabulary-size", "64")
GREEDY = ("--beam-size", "1")
LINES = ["the old man sees a bird", "", "a dog sings", "the dog " * 40, "Straße 日本", "bird"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The toy corpus with 64 pieces of the source and 120 of the target."""
    return toy.toy_data(tmp_path_factory.mktemp("separate"), more=SEPARATE)


@pytest.fixture(scope="module")
def run(data, toy_commands, tmp_path_factory):
    """A run of 40 steps with BPE-dropout, read only."""
    cwd = tmp_path_factory.mktemp("run")
    options = toy.run_options(
        data, "run", "--data.bpe-dropout", "0.1", "--training.max-steps", "40"
    )
    done = toy_commands.run("hvd_nmt.train", *options, cwd=cwd)
    assert done.returncode == 0, done.stderr
    (cwd / "run" / "stdout.txt").write_text(done.stdout, encoding="utf-8")
    return cwd / "run"


@pytest.fixture(scope="module")
def tokenizers(run):
    return Tokenizers.of(*vocabularies(run))


def command(toy_commands, name, *options, cwd, code=0, **others):
    """What a command says: its output, or the one sentence of its error."""
    done = toy_commands.run(f"hvd_nmt.{name}", *map(os.fspath, options), cwd=cwd, **others)
    assert done.returncode == code, done.stderr
    assert code == 0 or done.stderr.count("\n") == 1, done.stderr
    return done.stderr if code else done.stdout


def prepared(folder, run):
    """The toy corpus with the vocabularies of a run."""
    own = ("--source-vocabulary", os.fspath(run / "spm.source.model"))
    return toy.toy_data(folder, pairs=60, vocabulary=run / "spm.model", more=own)


def test_the_source_has_a_matrix_of_its_own_and_it_learns(run, data):
    model, step = weights.load_model(run, "latest")
    assert (model.source_embedding.shape[0], model.embedding.shape[0], step) == (64, 120, 40)
    fresh = type(model)(model.config, 120, source_vocabulary_size=64)
    moved = np.abs(model.source_embedding - fresh.source_embedding).max(1)
    seen = np.unique(data_ids(data, "source"))
    assert moved[seen].min() > 1e-3
    manifest = newest_first(run)[0].manifest
    spm = corpus.load(data).manifest.files["spm.source.model"].sha256
    assert (manifest.source_vocabulary_hash, manifest.source_vocabulary_size) == (spm, 64)
    assert "vocabulary 64 (source) + 120," in (run / "stdout.txt").read_text(encoding="utf-8")
    knows_nothing = np.log(120)
    assert toy.metrics(run, "eval")[-1]["eval_loss"] < 0.7 * knows_nothing


def data_ids(data, side):
    return np.asarray(getattr(corpus.load(data).train, side).ids)


def test_the_size_of_its_checkpoint_is_known_before(run):
    anatomy = contents.read(newest_first(run)[0].prefix)
    assert anatomy.predicted_bytes == anatomy.data_bytes
    embedding = next(group for group in anatomy.groups() if group.name == "embedding")
    assert embedding.count == (64 + 120) * 16
    assert "spm.source.model" in records.Records(run).changes()["files"]


def test_it_resumes_to_the_bit(run, data, toy_commands, tmp_path):
    options = (*toy.run_options(data, "run", "--data.bpe-dropout", "0.1"), "--training.max-steps")
    command(toy_commands, "train", *options, "20", cwd=tmp_path)
    command(toy_commands, "train", *options, "40", cwd=tmp_path)
    models = [weights.load_model(path, "latest")[0] for path in (run, tmp_path / "run")]
    for one, other in zip(*(model.weights for model in models), strict=True):
        np.testing.assert_array_equal(one, other)


def test_another_kind_of_vocabulary_is_refused_by_its_name(
    run, data, toy_data, toy_run, toy_commands, tmp_path
):
    for there, others in ((run, toy_data), (toy_run, data)):
        copy = shutil.copytree(there, tmp_path / there.parent.name)
        options = toy.run_options(others, copy)
        said = command(toy_commands, "train", *options, cwd=tmp_path, code=4)
        assert "were trained with another vocabulary than that of" in said
        options = (*toy.train_options(others, tmp_path / "new", 2), "--init-from", there)
        said = command(toy_commands, "train", *options, cwd=tmp_path, code=4)
        assert f"prepare the data with --vocabulary {there}/spm.model" in said
        assert (f" --source-vocabulary {there}/spm.source.model." in said) == (there == run)


def test_a_run_directory_without_its_own_or_with_one_too_many(run, toy_run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "spm.source.model").unlink()
    with pytest.raises(RunError, match=r"has no spm\.source\.model, the source's vocabulary of"):
        weights.load_model(copy)
    shutil.copyfile(copy / "spm.model", copy / "spm.source.model")
    with pytest.raises(RunError, match=r"spm\.source\.model is not the vocabulary that"):
        weights.load_model(copy)
    with pytest.raises(RunError, match=r"spm\.source\.model is not the vocabulary that"):
        ctranslate2.cached(copy, "latest")
    joint = shutil.copytree(toy_run, tmp_path / "joint")
    shutil.copyfile(joint / "spm.model", joint / "spm.source.model")
    with pytest.raises(RunError, match="trained with one vocabulary for both languages: take"):
        weights.load_model(joint)


def test_a_new_run_begins_with_its_weights(run, toy_commands, tmp_path):
    data = prepared(tmp_path, run)
    options = (*toy.train_options(data, "new", 2), "--init-from", run)
    assert f"begins with {run}/" in command(toy_commands, "train", *options, cwd=tmp_path)


def translated(run, lines, folder, *options):
    source = folder / "source"
    source.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    words = ["--run", run, "--checkpoint", "latest", "--input", source, "--output", folder / "out"]
    assert translate.main([*map(str, words), *options]) == 0
    return (folder / "out").read_text(encoding="utf-8").splitlines()


def test_sources_are_cut_by_their_own_and_targets_by_theirs(run, tokenizers, tmp_path, capsys):
    model, _ = weights.load_model(run, "latest")
    short = [line for line in LINES if len(line) < 30]
    sources = tokenizers.source.encode(short)
    found = dict(Translator(model, Decoding(beam_size=1)).translate(sources))
    wanted = tokenizers.target.decode(found[index][0].ids for index in range(len(short)))
    assert translated(run, short, tmp_path, *GREEDY) == wanted
    lines = dict(zip(LINES, translated(run, LINES, tmp_path, *GREEDY), strict=True))
    assert [lines[line] for line in short] == wanted
    assert lines[""] == ""
    by_source, by_target = (len(each.encode([LINES[3]])[0]) for each in tokenizers)
    assert by_source != by_target
    assert f"line 4: {by_source} tokens, more than the 32 that" in capsys.readouterr().err


def test_scores_prefixes_and_pieces_are_of_the_target(run, data, tokenizers, tmp_path):
    sources, targets = (lines[:6] for lines in corpus.load(data).text("dev"))
    (tmp_path / "target").write_text("".join(line + "\n" for line in targets), encoding="utf-8")
    given = ("--score", "--target", str(tmp_path / "target"), "--token-scores")
    rows = [row.split("\t") for row in translated(run, sources, tmp_path, *given)]
    model, _ = weights.load_model(run, "latest")
    ids = tokenizers.source.encode(sources), tokenizers.target.encode(targets)
    for source_S, target_T, (score, pieces) in zip(*ids, rows, strict=True):
        logits = model(source_S[None], target_T[None])[0].numpy()
        logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        assert float(score) == pytest.approx(
            logp[np.arange(len(target_T)), target_T].sum(), abs=1e-3
        )
        named = [word.rpartition("=")[0] for word in pieces.split(" ")]
        assert named == [tokenizers.target.pieces[number] for number in target_T]
    prefixes = ["der alt", "", "Straße", "", "", "singt"]
    (tmp_path / "prefix").write_text("".join(f"{line}\n" for line in prefixes), encoding="utf-8")
    found = translated(run, sources, tmp_path, "--prefix", str(tmp_path / "prefix"))
    assert all(map(str.startswith, found, prefixes))
    many = translated(run, sources, tmp_path, "--n-best", "3", "--alignments", "--min-length", "3")
    assert len(many) == 18


def test_evaluate_and_the_mean_of_checkpoints(run, data, toy_commands, tmp_path):
    mean = command(
        toy_commands, "average", "--run", run, "--last", "2", "--out", "mean", cwd=tmp_path
    )
    assert "mean" in mean
    assert (tmp_path / "mean" / "spm.source.model").exists()
    evaluated = toy.metrics(run, "eval")[-1]["sacrebleu"]
    text = [data / name for name in ("dev.en", "dev.de")]
    for path in (run, tmp_path / "mean"):
        options = (
            "--run",
            path,
            "--checkpoint",
            "latest",
            "--source",
            text[0],
            "--reference",
            text[1],
        )
        said = command(toy_commands, "evaluate", *options, cwd=tmp_path)
        assert path != run or f"{evaluated:.1f}" in said


@pytest.mark.parametrize("to", ["ctranslate2", "saved-model"])
def test_exports_translate_as_the_run(run, data, tmp_path, capsys, to):
    out = tmp_path / "model"
    words = ["--run", run, "--to", to, "--out", out, "--checkpoint", "latest", *GREEDY]
    words += ["--verify-on", data / "dev.en"]
    assert export.main([*map(str, words)]) == 0
    said = capsys.readouterr().out
    assert "verified    24 of 24 lines are translated as" in said
    if to == "ctranslate2":
        assert {path.name for path in out.glob("*vocabulary*")} == {
            "source_vocabulary.json", "target_vocabulary.json"
        }  # fmt: skip
        assert (out / "spm.source.model").exists()
    code = said.split("\n\n")[1].partition("\nverified")[0]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_token_scores_of_ctranslate2_are_of_the_target(run, tokenizers, tmp_path):
    ctranslate2.convert(run, "latest", tmp_path / "model")
    greedy = Decoding(beam_size=1)
    sources = tokenizers.source.encode(LINES[:3])
    model, _ = weights.load_model(run, "latest")
    ours, theirs = (
        dict(each.translate(sources, details=True))
        for each in (Translator(model, greedy),
                     ctranslate2.CTranslate2Translator(tmp_path / "model", greedy))
    )  # fmt: skip
    for index in (0, 2):
        np.testing.assert_array_equal(theirs[index][0].ids, ours[index][0].ids)
        scores = (found[index][0].token_scores for found in (theirs, ours))
        np.testing.assert_allclose(*scores, atol=1e-4)


def test_attention_is_between_pieces_of_both(run, tokenizers):
    model, _ = weights.load_model(run, "latest")
    texts = "the old bird", "der alt Straße"
    found = attention_maps.cross_attention(model, tokenizers, *texts)
    ids = (each.encode([text])[0] for each, text in zip(tokenizers, texts, strict=True))
    source, target = map(len, ids)
    assert found.weights_LxHxTxS.shape[2:] == (target, source)
    assert "".join(found.target[:-1]).replace("_", "") == "deraltStraße"


def test_bpe_dropout_has_the_merges_of_each_side(data):
    opened = corpus.load(data)
    indices = np.arange(60)
    same = Augmentation.of(opened, DataConfig(bpe_dropout=1e-19), 1).pairs(opened.train, indices, 0)
    other = Augmentation.of(opened, DataConfig(bpe_dropout=0.5), 1).pairs(opened.train, indices, 0)
    tokenizers = Tokenizers.of(opened.source_spm_path, opened.spm_path)
    for side in ("source", "target"):
        before, equal, cut = (getattr(each, side) for each in (opened.train, same, other))
        assert [before[i].tolist() for i in indices] == [ids.tolist() for ids in equal]
        decode = getattr(tokenizers, side).decode
        assert decode(cut) == decode(before[i] for i in indices)
        assert len(cut.ids) > 1.2 * len(equal.ids)


@pytest.fixture(scope="module", params=["source", "target"])
def extended(request, run, toy_commands, tmp_path_factory):
    """The side, the run directory and what the command said."""
    cwd = tmp_path_factory.mktemp(request.param)
    (cwd / "words.txt").write_text("Vogelhaus\n日本\n", encoding="utf-8")
    options = ("--run", run, "--checkpoint", "latest", "--pieces", "words.txt", "--out", "new")
    said = command(toy_commands, "extend", *options, "--side", request.param, cwd=cwd)
    return request.param, cwd / "new", said


def test_either_vocabulary_grows_and_nothing_else_changes(
    extended, run, data, toy_commands, tmp_path
):
    side, new_run, said = extended
    assert "parity      holds: of 24 sentences" in said
    options = f"--vocabulary {new_run.name}/spm.model --source-vocabulary {new_run.name}/spm.source"
    assert options in said
    old, new = (Tokenizers.of(*vocabularies(path)) for path in (run, new_run))
    lengths = [len(getattr(new, side).encode([word])[0]) for word in ("Vogelhaus", "日本")]
    assert lengths == [2, 2]  # and eos
    other = {"source": "target", "target": "source"}[side]
    assert getattr(old, other).pieces == getattr(new, other).pieces
    models = [weights.load_model(path, "latest")[0] for path in (run, new_run)]
    before, after = (
        [matrix.numpy() for matrix in (model.source_embedding, model.embedding)] for model in models
    )
    for name, *rows in zip(("source", "target"), before, after, strict=True):
        count = getattr(old, name).vocabulary_size
        np.testing.assert_array_equal(rows[0][:count], rows[1][:count])
        assert (len(rows[1]) > len(rows[0])) == (name == side)
    lines = corpus.load(data).text("dev")[0]
    texts = [translated(path, lines, tmp_path, *GREEDY) for path in (run, new_run)]
    assert texts[0] == texts[1]
    trained = (*toy.train_options(prepared(tmp_path, new_run), "tuned", 2), "--init-from", new_run)
    command(toy_commands, "train", *trained, cwd=tmp_path)


def test_which_side_grows_must_be_said(run, toy_run, toy_commands, tmp_path):
    (tmp_path / "words.txt").write_text("Vogelhaus\n", encoding="utf-8")
    options = ("--pieces", "words.txt", "--out", "new", "--run")
    said = command(toy_commands, "extend", *options, run, cwd=tmp_path, code=2)
    assert "say which one grows with --side source or --side target" in said
    options = (*options, toy_run, "--side", "source")
    said = command(toy_commands, "extend", *options, cwd=tmp_path, code=2)
    assert "has one vocabulary for both sides: leave --side out" in said


def test_two_models_of_the_same_pieces_share_the_matrix(toy_data, toy_commands, tmp_path):
    """As OPUS-MT has them: neither may grow, and all else works."""
    model = toy_data / "spm.model"
    same = shutil.copyfile(model, tmp_path / "same.model")
    data = toy.toy_data(tmp_path, vocabulary=model, more=("--source-vocabulary", str(same)))
    assert corpus.load(data).manifest.source_vocabulary_size == 0
    options = toy.train_options(data, "run", 4, "--evaluation.every-steps", "4")
    command(toy_commands, "train", *options, cwd=tmp_path)
    run = tmp_path / "run"
    assert weights.load_model(run, "latest")[0].source_embedding is None
    assert newest_first(run)[0].manifest.source_vocabulary_hash
    assert len(translated(run, LINES, tmp_path)) == len(LINES)
    ctranslate2.convert(run, "latest", tmp_path / "model")
    assert json.loads((tmp_path / "model" / "shared_vocabulary.json").read_text())
    assert "words = sentencepiece" in ctranslate2.usage(tmp_path / "model")
    (tmp_path / "words.txt").write_text("Vogelhaus\n", encoding="utf-8")
    options = ("--run", run, "--pieces", "words.txt", "--side", "target", "--out", "new")
    said = command(toy_commands, "extend", *options, cwd=tmp_path, code=4)
    assert "neither of them can grow alone" in said
    assert not (tmp_path / "new").exists()
