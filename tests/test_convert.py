"""hvd_nmt.convert: its command line. What it converts is tested in tests/formats."""

import types
from pathlib import Path

import pytest

from hvd_nmt import config as configuration
from hvd_nmt import convert

THEIRS = ("--from", "openseq2seq", "--checkpoint", "x", "--vocabulary", "m.model", "--heads", "8",
          "--out", "run")  # fmt: skip
MARIAN = ("--from", "marian", "--model", "opus", "--out", "run")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--from", "openseq2seq", "--out", "run", "--checkpoint", "x"), "needs --vocabulary"),
        (("--from", "marian", "--out", "run"), "needs --model"),
        ((*THEIRS[:-4], *THEIRS[-2:]), "does not say how many attention heads"),
        ((*THEIRS, "--model", "opus"), "--model belongs to --from marian"),
        ((*MARIAN, "--vocabulary", "x"), "--vocabulary belongs to --from openseq2seq"),
        ((*THEIRS, "--heads", "-1"), "--heads, at least 1"),
        ((*MARIAN[:-1], "."), "working directory"),
        ((*MARIAN, "--config", "none.yaml"), "none.yaml cannot be read"),
    ],
)
def test_a_command_line_that_cannot_work(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert convert.main(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("hvd_nmt.convert: ")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("moments", [True, False])
def test_data_are_prepared_before_training_goes_on(moments):
    model = types.SimpleNamespace(
        config=configuration.presets()["base"][1].model, parameters=1, vocabulary_size=2, step=3,
        source_vocabulary_size=0, moments=moments,
    )  # fmt: skip
    *_, data, on = convert._lines(model, Path("runs/imported/model.ckpt-3"))
    assert "hvd_nmt.prepare --vocabulary runs/imported/spm.model --out DATA" in data
    assert "--config runs/imported/config.yaml --data.directory DATA" in on
    assert ("--init-from runs/imported" in on) != moments
