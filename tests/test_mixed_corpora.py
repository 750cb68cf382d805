"""A run on several corpora with tags, and the commands that read it."""

import json
import re
from pathlib import Path

import pytest

import hvd_nmt
import toy
from forks import Forks
from hvd_nmt import export, translate
from hvd_nmt.data import corpus
from hvd_nmt.formats import argos, saved_model
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.records.read import read_run

STAGES = "{until: 18, weights: {clean: 1, crawled: 3}}, {until: end, weights: {back: 1}}"


@pytest.fixture(scope="module")
def done(toy_commands: Forks, mixed_data: Path, tmp_path_factory: pytest.TempPathFactory):
    """A run of 30 steps in two stages, and what it said."""
    cwd = tmp_path_factory.mktemp("mixed")
    (cwd / "hvd_nmt.yaml").write_text(f"data: {{stages: [{STAGES}]}}")
    options = toy.train_options(
        mixed_data, "run", 30, "--evaluation.sentences", "10",
        "--training.log-every", "6", "--telemetry.report",
    )  # fmt: skip
    found = toy_commands.train(*options, cwd=cwd, eager=True)
    assert found.returncode == 0, found.stderr
    return cwd, found.stdout


def test_the_plan_and_each_dev_corpus_are_said(done, mixed_data: Path) -> None:
    cwd, said = done
    first, second = (line for line in said.splitlines() if line.startswith("stage "))
    assert "to step 18, " in first
    assert all(words in first for words in ("clean 25.0% (each pair ", "crawled 75.0% (each pair "))
    assert "back 100.0% (each pair " in second
    (line,) = toy.metrics(cwd / "run", "eval")
    assert {"eval_loss/clean", "eval_loss/crawled", "sacrebleu/clean"} <= line.keys()
    assert "eval_loss/back" not in line  # it has no dev sentences
    both = [line["eval_loss/clean"], line["eval_loss/crawled"]]
    assert min(both) < line["eval_loss"] < max(both)
    assert f"  clean:   validation loss {both[0]:.4f}  BLEU " in said
    translated = corpus.load(mixed_data).manifest.sample("dev", 10)
    assert translated == [0, 1, 2, 3, 4, 24, 25, 26, 27, 28]
    assert len((cwd / "run" / "hypotheses" / "dev.30.txt").read_text().splitlines()) == 10


def test_the_record_tells_what_was_fed(done) -> None:
    run = read_run(done[0] / "run")
    shares = [interval.corpora for interval in run.intervals]
    assert all(sum(of.values()) == pytest.approx(1) for of in shares)
    assert shares[0]["crawled"] == pytest.approx(0.75, abs=0.15)
    assert shares[2]["back"] == 0
    assert shares[3] == {"clean": 0, "crawled": 0, "back": 1}
    assert run.intervals[0].sentences > 0


def test_translate_to_a_language(done, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run, source, out = done[0] / "run", tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("the man\n<2de> the man\n\n" + "the dog sees a tree " * 9 + "\n")
    words = ["--run", str(run), "--input", str(source), "--output", str(out)]
    assert translate.main([*words, "--to", "de"]) == 0
    told = out.read_text().split("\n")
    assert (told[0], told[2]) == (told[1], "")
    said = capsys.readouterr().err
    assert "line 4: 47 tokens, more than the 32 that the model reads: split into 2" in said
    assert translate.main(words) == 0
    said = capsys.readouterr().err
    assert "line 1: it begins with no tag of a language (de): give --to or a tag." in said
    assert out.read_text().split("\n")[1] == told[1]
    assert translate.main([*words, "--to", "fr"]) == 2
    assert "The model does not know the language 'fr': give one of de." in capsys.readouterr().err


def test_a_tag_alone_is_a_blank_line(done, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    run, source, out = done[0] / "run", tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("<2de> the man\n<2de> \n<2de>\n<2de>   \n\n")
    lines = source.read_text().splitlines()
    for backend in ("ctranslate2", "tensorflow"):
        words = ["--run", str(run), "--backend", backend, "--length-penalty", "5"]
        assert translate.main([*words, "--input", str(source), "--output", str(out)]) == 0
        first, *others = out.read_text().splitlines()
        assert first != ""
        assert others == [""] * 4
        assert "empty translations" not in capsys.readouterr().err
    saved_model.convert(run, "best", tmp_path / "model", Decoding(length_penalty=5))
    assert export.translated(lines, tmp_path / "model") == [first, *others]
    model = hvd_nmt.load(run)
    scores = model.score([(line, "der Mann") for line in lines])
    assert scores[1:] == pytest.approx([scores[4]] * 4)
    assert scores[0] != pytest.approx(scores[4])
    assert [row[0].translation.score for row in model.search(lines, details=True)[1:]] == [0.0] * 4


def test_a_package_of_argos_adds_the_tag(done, mixed_data: Path, tmp_path: Path, capsys) -> None:
    run, out = done[0] / "run", tmp_path / "out"
    words = ["--run", str(run), "--to", "argos", "--out", str(out), "--beam-size", "1"]
    text = str(mixed_data.parent / "clean.dev.source")
    assert export.main([*words, "--verify-on", text]) == 0
    said = capsys.readouterr().out
    assert re.search(r"translate-en_de-1_0, our search: (\d+) of \1 lines are", said)
    assert re.search(r"translate-en_de-1_0, Argos Translate's: \d+ of \d+ lines are", said)
    model = argos.Direction("en", "de", "<2de>").unpacked(out, tmp_path)
    config = json.loads((model / "config.json").read_text())
    assert (config["add_source_bos"], config["bos_token"]) == (True, "▁<2de>")
    assert export.main([*words, "--out", str(tmp_path / "x"), "--languages", "en-fr"]) == 2
    assert "--languages en-fr is no direction of the run: give en-de." in capsys.readouterr().err


@pytest.mark.long
def test_evaluate_scores_each_corpus(done, toy_commands: Forks) -> None:
    said = toy_commands.run("hvd_nmt.evaluate", "--run", "run", "--json", cwd=done[0])
    assert said.returncode == 0, said.stderr
    corpora = json.loads(said.stdout)["corpora"]
    assert list(corpora) == ["clean (en-de)", "crawled (en-de)"]
    assert [of["sentences"] for of in corpora.values()] == [24, 24]
