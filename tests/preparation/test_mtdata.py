"""Corpora of mtdata's index: read from its cache, or refused in one sentence."""

import hashlib
import importlib.util
import zipfile

import pytest

from hvd_nmt import prepare
from hvd_nmt.common.errors import ConfigError
from hvd_nmt.preparation import mtdata

NAME = "OPUS-tatoeba-v20230412-deu-eng"
ADDRESS = "https://object.pouta.csc.fi/OPUS-Tatoeba/v2023-04-12/moses/de-en.txt.zip"


def test_languages_and_the_installation_are_checked_first(tmp_path, monkeypatch):
    for name in (NAME, "x"):
        with pytest.raises(ConfigError, match=f"mtdata:{name} has the languages .*: give --source"):
            mtdata.download(name, ("en", "fr"), tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs mtdata: run pip install 'hvd_nmt\[mtdata\]'"):
        mtdata.download(NAME, ("en", "de"), tmp_path)


@pytest.mark.long  # mtdata makes its index, of half a minute
@pytest.mark.skipif(
    importlib.util.find_spec("mtdata") is None, reason="mtdata is not installed: .[mtdata]"
)
def test_a_corpus_comes_from_the_cache_of_mtdata(tmp_path, monkeypatch, capsys):
    digest = hashlib.md5(ADDRESS.encode()).hexdigest()
    folder = tmp_path / "mtdata" / "object.pouta.csc.fi" / digest[:4] / digest[4:]
    folder.mkdir(parents=True)
    (folder / "tatoeba.zip._valid").touch()
    with zipfile.ZipFile(folder / "tatoeba.zip", "w") as archive:
        for side, word in (("de", "Hund"), ("en", "dog")):
            lines = "".join(f"{word} {i}\n" for i in range(60))
            archive.writestr(f"Tatoeba.de-en.{side}", lines)
    monkeypatch.setenv("MTDATA", str(tmp_path / "mtdata"))
    words = ["--vocabulary-size", "40", "--dev-size", "5", "--cache", str(tmp_path / "cache"),
             "--out", str(tmp_path / "out")]  # fmt: skip
    assert prepare.main(["--corpus", f"mtdata:{NAME}", *words]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("train  60 pairs")
    assert "what is not there needs the network" in said.err
    assert (tmp_path / "out" / "dev.en").read_text().startswith("dog")
    assert prepare.main(["--corpus", f"mtdata:{NAME}", *words]) == 0
    assert "nothing to prepare" in capsys.readouterr().out
    for name, code, says in (
        (NAME.replace("20230412", "20230413"), 2, "-deu-eng: `python -m mtdata list"),
        (NAME.replace("20230412", "20220303"), 3, "see that the network is there"),
    ):
        assert prepare.main(["--corpus", f"mtdata:{name}", *words, "--overwrite"]) == code
        err = capsys.readouterr().err
        assert says in err
        assert err.count("\n") == 2  # what begins, and how it ended
