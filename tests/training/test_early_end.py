"""Runs that end themselves before their last step, and what the next start says."""

import shutil
from pathlib import Path

import pytest

import toy
from forks import Forks
from hvd_nmt.checkpoints import names
from hvd_nmt.checkpoints.find import find
from hvd_nmt.config import Config, TrainingConfig
from hvd_nmt.records.read import read_run
from hvd_nmt.records.record import End
from hvd_nmt.reporting.run_summary import RunSummary
from hvd_nmt.training.stop import EarlyStopping

NO_GAIN = (
    "--evaluation.every-steps", "2", "--evaluation.best-by", "bleu", "--evaluation.stop-after", "1",
    "--evaluation.sentences", "2", "--checkpoints.every-steps", "40", "--training.log-every", "4",
    # It learns nothing, so its BLEU stays what it is.
    "--training.learning-rate", "1e-9",
)  # fmt: skip
BECAUSE = "1 evaluation in a row brought no gain in BLEU"


@pytest.fixture(scope="module")
def no_gain(toy_commands: Forks, toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A run without any gain, and the same command again."""
    cwd = tmp_path_factory.mktemp("no_gain")
    options = toy.train_options(toy_data, "run", 40, *NO_GAIN)
    runs = [toy_commands.train(*options, cwd=cwd, eager=True) for _ in range(2)]
    return {"run_dir": cwd / "run", "options": options, "runs": runs}


def test_a_run_without_gain_saves_and_ends_with_0(no_gain: dict) -> None:
    done, run_dir = no_gain["runs"][0], no_gain["run_dir"]
    assert done.returncode == 0, done.stderr
    assert f"after step 4: {BECAUSE}" in done.stdout
    (end,) = toy.metrics(run_dir, "end")
    del end["time_s"]
    assert end == {
        "kind": "end", "steps": 4, "reason": "evaluation.stop_after", "value": 1,
        "because": BECAUSE,
    }  # fmt: skip
    assert [line["step"] for line in toy.metrics(run_dir, "eval")] == [2, 4]
    assert [names.step_of(prefix) for prefix in names.prefixes(run_dir)] == [2, 4]
    assert RunSummary(read_run(run_dir)).headline[0][1] == (
        f"Finished at step 4 of 40: {BECAUSE} (evaluation.stop_after)."
    )


def test_the_same_command_says_so_and_trains_nothing(no_gain: dict) -> None:
    done = no_gain["runs"][1]
    assert done.returncode == 0, done.stderr
    assert (
        f"run has stopped at step 4 because {BECAUSE}: to continue, change evaluation.stop_after, "
        "which is 1."
    ) in done.stdout
    assert toy.steps_done(no_gain["run_dir"]) == 4


def test_best_models_are_named_after_what_decides(no_gain: dict) -> None:
    (first, *_) = toy.metrics(no_gain["run_dir"], "eval")
    found = find(no_gain["run_dir"], "best")
    assert found.name == f"bleu={first['sacrebleu']:.2f}-step-2"  # of equal ones the first


@pytest.mark.long
def test_with_another_value_of_the_option_it_goes_on_until_it_is_out_of_time(
    toy_commands: Forks, no_gain: dict, tmp_path: Path
) -> None:
    """On two ranks, of which rank 0 alone looks at the clock; it saves and evaluates."""
    shutil.copytree(no_gain["run_dir"], tmp_path / "run")
    more = ("--evaluation.stop-after", "9", "--training.max-hours", "1e-6")
    done = toy_commands.train(*no_gain["options"], *more, cwd=tmp_path, ranks=2, eager=True)
    assert done.returncode == 0, done.stderr
    run_dir = tmp_path / "run"
    *_, end = toy.metrics(run_dir, "end")
    step = end["steps"]
    assert (end["reason"], end["value"]) == ("training.max_hours", 1e-6)
    assert 5 <= step < 40
    assert toy.metrics(run_dir, "eval")[-1]["step"] == step
    assert max(map(names.step_of, names.prefixes(run_dir))) == step
    assert f"after step {step}: it has trained for 1e-06 hours" in done.stdout


def test_hours_are_those_of_all_starts() -> None:
    config = Config(training=TrainingConfig(max_hours=2.0))
    assert not EarlyStopping(config, 3600).is_out_of_time()
    late = EarlyStopping(config, 7300)
    assert late.is_out_of_time()
    assert late.end(5) == End(5, "training.max_hours", 2.0, "it has trained for 2 hours")
    last = late.end(config.training.max_steps)
    assert (last.option, last.because) == ("training.max_steps", "")
    assert not EarlyStopping(Config(), 1e9).is_out_of_time()
