"""Named data sets: from archives laid out as the originals, on a server, to line-aligned text."""

import errno
import re
import shutil
import time

import pytest
from sacrebleu.dataset import DATASETS
from tqdm import tqdm

import mirrors
from hvd_nmt.common.errors import DataError
from hvd_nmt.data.text import read_lines
from hvd_nmt.preparation import datasets

PAIRS = {
    "train": [(f"line {number}", f"Zeile {number}") for number in range(30)],
    "dev": [(f"dev {number} &amp; more", f"Dev {number}") for number in range(20)],
    "test": [(f"test {number}", f"Test {number}") for number in range(9)],
}
EUROPARL = "europarl/v7/de-en.tgz"


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """A folder with the five archives, small."""
    folder = tmp_path_factory.mktemp("wmt")
    mirrors.build_wmt(folder, PAIRS)
    return folder


@pytest.fixture
def wmt(archives, tmp_path, monkeypatch):
    """Downloads the small archives from a place: wmt(mirror) -> {part: files}."""
    mirrors.pin(monkeypatch, archives)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return lambda mirror: datasets.download("wmt16-en-de", tmp_path / "cache", mirror)


def read(parts):
    return {
        part: [pair for two in files for pair in zip(*map(read_lines, two), strict=True)]
        for part, files in parts.items()
    }


def test_the_table_is_the_recipes():
    parts = datasets.TABLE["wmt16-en-de"].parts
    for part, name in (("dev", "wmt13"), ("test", "wmt14")):
        theirs, (ours,) = DATASETS[name], parts[part]
        assert ours.digests == {theirs.data[0]: f"md5:{theirs.md5[0]}"}
        assert list(ours.members) == theirs.langpairs["en-de"]
    for dataset in datasets.TABLE.values():
        for one in (one for corpora in dataset.parts.values() for one in corpora):
            assert (len(one.digests), len(one.members)) in ((1, 2), (2, 0))
            for url, digest in one.digests.items():
                assert re.fullmatch(r"https://\S+/[\w.-]+\.t?gz", url)
                assert re.fullmatch(r"(sha256:\w{24}|sha1:\w{8}|md5:)[0-9a-f]{32,40}", digest)


def test_wmt_from_a_server(wmt, archives):
    with mirrors.serving(archives, failing=2) as server:
        parts = wmt(server.url)
        assert read(parts) == PAIRS
        assert [path.name for path, _ in parts["train"]] == [
            "europarl-v7.de-en.en", "commoncrawl.de-en.en", "news-commentary-v11.de-en.en",
        ]  # fmt: skip
        assert len(server.requests) == 2 + 5, "what fails is fetched again"
        assert server.requests[0][1]["Accept-Encoding"] == "identity"
    assert wmt(server.url) == parts, "nothing to fetch"


def test_other_bytes_are_refused_and_a_damaged_file_is_fetched_again(wmt, archives, tmp_path):
    place, downloads = tmp_path / "mirror", tmp_path / "cache" / "wmt16-en-de" / "downloads"
    good = (shutil.copytree(archives, place) / EUROPARL).read_bytes()
    (place / EUROPARL).write_bytes(mirrors.tar({"../../evil": b"x"}))
    with mirrors.serving(place) as server:
        with pytest.raises(DataError, match=r"de-en.tgz is another file than expected.* sha256:"):
            wmt(server.url)
        assert list(downloads.iterdir()) == []
        (downloads / "de-en.tgz").write_bytes(good[:-1])
        (place / EUROPARL).write_bytes(good)
        assert read(wmt(server.url)) == PAIRS


def test_text_appears_whole_or_not_at_all(wmt, archives, tmp_path, monkeypatch):
    def no_room(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with mirrors.serving(archives) as server:
        with monkeypatch.context() as full:
            full.setattr(datasets, "_make_plain", no_room)
            with pytest.raises(DataError, match=r"used \(No space left on.* --cache"):
                wmt(server.url)
        assert not (tmp_path / "cache" / "wmt16-en-de" / "downloads" / "test.tgz.text").exists()
        assert read(wmt(server.url)) == PAIRS


def test_a_server_that_is_not_there_is_one_sentence_without_a_password(wmt, tmp_path):
    with mirrors.serving(tmp_path) as server:
        gone = server.url.replace("//", "//user:secret@")
        with pytest.raises(DataError, match=r"Cannot download .*/de-en.tgz: (File )?[Nn]ot [Ff]ou"):
            wmt(gone)
    with pytest.raises(DataError, match=r"Connection refused.* --mirror, or copy the") as caught:
        wmt(gone)
    assert not re.search("secret|\n", str(caught.value))
    assert not tqdm._instances  # no bar is left, under which the next would be
