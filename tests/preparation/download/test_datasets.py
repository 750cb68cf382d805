"""Named data sets: from archives laid out as the originals to line-aligned text."""

import dataclasses
import re
import shutil
from pathlib import Path

import pytest

import mirrors
from hvd_nmt.common.errors import DataError
from hvd_nmt.data import corpus
from hvd_nmt.data.text import read_lines
from hvd_nmt.preparation.download import datasets, fetch
from hvd_nmt.preparation.download.http_file import Limits

PATIENT = Limits(connect_s=600.0, silence_s=600.0, attempts=2, wait_s=0.01)
PAIRS = {
    "train": [(f"line {number}", f"Zeile {number}") for number in range(30)],
    "dev": [(f"dev {number} &amp; more", f"Dev {number}") for number in range(20)],
    "test": [(f"test {number}", f"Test {number}") for number in range(9)],
}


@pytest.fixture(scope="module")
def wmt(tmp_path_factory):
    """A folder with the five archives, small."""
    folder = tmp_path_factory.mktemp("wmt")
    mirrors.build_wmt(folder, PAIRS)
    return folder


def read(files):
    return [
        (source, target)
        for paths in files
        for source, target in zip(*map(read_lines, paths), strict=True)
    ]


def test_the_table_is_the_recipes():
    assert tuple(datasets.TABLE) == corpus.DATASETS
    wmt = datasets.named("wmt16-en-de").corpora()
    assert sum(one.pairs for one in wmt["train"]) == 4_562_102
    assert [wmt[part][0].remotes[0].digest for part in ("dev", "test")] == [
        "md5:48eca5d02f637af44e85186847141f67", "md5:84c597844c1542e29c2aff23aaee4310",
    ]  # fmt: skip
    assert sum(c.pairs for c in datasets.TABLE["multi30k-en-de"].parts["train"]) == 29_000
    for name in datasets.NAMES:
        assert datasets.named(name).languages == ("en", "de")
        for corpora in datasets.named(name).corpora().values():
            for one in corpora:
                assert len(one.remotes) == (2 if one.members is None else 1)
                for remote in one.remotes:
                    assert re.fullmatch(r"https://\S+/[\w.-]+\.t?gz", remote.url)
                    assert re.fullmatch(r"sha256:[0-9a-f]{64}|sha1:[0-9a-f]{40}|md5:[0-9a-f]{32}",
                                        str(remote.digest))  # fmt: skip


def test_wmt_from_a_server(wmt, tmp_path, capsys):
    with mirrors.serving(mirrors.folder_routes(wmt)) as server:
        parts = datasets.download("wmt16-en-de", tmp_path, server.url, PATIENT)
        assert {part: read(files) for part, files in parts.items()} == PAIRS
        assert [path.name for path, _ in parts["train"]] == [
            "europarl-v7.de-en.en", "commoncrawl.de-en.en", "news-commentary-v11.de-en.en",
        ]  # fmt: skip
        assert len(server.requests) == 5
        assert "commoncrawl.tgz came from a mirror and is not the original" in (
            capsys.readouterr().err
        )
    assert datasets.download("wmt16-en-de", tmp_path, server.url) == parts, "nothing to fetch"
    folder = tmp_path / "wmt16-en-de"
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["downloads", "texts.json", *(path.name for files in parts.values()
                                      for pair in files for path in pair)]
    )  # fmt: skip


def test_what_is_gone_or_cut_is_unpacked_again(wmt, tmp_path):
    parts = datasets.download("wmt16-en-de", tmp_path, str(wmt))
    (source, target), *_ = parts["train"]
    source.unlink()
    target.write_text("cut")
    assert datasets.download("wmt16-en-de", tmp_path, str(wmt)) == parts
    assert read(parts["train"]) == PAIRS["train"]


def crooked(**members):
    """An archive in place of Europarl's."""
    names = dict(zip(("en", "de"), mirrors.WMT["europarl/v7/de-en.tgz"], strict=True))
    return mirrors.tar({names.get(name, name): content for name, content in members.items()})


@pytest.mark.parametrize(
    ("path", "raw", "says"),
    [
        ("europarl/v7/de-en.tgz", crooked(en=b"a\n", de=b"a\n", **{"../x": b""}), "is refused: "),
        ("europarl/v7/de-en.tgz", crooked(en=b"a\nb\n", de=b"a\nb\nc"),
         r"en\.en has 2 lines, but .*en\.de has 3"),
        ("wmt13/test.tgz", mirrors.tar(dict(zip(
            mirrors.WMT["wmt13/test.tgz"], (mirrors.sgm(["a"]), b'<seg id="1">\xfc</seg>\n'),
            strict=True))), r"newstest2013-src\.de\.txt\.raw is not UTF-8.*original"),
    ],
    ids=["refused", "unequal", "not UTF-8"],
)  # fmt: skip
def test_an_archive_of_no_use_is_put_aside_and_another_place_can_give_it(
    wmt, tmp_path, path, raw, says
):
    mirror, cache = tmp_path / "mirror", tmp_path / "cache"
    shutil.copytree(wmt, mirror)
    (mirror / path).write_bytes(raw)
    aside = cache / "wmt16-en-de" / "downloads" / "refused" / Path(path).name
    with pytest.raises(DataError, match=rf"{says}.* It is now {aside}; the next start fetches"):
        datasets.download("wmt16-en-de", cache, str(mirror))
    assert aside.read_bytes() == raw
    assert read(datasets.download("wmt16-en-de", cache, str(wmt))["train"]) == PAIRS["train"]


def test_the_original_place_must_give_the_known_lines(wmt, tmp_path, monkeypatch):
    """The archives as if from the hosts: every file is there, its number of lines is not."""
    table = datasets.TABLE["wmt16-en-de"]
    parts = {
        part: tuple(
            dataclasses.replace(
                one,
                remotes=tuple(dataclasses.replace(r, digest=None) for r in one.remotes),
                pairs=10 if "europarl" in one.remotes[0].url else one.pairs,
            )
            for one in corpora
        )
        for part, corpora in table.corpora().items()
    }
    monkeypatch.setitem(datasets.TABLE, "wmt16-en-de", dataclasses.replace(table, parts=parts))
    datasets.download("wmt16-en-de", tmp_path, str(wmt))
    monkeypatch.setattr(fetch, "_retrieve", lambda *_: None)  # all is in the cache
    with pytest.raises(DataError, match=r"commoncrawl.*has 10 lines instead of 2,399,123"):
        datasets.download("wmt16-en-de", tmp_path)
