"""Public data sets by their names: downloaded once, known by the digests that are written here.

`wmt16-en-de` is the corpus of the OpenSeq2Seq recipe: Europarl v7, Common Crawl and News Commentary
v11 in that order. Dev is newstest2013, test the newstest2014 with 2,737 sentences that sacreBLEU
calls wmt14. `multi30k-en-de` is task 1 of Multi30k with test_2016_flickr.
"""

import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pooch
import requests

from hvd_nmt.common.errors import DataError
from hvd_nmt.common.files import exclusive
from hvd_nmt.common.progress import progress

Files = tuple[Path, ...]

_RETRIES = 4
_SILENCE_S = 60.0
_MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
)


class Corpus(NamedTuple):
    """A source and a target file."""

    digests: Mapping[str, str]
    """digests by address: of one archive, or of the two files themselves"""
    members: tuple[str, ...] = ()
    """the two files in the archive; those that end in .sgm are made plain text"""


class Dataset(NamedTuple):
    """What has a name."""

    languages: tuple[str, str]
    vocabulary_pieces: int
    """usual size of its joint vocabulary"""
    parts: Mapping[str, tuple[Corpus, ...]]
    """the corpora of "train", "dev" and "test", to be joined in that order"""


def _archive(url: str, digest: str, *members: str) -> Corpus:
    return Corpus({f"https://{url}": digest}, members)


def _multi30k(part: str, english: str, german: str) -> tuple[Corpus, ...]:
    digests = {"en": english, "de": german}
    return (
        Corpus({f"{_MULTI30K}/{part}.{name}.gz": f"sha256:{d}" for name, d in digests.items()}),
    )


TABLE = {
    "embedded": Dataset(("en", "de"), 4_000, {}),
    "wmt16-en-de": Dataset(("en", "de"), 32_768, {
        "train": (
            _archive("www.statmt.org/europarl/v7/de-en.tgz",
                     "sha1:53bb5408d22977c89284bd755717e6bbb5b12bc5",
                     "europarl-v7.de-en.en", "europarl-v7.de-en.de"),
            _archive("www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
                     "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
                     "commoncrawl.de-en.en", "commoncrawl.de-en.de"),
            _archive("data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz",
                     "sha256:cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a",
                     "training-parallel-nc-v11/news-commentary-v11.de-en.en",
                     "training-parallel-nc-v11/news-commentary-v11.de-en.de"),
        ),
        "dev": (
            _archive("statmt.org/wmt13/test.tgz", "md5:48eca5d02f637af44e85186847141f67",
                     "test/newstest2013-src.en.sgm", "test/newstest2013-src.de.sgm"),
        ),
        "test": (
            _archive("statmt.org/wmt14/test-filtered.tgz", "md5:84c597844c1542e29c2aff23aaee4310",
                     "test/newstest2014-deen-src.en.sgm", "test/newstest2014-deen-ref.de.sgm"),
        ),
    }),
    "multi30k-en-de": Dataset(("en", "de"), 8_000, {
        "train": _multi30k("train",
            "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
            "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
        "dev": _multi30k("val",
            "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
            "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
        "test": _multi30k("test_2016_flickr",
            "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
            "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
    }),
}  # fmt: skip
NAMES = tuple(TABLE)
DEFAULT_CACHE = Path(pooch.os_cache("hvd_nmt"))


def download(name: str, cache: Path, mirror: str | None = None) -> dict[str, list[Files]]:
    """The text files of a data set, downloaded and unpacked where they are not there.

    They go into a folder of its name in the cache; a mirror, an http(s) address in place of the
    hosts, has the same files and paths. DataError: one cannot be had or is not what it should be.

    Returns:
        For each part the source and target files, UTF-8, plain or .gz, to be joined in that order.
    """
    folder = cache / name / "downloads"
    try:
        with exclusive(cache / name, out="--cache"):
            folder.mkdir(parents=True, exist_ok=True)
            return {
                part: [_files(corpus, folder, mirror) for corpus in corpora]
                for part, corpora in TABLE[name].parts.items()
            }
    except OSError as error:
        place = error.filename or folder
        why = error.strerror or error
        raise DataError(f"{place} cannot be used ({why}): choose another --cache.") from None


def _files(corpus: Corpus, folder: Path, mirror: str | None) -> Files:
    loaded = [_fetched(url, digest, folder, mirror) for url, digest in corpus.digests.items()]
    return _unpacked(loaded[0], corpus.members) if corpus.members else (loaded[0], loaded[1])


def _fetched(url: str, digest: str, folder: Path, mirror: str | None) -> Path:
    path = urlsplit(url).path
    name = path.rpartition("/")[2]
    url = mirror.rstrip("/") + path if mirror else url
    pooch.get_logger().setLevel("ERROR")
    registry = pooch.create(
        folder, base_url="", registry={name: digest}, urls={name: url}, retry_if_failed=_RETRIES
    )
    host = urlsplit(url).netloc
    shown = url.replace(host, host.rpartition("@")[2])  # without a password
    try:
        with progress(1, "B", name) as bar:  # pooch knows the size, and closes it if all goes well
            headers = {"Accept-Encoding": "identity"}  # what is called .gz stays compressed
            download = pooch.HTTPDownloader(progressbar=bar, timeout=_SILENCE_S, headers=headers)
            return Path(registry.fetch(name, downloader=download))
    except requests.RequestException as error:
        reason = str(error).partition(" for url: ")[0].rpartition(": ")[2].strip("')\"")
        raise DataError(
            f"Cannot download {shown}: {reason}. Run the same command again later, give another "
            f"--mirror, or copy the file to {folder / name}."
        ) from None
    except ValueError:  # pooch's word for a wrong digest
        raise DataError(
            f"{shown} is another file than expected, its checksum is not {digest}: try again "
            "later, or give another --mirror."
        ) from None


def _unpacked(archive: Path, members: tuple[str, ...]) -> Files:
    """Two members of an archive as plain text; they appear next to it together, or not at all."""
    names = [member.rpartition("/")[2].replace(".sgm", ".txt") for member in members]
    folder = archive.with_name(f"{archive.name}.text")
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=archive.parent) as draft:
            text = Path(draft, "text")
            text.mkdir()
            wanted = dict(zip(members, names, strict=True))
            with tarfile.open(archive, "r|gz") as tar:
                for member in tar:
                    if member.name in wanted and (source := tar.extractfile(member)):
                        with source, open(text / wanted[member.name], "wb") as target:
                            shutil.copyfileobj(source, target, 1 << 20)
            for name in names:
                if name.endswith(".txt"):
                    _make_plain(text / name)
            text.rename(folder)
    return folder / names[0], folder / names[1]


def _make_plain(sgm: Path) -> None:
    """Replaces an sgm file by its segments, one a line, as sacreBLEU does; entities stay."""
    from sacrebleu.dataset import FakeSGMLDataset  # late, for it is slow to load

    plain = sgm.with_suffix(".plain")
    FakeSGMLDataset("")._convert_format(os.fspath(sgm), os.fspath(plain))
    plain.rename(sgm)
