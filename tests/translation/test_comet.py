"""COMET in its own environment: a tiny real model, and what goes wrong there."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from hvd_nmt import evaluate
from hvd_nmt.translation import comet

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = comet._environment() / "bin" / "python"
SOURCE = ["the man sees a dog", "a red house", "the dog is big", "a man"]
REFERENCE = ["ein Mann sieht einen Hund", "ein rot Haus", "Hund groß", "ein Mann"]
_PREDICT = """
import json, sys
from comet import load_from_checkpoint
model = load_from_checkpoint(sys.argv[1], local_files_only=True)
found = [model.predict(rows, gpus=0, progress_bar=False) for rows in json.load(sys.stdin)]
print(json.dumps([each.system_score for each in found]))
"""
OURS, THEIRS = REFERENCE, ["Hund", "Haus Haus", "ein Mann", "einen"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A COMET model of random weights, saved by COMET itself."""
    if not PYTHON.exists():
        pytest.skip(f"needs {PYTHON.parents[1]}, which launch/comet.sh makes ({comet.ENVIRONMENT})")
    folder = tmp_path_factory.mktemp("comet") / "model"
    done = subprocess.run([PYTHON, "-W", "ignore", HERE / "tiny_comet.py", folder],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A working directory with text, and the options that name it."""
    monkeypatch.chdir(tmp_path)
    texts = {"source": SOURCE, "reference": REFERENCE, "ours": OURS, "theirs": THEIRS}
    for name, lines in texts.items():
        Path(name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return ("--source", "source", "--reference", "reference", "--hypotheses", "ours", "theirs",
            "--comet")  # fmt: skip


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment whose Python is a shell script."""

    def made(script):
        python = tmp_path / "environment" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        monkeypatch.setenv(comet.ENVIRONMENT, os.fspath(tmp_path / "environment"))
        (tmp_path / "model" / "checkpoints").mkdir(parents=True)
        (tmp_path / "model" / "hparams.yaml").write_text("")
        (tmp_path / "model" / "checkpoints" / "model.ckpt").write_text("")
        return "model"

    return made


@pytest.mark.long
def test_each_system_has_comet_s_own_score_beside_bleu(model, files, capsys):
    """As COMET computes it for one system at a time."""
    assert evaluate.main([*files, str(model), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    systems = [
        [{"src": s, "mt": m, "ref": r} for s, m, r in zip(SOURCE, lines, REFERENCE, strict=True)]
        for lines in (OURS, THEIRS)
    ]
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", _PREDICT, model / "checkpoints" / "model.ckpt"],
        input=json.dumps(systems), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wanted = json.loads(done.stdout.splitlines()[-1])
    scores = [row["scores"]["COMET"] for row in found["systems"]]
    assert [s["score"] / 100 for s in scores] == pytest.approx(wanted, rel=1e-5)
    assert scores[0]["p_value"] is None
    assert 0 < scores[1]["p_value"] <= 1
    assert all(s["low"] < s["score"] < s["high"] for s in scores)
    assert found["signatures"]["COMET"].startswith("bs:1000|seed:12345|model:model|")
    assert {"BLEU", "chrF2", "TER"} < found["systems"][0]["scores"].keys()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo no memory >&2; kill -9 $$", "its process ended with code -9 (no memory)"),
        ("cat > /dev/null", "its process ended with code 0"),
        ("sleep 600", "its process said nothing for 0.1 s"),
        ("""echo '{"error": "ValueError: so it is"}'""", "ValueError: so it is"),
        ("""echo '{"scores": [1, NaN]}'""", "it gives scores that are not finite"),
    ],
)
def test_what_goes_wrong_there_is_one_sentence(
    script, why, environment, files, capsys, monkeypatch
):
    monkeypatch.setattr(comet, "SILENT_S", 0.1 if "sleep" in script else 600.0)
    assert evaluate.main([*files, environment(script)]) == 4
    out, err = capsys.readouterr()
    assert "BLEU" in out
    assert err.count("\n") == 1
    assert why in err


def test_what_is_missing_is_said_at_once(environment, files, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(comet.ENVIRONMENT, os.fspath(tmp_path / "none"))
    assert evaluate.main([*files, "model"]) == 2
    assert "make it with launch/comet.sh, or name one by HVD_NMT_COMET=DIR" in (
        capsys.readouterr().err
    )
    environment("exit 1")
    assert evaluate.main([*files, "missing"]) == 2
    assert "there is no file missing, a checkpoint of COMET" in capsys.readouterr().err
    assert evaluate.main([*files[2:], "model"]) == 2
    assert "--comet without --run needs --source" in capsys.readouterr().err
