"""A run on several corpora with tags, and the commands that read it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import toy
from forks import Forks
from hvd_nmt.data import corpus
from hvd_nmt.explain.coverage import coverage
from hvd_nmt.records import metrics
from hvd_nmt.records.read import read_run
from hvd_nmt.records.sentences import read_sentences
from hvd_nmt.reporting import plots
from hvd_nmt.translation import engine
from hvd_nmt.translation.settings import Settings

STAGES = "[{until: 18, weights: {clean: 1, crawled: 3}}, {until: end, weights: {back: 1}}]"


@pytest.fixture(scope="module")
def done(toy_commands: Forks, mixed_data: Path, tmp_path_factory: pytest.TempPathFactory):
    """A run of 30 steps in two stages, and what it said."""
    cwd = tmp_path_factory.mktemp("mixed")
    options = toy.train_options(
        mixed_data, "run", 30, "--data.stages", STAGES, "--evaluation.sentences", "10",
        "--training.log-every", "6", "--telemetry.report",
    )  # fmt: skip
    found = toy_commands.train(*options, cwd=cwd)
    assert found.returncode == 0, found.stderr
    return cwd, found.stdout


def test_the_plan_says_how_often_each_corpus_is_seen(done) -> None:
    _, said = done
    lines = [line for line in said.splitlines() if line.startswith("stage ")]
    assert lines[0].startswith("stage 1     to step 18, ")
    assert "clean 25.0% (each pair " in lines[0]
    assert "crawled 75.0% (each pair " in lines[0]
    assert "back 100.0% (each pair " in lines[1]


def test_each_dev_corpus_is_scored(done) -> None:
    cwd, said = done
    (line,) = toy.metrics(cwd / "run", "eval")
    assert {"eval_loss/clean", "eval_loss/crawled", "sacrebleu/clean"} <= line.keys()
    assert "eval_loss/back" not in line  # it has no dev sentences
    both = [line["eval_loss/clean"], line["eval_loss/crawled"]]
    assert min(both) < line["eval_loss"] < max(both)
    assert f"  clean: validation loss {both[0]:.4f}  BLEU " in said


def test_samples_are_of_each_dev_corpus_in_turn(done, mixed_data: Path) -> None:
    _, said = done
    rows = [line.split(" | ") for line in said.splitlines() if line.startswith("| <2de>")]
    clean, crawled = (
        (mixed_data.parent / f"{name}.dev.source").read_text(encoding="utf-8").splitlines()
        for name in ("clean", "crawled")
    )
    shown = [row[0].removeprefix("| <2de> ") for row in rows]
    assert [source in clean for source in shown] == [True, False] * 2 + [True]
    assert [source in crawled for source in shown] == [False, True] * 2 + [False]


def test_the_record_tells_what_was_fed(done) -> None:
    cwd, _ = done
    run = read_run(cwd / "run")
    shares = [interval.corpora for interval in run.intervals]
    assert all(sum(of.values()) == pytest.approx(1) for of in shares)
    assert shares[0]["crawled"] == pytest.approx(0.75, abs=0.15)
    assert shares[2]["back"] == 0
    assert shares[3] == {"clean": 0, "crawled": 0, "back": 1}
    found = coverage(run)
    assert found.exact
    assert not found.faults
    assert "trained on as often as planned" in found.proof
    svg = plots.corpora(run)
    assert svg is not None
    assert all(name in svg for name in ("clean", "crawled", "back", "share of the sentences"))
    assert "The corpora, over the whole run" in (cwd / "run" / "report.md").read_text()


def test_a_doubled_sentence_is_found(done) -> None:
    cwd, _ = done
    run = read_run(cwd / "run")
    twice = dataclasses.replace(run, fed=(*run.fed, run.fed[0]))
    assert any("doubled" in fault for fault in coverage(twice).faults)


def test_an_epoch_that_ended_with_other_data_is_no_fault(done) -> None:
    run = read_run(done[0] / "run")
    lines = toy.metrics(done[0] / "run", "planned")
    assert [line["number"] for line in lines] == [each.number for each in run.planned]
    starts = [
        {"kind": "start", "first_step": first, "data_hash": of}
        for first, of in ((1, "a"), (8, "b"))
    ]
    cut = metrics.planned([starts[0], *lines[:1], starts[1], *lines[1:]])
    assert [each.was_cut for each in cut] == [True] + [False] * (len(lines) - 1)
    found = coverage(dataclasses.replace(run, planned=cut))
    assert found.others[0] == "Epoch 1 ended with other data."


def test_translated_dev_sentences_are_found_again(done, mixed_data: Path) -> None:
    cwd, _ = done
    sources, references = corpus.load(mixed_data).text("dev")
    found = read_sentences(read_run(cwd / "run"))
    assert [each.number for each in found] == [1, 2, 3, 4, 5, 25, 26, 27, 28, 29]
    assert all(each.source == sources[each.number - 1] for each in found)
    assert all(each.reference == references[each.number - 1] for each in found)


def test_translate_to_a_language(done, toy_commands: Forks) -> None:
    cwd, _ = done
    (cwd / "in.txt").write_text("the man\n<2de> the man\n\n" + "the dog sees a tree " * 9 + "\n")
    options = ("--run", "run", "--input", "in.txt", "--output")
    told = toy_commands.run("hvd_nmt.translate", *options, "told.txt", "--to", "de", cwd=cwd)
    assert told.returncode == 0, told.stderr
    untold = toy_commands.run("hvd_nmt.translate", *options, "untold.txt", cwd=cwd)
    assert "line 1: it begins with no tag of a language (de): give --to." in untold.stderr
    assert "line 4: 47 tokens, more than the 32 that the model reads: split into 2" in told.stderr
    lines = (cwd / "told.txt").read_text().split("\n")
    assert lines[0] == lines[1]
    assert lines[2] == ""
    assert (cwd / "untold.txt").read_text().split("\n")[1] == lines[1]
    wrong = toy_commands.run("hvd_nmt.translate", *options, "x.txt", "--to", "fr", cwd=cwd)
    assert wrong.returncode == 2
    assert "cannot be asked to translate to 'fr': it knows de." in wrong.stderr


def test_each_part_of_a_long_line_has_its_tags(done) -> None:
    loaded = engine.load(done[0] / "run", ["latest"], Settings(to="de"))
    tag = loaded.tags["<2de>"]
    ((one, two),), _ = loaded._parts(["the dog sees a tree " * 9])
    assert one[0] == two[0] == tag
    assert max(len(one), len(two)) <= 32
    assert [*one[1:-1], *two[1:]] == [
        *loaded.tokenizers.source.encode(["the dog sees a tree " * 9])[0]
    ]


def test_evaluate_scores_each_corpus_and_noised_text(done, toy_commands: Forks) -> None:
    cwd, _ = done
    options = ("--run", "run", "--json")
    plain = toy_commands.run("hvd_nmt.evaluate", *options, cwd=cwd)
    assert plain.returncode == 0, plain.stderr
    found = json.loads(plain.stdout)
    assert list(found["corpora"]) == ["clean (en-de)", "crawled (en-de)"]
    assert [of["sentences"] for of in found["corpora"].values()] == [24, 24]
    assert found["sentences"] == 48
    noised = toy_commands.run(
        "hvd_nmt.evaluate", *options, "--noise.typos", "0.5", "--noise.copies", "0.2", cwd=cwd
    )
    assert noised.returncode == 0, noised.stderr
    assert json.loads(noised.stdout)["noise"]["typos"] == 0.5
    assert json.loads(noised.stdout)["systems"] != found["systems"]


def test_stages_may_change_ahead_only(done, toy_commands: Forks, mixed_data: Path) -> None:
    cwd, _ = done
    other = STAGES.replace("crawled: 3", "crawled: 2")
    longer = STAGES.replace("until: end", "until: 36").replace(
        "}]", "}, {until: end, weights: {clean: 1}}]"
    )
    options = toy.train_options(mixed_data, "run", 40, "--data.stages")
    refused = toy_commands.train(*options, other, cwd=cwd)
    assert refused.returncode == 4
    assert "the epoch that it is in ends with step" in refused.stderr
    assert "up to there data.stages must stay what it was" in refused.stderr
    allowed = toy_commands.train(*options, longer, cwd=cwd)
    assert allowed.returncode == 0, allowed.stderr
    assert "stage 3     to step 40" in allowed.stdout


def test_stages_need_several_corpora(toy_commands: Forks, toy_data: Path, tmp_path: Path) -> None:
    options = toy.train_options(toy_data, "run", 4, "--data.stages", STAGES)
    found = toy_commands.train(*options, cwd=tmp_path)
    assert found.returncode == 2
    assert "has only one: prepare several with" in found.stderr
