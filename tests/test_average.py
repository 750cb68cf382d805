"""The command: checkpoints of a run in, a run directory that translates out."""

import shutil
from pathlib import Path

import pytest

from hvd_nmt import average, translate
from hvd_nmt.common.errors import ConfigError


@pytest.fixture
def run(toy_run, tmp_path):
    """A copy of the run with the checkpoints of steps 20, 30 and 40 alone."""
    copy = shutil.copytree(toy_run, tmp_path / "run")
    for path in copy.glob("model.ckpt-10.*"):
        path.unlink()
    return copy


def test_the_last_as_many_as_there_are_or_the_best(run, tmp_path, capsys):
    target = tmp_path / "run-average"
    assert average.main(["--run", str(run)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("the mean of 3 checkpoints:")
    for step in (20, 30, 40):
        assert f"{run / f'model.ckpt-{step}'}  step {step}" in said
    assert f"hvd_nmt.translate --run {target} < in.txt" in said
    (tmp_path / "in").write_text("the old man sees a bird\n\na dog sings\n", encoding="utf-8")
    words = ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    assert translate.main([*words, "--run", str(target), "--beam-size", "2"]) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8").count("\n") == 3
    assert average.main(["--run", str(target)]) == 4
    assert f"{target} has 1 such checkpoint, but a mean needs 2" in capsys.readouterr().err

    command = ["--run", str(run), "--best", "2", "--out", str(tmp_path / "mean")]
    assert average.main(command) == 0
    assert "best_models/val_loss=" in capsys.readouterr().out
    assert average.main(command) == 2
    assert f"{tmp_path / 'mean'} already exists" in capsys.readouterr().err


def test_a_checkpoint_goes_in_once(run, tmp_path, capsys):
    words = ["--run", str(run), "--out", str(tmp_path / "new"), "--checkpoints", "model.ckpt-40"]
    for twice in ("model.ckpt-40", "latest"):
        assert average.main([*words, "model.ckpt-30", twice]) == 2
        assert "--checkpoints names the same weights twice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"last": 3, "best": 3}, "--last and --best exclude each other"),
        ({"best": 3, "checkpoints": ("a", "b")}, "--best and --checkpoints exclude"),
        ({"last": 0}, "--last gives 0: a mean needs 2"),
        ({"checkpoints": ("a",)}, "--checkpoints gives 1: a mean needs 2"),
        ({"raw": True, "last": 2}, "--raw takes one checkpoint"),
    ],
)
def test_choices_that_make_no_mean_are_refused(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        average.AverageOptions(run=tmp_path, **options)


def test_target_of_the_working_directory_has_its_name(tmp_path, monkeypatch):
    (tmp_path / "x").mkdir()
    monkeypatch.chdir(tmp_path / "x")
    for run in (Path(), Path("../x"), tmp_path / "x"):
        assert average.AverageOptions(run=run).target == tmp_path / "x-average"
