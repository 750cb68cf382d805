"""COMET in its own environment: what goes wrong there."""

import os
from pathlib import Path

import pytest

from hvd_nmt import evaluate
from hvd_nmt.translation import comet


@pytest.mark.parametrize(
    ("script", "code", "why"),
    [
        ("echo no memory >&2; kill -9 $$", 4, "its process ended with code -9 (no memory)"),
        (None, 2, "make it with launch/comet.sh, or name one by HVD_NMT_COMET=DIR"),
    ],
)
def test_an_environment_that_fails_or_is_missing_is_one_sentence(
    script, code, why, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(comet.ENVIRONMENT, os.fspath(tmp_path / "environment"))
    for name in (
        "source",
        "reference",
        "ours",
        "model/hparams.yaml",
        "model/checkpoints/model.ckpt",
    ):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("a red house\n")
    if script:
        python = tmp_path / "environment" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    words = "--source source --reference reference --hypotheses ours --comet model"
    assert evaluate.main(words.split()) == code
    err = capsys.readouterr().err
    assert why in err
    assert err.count("\n") == 1
