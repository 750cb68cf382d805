"""Runs that end themselves before their last step, on two ranks, and what the next start says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import toy
from forks import Forks
from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.find import find
from hvd_nmt.config import Config, TrainingConfig
from hvd_nmt.records.read import read_run
from hvd_nmt.reporting import questions
from hvd_nmt.reporting.answers_time import state_sentence
from hvd_nmt.training.early_end import EarlyEnd

NO_GAIN = (
    "--evaluation.every-steps", "2", "--evaluation.best-by", "bleu", "--evaluation.stop-after", "2",
    "--evaluation.sentences", "8", "--checkpoints.every-steps", "40", "--training.log-every", "4",
    # It learns nothing, so its BLEU stays what it is.
    "--training.learning-rate", "1e-9",
)  # fmt: skip


@pytest.fixture(scope="module")
def no_gain(toy_commands: Forks, toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A run on two ranks without any gain, and the same command again."""
    cwd = tmp_path_factory.mktemp("no_gain")
    options = toy.train_options(toy_data, "run", 40, *NO_GAIN)
    runs = [toy_commands.train(*options, cwd=cwd, ranks=2), toy_commands.train(*options, cwd=cwd)]
    return {"run_dir": cwd / "run", "options": options, "runs": runs}


def test_a_run_without_gain_saves_and_ends_with_0(no_gain: dict) -> None:
    done, run_dir = no_gain["runs"][0], no_gain["run_dir"]
    assert done.returncode == 0, done.stderr
    assert "after step 6: 2 evaluations in a row brought no gain in BLEU" in done.stdout
    assert "Trained to step 6 in" in done.stdout
    (end,) = toy.metrics(run_dir, "end")
    del end["time_s"]
    assert end == {
        "kind": "end", "steps": 6, "reason": "evaluation.stop_after", "value": 2,
        "because": "2 evaluations in a row brought no gain in BLEU",
    }  # fmt: skip
    assert [line["step"] for line in toy.metrics(run_dir, "eval")] == [2, 4, 6]
    assert [names.step_of(prefix) for prefix in names.prefixes(run_dir)] == [6]


def test_the_report_says_why_it_ended(no_gain: dict) -> None:
    facts = questions.gather(read_run(no_gain["run_dir"]))
    assert state_sentence(facts) == (
        "Finished at step 6 of 40: 2 evaluations in a row brought no gain in BLEU "
        "(evaluation.stop_after)."
    )
    assert facts.run.early_end.step == 6


def test_the_same_command_says_so_and_trains_nothing(no_gain: dict) -> None:
    done = no_gain["runs"][1]
    assert done.returncode == 0, done.stderr
    assert (
        "run has stopped at step 6 because 2 evaluations in a row brought no gain in BLEU; to go "
        "on, change evaluation.stop_after, which is 2."
    ) in done.stdout
    assert toy.steps_done(no_gain["run_dir"]) == 4


def test_best_models_are_named_after_what_decides(no_gain: dict) -> None:
    (first, *_) = toy.metrics(no_gain["run_dir"], "eval")
    found = find(no_gain["run_dir"], "best")
    assert found.name == f"bleu={first['sacrebleu']:.2f}-step-2"  # of equal ones the first


def test_with_another_value_of_the_option_it_goes_on(
    toy_commands: Forks, no_gain: dict, tmp_path: Path
) -> None:
    shutil.copytree(no_gain["run_dir"], tmp_path / "run")
    more = ("--evaluation.stop-after", "3")
    done = toy_commands.train(*no_gain["options"], *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "after step 8: 3 evaluations in a row brought no gain in BLEU" in done.stdout


def test_a_run_that_is_out_of_time_saves_evaluates_and_ends(
    toy_commands: Forks, toy_data: Path, tmp_path: Path
) -> None:
    """On two ranks, of which rank 0 alone looks at the clock."""
    more = ("--evaluation.every-steps", "40", "--evaluation.sentences", "2")
    options = toy.train_options(toy_data, "run", 40, *more, "--training.max-hours", "1e-6")
    done = toy_commands.train(*options, cwd=tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    (end,) = toy.metrics(tmp_path / "run", "end")
    step = end["steps"]
    assert (end["reason"], end["value"]) == ("training.max_hours", 1e-6)
    assert 1 <= step < 40
    assert [line["step"] for line in toy.metrics(tmp_path / "run", "eval")] == [step]
    assert [names.step_of(prefix) for prefix in names.prefixes(tmp_path / "run")] == [step]
    assert f"after step {step}: it has trained for 1e-06 hours" in done.stdout


def test_hours_are_those_of_all_starts() -> None:
    config = Config(training=TrainingConfig(max_hours=2.0))
    assert not EarlyEnd(config, 3600).is_out_of_time()
    late = EarlyEnd(config, 7300)
    assert late.is_out_of_time()
    assert late.record(5) == {
        "steps": 5, "reason": "training.max_hours", "value": 2.0,
        "because": "it has trained for 2 hours",
    }  # fmt: skip
    last = late.record(config.training.max_steps)
    assert (last["reason"], last["because"]) == ("training.max_steps", "")
    assert not EarlyEnd(Config(), 1e9).is_out_of_time()
