"""Packages have what Argos Translate reads, and LibreTranslate itself translates with them."""

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

import toy
from hvd_nmt.common.errors import ConfigError, RunError
from hvd_nmt.data import sentencepiece_model
from hvd_nmt.formats import argos
from hvd_nmt.formats.ctranslate2 import CTranslate2Translator
from hvd_nmt.translation import engine
from hvd_nmt.translation.settings import Settings

RUN = Path(__file__).resolve().parents[1] / "golden" / "run"
LINES = toy.sentences(50, seed=5)
NAME = "translate-en_de-1_0"
PACKAGE = f"{NAME}.argosmodel"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("argos") / "packages"
    argos.convert(RUN, "latest", out, "float32", "en-de")
    return out


def test_a_package_has_what_argos_translate_reads(out):
    assert {path.name for path in out.iterdir()} == {"README.md", "README.txt", PACKAGE}
    with zipfile.ZipFile(out / PACKAGE) as packed:
        files = {name.removeprefix(f"{NAME}/"): packed.read(name) for name in packed.namelist()}
    assert {"README.md", "model/model.bin", "minisbd/en.onnx"} < files.keys()
    assert json.loads(files["metadata.json"]) == {
        "package_version": "1.0", "argos_version": "1.9.0", "from_code": "en",
        "from_name": "English", "to_code": "de", "to_name": "German", "target_prefix": "",
    }  # fmt: skip
    assert files["sentencepiece.model"] == (RUN / "spm.model").read_bytes()
    assert not json.loads(files["model/config.json"])["add_source_bos"]


@pytest.mark.parametrize(
    ("ours", "codes"),
    [
        (("deu", "cmn_Hans"), ("de", "zh")), (("zh-Hant", "pt_BR"), ("zt", "pb")),
        (("zh_TW", "pt_PT"), ("zt", "pt")), (("en_US", "nb"), ("en", "nb")),
    ],
)  # fmt: skip
def test_languages_have_the_codes_of_libretranslate(ours, codes):
    assert argos.Direction(*ours, "").codes == codes
    assert argos._known(ours[0])[1] in ("German", "Chinese (traditional)", "English")


def test_what_cannot_be_a_package_is_one_sentence(tmp_path):
    run = shutil.copytree(RUN, tmp_path / "run")
    for languages, message in (
        ("", "data are not here: name the languages, as --languages en-de"),
        ("en-eng", "en-eng is one language"), ("english-de", "No script is known"),
        ("en", "--languages en is no direction of the run: give source and target, as in en-de"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            argos.convert(run, "latest", tmp_path / "out", "float32", languages)
    shutil.copyfile(run / "spm.model", run / "spm.source.model")
    model = sentencepiece_model.parsed((run / "spm.model").read_bytes())
    model.pieces[-1].type = sentencepiece_model.BYTE
    (run / "spm.model").write_bytes(model.SerializeToString())
    with pytest.raises(RunError, match="bytes in its target vocabulary only"):
        argos.convert(run, "latest", tmp_path / "out", "float32", "en-de")
    assert not (tmp_path / "out").exists()


def by_our_export(out, folder, lines):
    """The translations of the package's model, searched as Argos Translate does."""
    loaded = engine.load(RUN, ["latest"], Settings())
    path = argos.Direction("en", "de", "").unpacked(out, folder)
    backend = CTranslate2Translator(path, given=argos.SEARCH)
    return dataclasses.replace(loaded, backend=backend, models=[]).translate(lines)


@pytest.fixture(scope="module")
def server(out, libretranslate, tmp_path_factory):
    """The address of LibreTranslate with the package, without a network."""
    home = tmp_path_factory.mktemp("home")
    # What our README.txt and the guide say.
    packages = home / "argos-translate" / "packages"
    subprocess.run([libretranslate, "-m", "zipfile", "-e", out / PACKAGE, packages], check=True)
    (home / "argos-translate" / "index.json").write_text("[]")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    names = ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [libretranslate, "-m", "libretranslate.main", "--host", "127.0.0.1", "--port", port,
             "--load-only", "en,de"],
            cwd=home, stdout=log, stderr=log,
            env={"PATH": os.environ["PATH"]} | dict.fromkeys(names, str(home)) | nowhere,
        )  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            assert process.poll() is None, (home / "log").read_text()
            try:
                urllib.request.urlopen(f"{address}/languages").close()
                break
            except urllib.error.URLError:
                time.sleep(1)
        assert (home / "log").read_text().count("URLError") == 1  # a look-up, not 980
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_libretranslate_translates_as_our_export(server, out, tmp_path):
    body = json.dumps({"q": LINES, "source": "en", "target": "de"}).encode()
    is_json = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{server}/translate", body, is_json)
    with urllib.request.urlopen(asked) as answer:
        found = json.load(answer)["translatedText"]
    wanted = by_our_export(out, tmp_path, LINES)
    assert len({*wanted}) > 40
    # It writes small letters where the source has no capital.
    assert found == [line.lower() for line in wanted]
