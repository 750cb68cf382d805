"""The command that extends a vocabulary: same translations, a run that translates and trains on."""

import contextlib
import io
import json
import os

import numpy as np
import pytest

import toy
from hvd_nmt import extend
from hvd_nmt.checkpoints import extension, weights
from hvd_nmt.checkpoints.find import newest_first
from hvd_nmt.model.tokenizer import Tokenizer, Tokenizers
from hvd_nmt.model.transformer import Transformer

WORDS = "Vogelhaus Straßenbaum\n日本\n"


@pytest.fixture(scope="module")
def extended(toy_run, tmp_path_factory):
    """The run directory, and what the command said."""
    cwd, said = tmp_path_factory.mktemp("extend"), io.StringIO()
    (cwd / "words.txt").write_text(WORDS, encoding="utf-8")
    words = ["--run", toy_run, "--pieces", cwd / "words.txt", "--out", cwd / "new"]
    with contextlib.redirect_stdout(said):
        assert extend.main([*map(str, words), "--checkpoint", "latest"]) == 0
    return cwd / "new", said.getvalue()


def test_the_command_tells_its_check_and_new_words_are_pieces(extended):
    run_dir, said = extended
    assert "parity      holds: of 24 sentences without a new piece 0 have other ids" in said
    assert f"--vocabulary {run_dir}/spm.model" in said
    tokenizer = Tokenizer(run_dir / "spm.model")
    assert [len(ids) for ids in tokenizer.encode(WORDS.split())] == [2, 2, 2]  # and eos
    assert tokenizer.decode(tokenizer.encode(["Vogelhaus 日本"])) == ["Vogelhaus 日本"]


def test_old_rows_stay_and_new_ones_are_means(extended, toy_run):
    run_dir, _ = extended
    old, step = weights.load_model(toy_run, "latest")
    new, new_step = weights.load_model(run_dir, "latest")
    assert step == new_step == 40
    record = json.loads((run_dir / "extend.json").read_text(encoding="utf-8"))
    first = Tokenizer(toy_run / "spm.model").vocabulary_size
    before, after = old.embedding.numpy(), new.embedding.numpy()
    np.testing.assert_array_equal(after[:first], before[:first])
    last = Tokenizer(run_dir / "spm.model").vocabulary_size
    assert [piece["id"] for piece in record["pieces"]] == list(range(first, last))
    for piece in record["pieces"]:
        wanted = before[piece["instead_of"]].mean(0)
        np.testing.assert_allclose(after[piece["id"]], wanted, rtol=1e-6, atol=1e-7)
    for row in after[first + len(record["pieces"]) :]:
        np.testing.assert_array_equal(row, before[0])
    assert len(after) % 8 == 0
    for weight, wanted in zip(new.trainable_variables, old.trainable_variables, strict=True):
        if weight is not new.embedding:
            np.testing.assert_array_equal(weight, wanted)
    assert record["checkpoint"]["sha256"] == newest_first(toy_run)[0].record()["sha256"]


def test_a_model_that_translates_otherwise_is_told(extended, toy_run, toy_data):
    """A check that nothing could fail would be none."""
    old, _ = weights.load_model(toy_run, "latest")
    new, _ = weights.load_model(extended[0], "latest")
    paths = (run / "spm.model" for run in (toy_run, extended[0]))
    tokenizers = tuple(Tokenizers.of(path, path) for path in paths)
    lines = (toy_data / "dev.en").read_text(encoding="utf-8").splitlines()[:6]
    assert extension.compare(old, new, tokenizers, ["▁Vogelhaus"], lines).holds
    with_new = extension.compare(old, new, tokenizers, ["▁Vogelhaus"], ["Vogelhaus", lines[0]])
    assert (with_new.with_new, with_new.holds) == (1, True)
    rows = new.embedding.numpy()
    new.embedding.assign(np.concatenate([rows[:-1], 9 * rows[7:8]]))
    wins = extension.compare(old, new, tokenizers, ["▁Vogelhaus"], lines)
    assert wins.other_translations > 0
    assert not wins.holds
    assert "FAILS" in wins.line()
    other = Transformer(old.config, new.vocabulary_size, seed=9)
    assert extension.compare(old, other, tokenizers, [], lines).logit_change > 0.1


@pytest.mark.long
def test_it_is_extended_again_and_a_new_run_trains_on(extended, toy_commands, tmp_path, capsys):
    run_dir, _ = extended
    (tmp_path / "words.txt").write_text("Regenwurm\n", encoding="utf-8")
    words = ["--run", run_dir, "--pieces", tmp_path / "words.txt", "--out", tmp_path / "newer"]
    assert extend.main([*map(str, words)]) == 0
    assert "parity      holds" in capsys.readouterr().out
    data = toy.toy_data(tmp_path, vocabulary=run_dir / "spm.model")
    assert (data / "spm.model").read_bytes() == (run_dir / "spm.model").read_bytes()
    options = (*toy.train_options(data, "run", 2), "--init-from", str(run_dir))
    done = toy_commands.train(*options, cwd=tmp_path, eager=True)
    assert done.returncode == 0, done.stderr
    assert f"begins with {run_dir}/model.ckpt-40" in done.stdout


@pytest.mark.parametrize(("options", "code", "words"), [
    (("--out", "new"), 2, "either --pieces with words or --text"),
    (("--out", "new", "--text", "words.txt"), 2, "--size is the number"),
    (("--out", "there", "--pieces", "none.txt"), 2, "there is there already"),  # first of all
    (("--out", "new", "--pieces", "none.txt"), 3, "none.txt cannot be read"),
    (("--out", "new", "--pieces", "words.txt", "--check", os.devnull), 3, "holds no sentence"),
    (("--out", "new", "--pieces", "words.txt", "--run", "there"), 4, "is no run directory"),
])  # fmt: skip
def test_mistakes(toy_run, tmp_path, monkeypatch, capsys, options, code, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text(WORDS, encoding="utf-8")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "thesis.tex").write_text("precious")
    assert extend.main(["--run", os.fspath(toy_run), *options]) == code
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "new").exists()
