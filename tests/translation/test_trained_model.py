"""The Python interface: what the command says, as Python values."""

import math
import subprocess
import sys

import pytest

import copying
import hvd_nmt
from hvd_nmt import translate
from hvd_nmt.checkpoints import weights
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.formats import ctranslate2  # noqa: F401 - first imported below, it kept the stand-in
from hvd_nmt.model.decoding import Decoding
from hvd_nmt.translation.settings import Settings


def test_importing_the_package_is_quick_and_imports_no_tensorflow():
    code = (
        "import sys, hvd_nmt; hvd_nmt.load, hvd_nmt.open_run;"
        "print([name for name in sys.modules if name.startswith('hvd_nmt.')],"
        " {'tensorflow', 'numpy', 'horovod'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (
        "['hvd_nmt.common', 'hvd_nmt.common.version'] set()\n",
        "",
    )


def test_translations_and_scores_are_those_of_the_command(toy_run, toy_data, tmp_path):
    sources, targets = (
        (toy_data / f"dev.{language}").read_text(encoding="utf-8").splitlines()[:12]
        for language in ("en", "de")
    )
    model = hvd_nmt.load(toy_run, settings=Settings(decoding=Decoding(min_length=6)))
    lines, scores = model.translate(sources), model.score(zip(sources, targets, strict=True))
    (tmp_path / "en").write_text("\n".join(sources))
    (tmp_path / "de").write_text("\n".join(targets))
    words = ["--run", str(toy_run), "--input", str(tmp_path / "en"), "--output"]
    pairs = ["--score", "--target", str(tmp_path / "de")]
    assert translate.main([*words, str(tmp_path / "out"), "--min-length", "6"]) == 0
    assert translate.main([*words, str(tmp_path / "scores"), *pairs]) == 0
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == lines
    assert any(lines)
    shown = (tmp_path / "scores").read_text().splitlines()
    assert shown == [f"{score:.4f}" for score in scores]


@pytest.fixture
def copies(copy_run, monkeypatch):
    monkeypatch.setattr(weights, "load_model", copying.load_model)
    return copy_run


def test_a_long_line_is_a_warning(copies):
    with pytest.warns(UserWarning, match="line 2: 181 tokens, more than the 40 .* split"):
        (_, line) = hvd_nmt.load(copies, "copy").translate(["dog", "the red house on a man " * 30])
    assert line == ("the red house on a man " * 30).strip()


def test_a_translation_that_is_too_long_is_cut_and_scored(toy_run):
    with pytest.warns(UserWarning, match="line 1: the target has"):
        (score,) = hvd_nmt.load(toy_run).score([("dog", "hund " * 400)])
    assert math.isfinite(score)


def test_other_threads_than_tensorflow_has_are_a_mistake(toy_run):
    hvd_nmt.load(toy_run).translate(["a dog"])
    with pytest.raises(ConfigError, match="cannot work with 7 threads"):
        hvd_nmt.load(toy_run, settings=Settings(threads=7))
