"""The command that extends a vocabulary: same translations, a run that translates and trains on."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import toy
from hvd_nmt.checkpoints import extension, weights
from hvd_nmt.checkpoints.find import newest_first
from hvd_nmt.model.tokenizer import Tokenizer, Tokenizers
from hvd_nmt.model.transformer import Transformer

WORDS = "Vogelhaus Straßenbaum\n日本\n"


@pytest.fixture(scope="module")
def extended(toy_commands, toy_run, tmp_path_factory):
    """The run directory, and what the command said."""
    cwd = tmp_path_factory.mktemp("extend")
    (cwd / "words.txt").write_text(WORDS, encoding="utf-8")
    done = toy_commands.run(
        "hvd_nmt.extend", "--run", os.fspath(toy_run), "--pieces", "words.txt", "--out", "new",
        "--checkpoint", "latest", cwd=cwd,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return cwd / "new", done.stdout


def test_an_extended_run_is_extended_again(extended, toy_commands, tmp_path):
    (tmp_path / "words.txt").write_text("Regenwurm\n", encoding="utf-8")
    again = ("--run", os.fspath(extended[0]), "--pieces", "words.txt", "--out", "newer")
    done = toy_commands.run("hvd_nmt.extend", *again, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "parity      holds" in done.stdout


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


def test_the_command_tells_its_check_and_new_words_are_pieces(extended):
    assert "parity      holds: of 24 sentences without a new piece 0 have other ids" in extended[1]
    assert "--vocabulary new/spm.model" in extended[1]
    tokenizer = Tokenizer(extended[0] / "spm.model")
    assert [len(ids) for ids in tokenizer.encode(WORDS.split())] == [2, 2, 2]  # and eos
    assert tokenizer.decode(tokenizer.encode(["Vogelhaus 日本"])) == ["Vogelhaus 日本"]


def test_it_translates_as_before(extended, toy_commands, toy_data, toy_run, tmp_path):
    said = [
        toy_commands.run(
            "hvd_nmt.translate", "--run", os.fspath(run), "--checkpoint", "latest", "--beam-size",
            "1", cwd=tmp_path, input=(toy_data / "dev.en").read_text(encoding="utf-8"),
        ).stdout
        for run in (toy_run, extended[0])
    ]  # fmt: skip
    assert said[0] == said[1]
    assert len(set(said[0].splitlines())) > 5


def test_a_new_run_trains_on_with_the_new_vocabulary(extended, toy_commands, toy_data, tmp_path):
    run_dir, _ = extended
    texts = toy_data.parent
    command = [sys.executable, "-m", "hvd_nmt.prepare", "--out", os.fspath(tmp_path / "data"),
               "--vocabulary", os.fspath(run_dir / "spm.model"), "--max-length", "32"]  # fmt: skip
    for part in ("train", "dev"):
        for side, name in (("source", "en"), ("target", "de")):
            command += [f"--{part}-{side}", os.fspath(texts / f"{part}.{name}")]
    made = subprocess.run(
        command, env=toy.environment(tmp_path), capture_output=True, text=True, timeout=120
    )
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "data" / "spm.model").read_bytes() == (run_dir / "spm.model").read_bytes()
    done = toy_commands.run(
        "hvd_nmt.train", *toy.train_options(tmp_path / "data", "run", 2), "--init-from",
        os.fspath(run_dir), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"begins with {run_dir}/model.ckpt-40" in done.stdout


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


@pytest.mark.parametrize(("options", "code", "words"), [
    (("--out", "new"), 2, "either --pieces with words or --text"),
    (("--out", "new", "--text", "words.txt"), 2, "--size is the number"),
    (("--out", "there", "--pieces", "none.txt"), 2, "there is there already"),  # first of all
    (("--out", "new", "--pieces", "none.txt"), 3, "none.txt cannot be read"),
    (("--out", "new", "--pieces", "words.txt", "--check", os.devnull), 3, "holds no sentence"),
    (("--out", "new", "--pieces", "words.txt", "--run", "there"), 4, "is no run directory"),
])  # fmt: skip
def test_mistakes(toy_commands, toy_run, tmp_path, options, code, words):
    (tmp_path / "words.txt").write_text(WORDS, encoding="utf-8")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "thesis.tex").write_text("precious")
    done = toy_commands.run("hvd_nmt.extend", "--run", os.fspath(toy_run), *options, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert words in done.stderr
    assert not (tmp_path / "new").exists()
