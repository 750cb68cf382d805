"""Named data sets: where their files are, what is in them, and how they come to be here.

`wmt16-en-de` is the corpus of the OpenSeq2Seq recipe: Europarl v7, Common Crawl and News Commentary
v11 in that order, newstest2013 as dev, and newstest2014 as test in the form with 2,737 sentences
that sacreBLEU calls wmt14. `multi30k-en-de` is task 1 of Multi30k with test_2016_flickr.

The test sets of WMT are sacreBLEU's: it says where they are, and its parser reads their sgm files,
so that scores can be compared.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pooch

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.files import exclusive, rename_together, write_atomically
from hvd_nmt.config import nearest
from hvd_nmt.preparation.download import archive
from hvd_nmt.preparation.download.fetch import Remote, fetch, put_aside, sha256
from hvd_nmt.preparation.download.http_file import USUAL, Limits

Files = tuple[Path, Path]

_MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
)
_TEXTS = "texts.json"


@dataclass(frozen=True)
class Corpus:
    """A source and a target file."""

    remotes: tuple[Remote, ...]
    """one archive, or the two files themselves"""
    pairs: int
    """lines of each file"""
    members: tuple[str, str] | None = None
    """the two files in the archive; those that end in .sgm are made plain text"""


@dataclass(frozen=True)
class SacrebleuTestSet:
    """A test set that sacreBLEU knows by name."""

    name: str
    pairs: int
    """lines of each file"""

    def corpus(self, languages: tuple[str, str]) -> Corpus:
        """Its archive and the members of these languages, by sacreBLEU's table."""
        from sacrebleu.dataset import DATASETS  # late, for it is slow to load

        test_set = DATASETS[self.name]
        source, reference = test_set.langpairs["-".join(languages)]
        remote = Remote(test_set.data[0], f"md5:{test_set.md5[0]}")
        return Corpus((remote,), self.pairs, (source, reference))


@dataclass(frozen=True)
class Dataset:
    """What has a name."""

    languages: tuple[str, str]
    vocabulary_pieces: int
    """usual size of its joint vocabulary"""
    parts: dict[str, tuple[Corpus | SacrebleuTestSet, ...]]
    """the corpora of "train", "dev" and "test", to be joined in that order"""

    def corpora(self) -> dict[str, list[Corpus]]:
        """The same with test sets looked up."""
        return {
            part: [one if isinstance(one, Corpus) else one.corpus(self.languages) for one in found]
            for part, found in self.parts.items()
        }


def _archive(url: str, pairs: int, stem: str, digest: str, n_bytes: int) -> Corpus:
    """English and German text in one archive; `stem` is its members' name without the language."""
    return Corpus((Remote(url, digest, n_bytes),), pairs, (f"{stem}.en", f"{stem}.de"))


def _multi30k(part: str, pairs: int, *files: tuple[str, str, int]) -> tuple[Corpus, ...]:
    remotes = tuple(
        Remote(f"{_MULTI30K}/{part}.{language}.gz", f"sha256:{digest}", n_bytes)
        for language, digest, n_bytes in files
    )
    return (Corpus(remotes, pairs),)


TABLE = {
    "embedded": Dataset(("en", "de"), 4_000, {}),  # in the package
    "wmt16-en-de": Dataset(("en", "de"), 32_768, {
        "train": (
            _archive("https://www.statmt.org/europarl/v7/de-en.tgz", 1_920_209,
                     "europarl-v7.de-en",
                     "sha1:53bb5408d22977c89284bd755717e6bbb5b12bc5", 197_785_698),
            _archive("https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz", 2_399_123,
                     "commoncrawl.de-en",
                     "sha256:"
                     "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
                     918_311_367),
            _archive("https://data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz",
                     242_770, "training-parallel-nc-v11/news-commentary-v11.de-en",
                     "sha256:"
                     "cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a",
                     75_178_032),
        ),
        "dev": (SacrebleuTestSet("wmt13", 3_000),),
        "test": (SacrebleuTestSet("wmt14", 2_737),),
    }),
    "multi30k-en-de": Dataset(("en", "de"), 8_000, {
        "train": _multi30k("train", 29_000,
            ("en", "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f", 568_929),
            ("de", "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6", 637_044)),
        "dev": _multi30k("val", 1_014,
            ("en", "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28", 21_650),
            ("de", "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a", 24_681)),
        "test": _multi30k("test_2016_flickr", 1_000,
            ("en", "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9", 21_077),
            ("de", "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8", 22_890)),
    }),
}  # fmt: skip
NAMES = tuple(TABLE)


def named(name: str) -> Dataset:
    """The data set of a name.

    Raises:
        ConfigError: there is none.
    """
    if name not in TABLE:
        raise ConfigError(
            f"There is no data set {name!r}{nearest(name, TABLE)}: there are {', '.join(NAMES)}."
        )
    return TABLE[name]


def default_cache() -> Path:
    """Where data sets are kept if nobody says otherwise: the user's cache directory."""
    return Path(pooch.os_cache("hvd_nmt"))


def download(
    name: str, cache: Path, mirror: str | None = None, limits: Limits = USUAL
) -> dict[str, list[Files]]:
    """Returns the text files of a named data set, downloading and unpacking what is not there.

    The same call again uses what is there, after comparing check sums. It may be interrupted
    anywhere: the next one goes on.

    Args:
        name: one of `NAMES`.
        cache: the files go into a folder of the data set's name in it.
        mirror: an http(s) address or a folder in place of the hosts, as `fetch.fetch`. It may
            hold other text, which is said on stderr.
        limits: of a download.

    Returns:
        For each part the source and target files, UTF-8, plain or .gz, to be joined in that order.

    Raises:
        ConfigError: unknown name, or a mirror that is none.
        DataError: a file cannot be had or is not what it should be.
    """
    parts = named(name).corpora()
    folder = cache / name
    try:
        with exclusive(folder):
            folder.mkdir(exist_ok=True)
            return {
                part: [_fetched(corpus, folder, mirror, limits) for corpus in corpora]
                for part, corpora in parts.items()
            }
    except OSError as error:
        place = error.filename or folder
        raise DataError(f"{place} cannot be used: {error.strerror or error}.") from None


def _fetched(corpus: Corpus, folder: Path, mirror: str | None, limits: Limits) -> Files:
    loaded = _downloaded(corpus, folder / "downloads", mirror, limits)
    bound = mirror is None
    try:
        if corpus.members is not None:
            return _unpacked(loaded[0], corpus, folder, bound)
        source, target = loaded
        _check_lines((source, target), [_lines_of(path) for path in loaded], corpus.pairs, bound)
        return source, target
    except archive.UselessError as error:
        aside = " and ".join(str(put_aside(path)) for path in loaded)
        raise DataError(f"{error} It is now {aside}; the next start fetches it anew.") from None


def _downloaded(corpus: Corpus, folder: Path, mirror: str | None, limits: Limits) -> list[Path]:
    paths = [fetch(remote, folder, mirror, limits) for remote in corpus.remotes]
    for remote, path in zip(corpus.remotes, paths, strict=True):
        if mirror is not None and remote.digest is not None:
            kind, _, digest = remote.digest.partition(":")
            if pooch.file_hash(str(path), kind) != digest:
                print(f"{path} came from a mirror and is not the original file.", file=sys.stderr)
    return paths


def _unpacked(path: Path, corpus: Corpus, folder: Path, bound: bool) -> Files:
    """The plain text of both members of an archive, made in `folder` if it is not there.

    If `bound`, the number of lines must be that of the table.
    """
    assert corpus.members is not None
    texts = _texts(folder)
    files = tuple(folder / _text_name(member) for member in corpus.members)
    digest = sha256(path)
    if not all(_is_whole(file, digest, texts) for file in files):
        raw = {
            member: file.with_name(f"{file.name}.raw")
            for member, file in zip(corpus.members, files, strict=True)
        }
        try:
            archive.extract(path, raw)
            for member, file in zip(raw.values(), files, strict=True):
                if file.suffix == ".txt":
                    _parse_sgm(member, file)
                else:
                    rename_together([(member, file)])
        finally:
            for left in raw.values():
                left.unlink(missing_ok=True)
        for file in files:
            facts = {"of": digest, "bytes": file.stat().st_size, "lines": _lines_of(file)}
            texts[file.name] = facts
        write_atomically(folder / _TEXTS, json.dumps(texts, indent=1, sort_keys=True) + "\n")
    _check_lines(files, [texts[file.name]["lines"] for file in files], corpus.pairs, bound)
    return files[0], files[1]


def _texts(folder: Path) -> dict[str, Any]:
    """What was unpacked before: from which archive, and how much."""
    try:
        return dict(json.loads((folder / _TEXTS).read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def _text_name(member: str) -> str:
    name = member.rpartition("/")[2]
    return name.removesuffix(".sgm") + ".txt" if name.endswith(".sgm") else name


def _is_whole(file: Path, digest: str, texts: dict[str, Any]) -> bool:
    known = texts.get(file.name, {})
    whole = file.is_file() and file.stat().st_size == known.get("bytes")
    return whole and known["of"] == digest


def _parse_sgm(path: Path, text: Path) -> None:
    """Writes the segments of an sgm file, one a line, as sacreBLEU does; entities stay."""
    from sacrebleu.dataset import FakeSGMLDataset

    try:
        FakeSGMLDataset("")._convert_format(os.fspath(path), os.fspath(text))
    except UnicodeDecodeError as error:
        raise archive.UselessError(
            f"{path} is not UTF-8 ({error}): get the original file."
        ) from None


def _lines_of(path: Path) -> int:
    """Lines as everywhere here: 0x0A ends one, and bytes after the last 0x0A are one too."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as stream:
            return sum(1 for _ in stream)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise archive.DamagedError(f"{path} is not a whole gzip file ({error}).") from None


def _check_lines(files: tuple[Path, ...], lines: list[int], pairs: int, bound: bool) -> None:
    if lines[0] != lines[1]:
        raise archive.UselessError(
            f"{files[0]} has {lines[0]:,} lines, but {files[1]} has {lines[1]:,}: this is not the "
            "original file; get that, or name another place with --mirror."
        )
    if bound and lines[0] != pairs:
        raise archive.UselessError(
            f"{files[0]} has {lines[0]:,} lines instead of {pairs:,}: the original has changed; "
            "name a place that has the old one with --mirror, or take it as it is with --mirror "
            "and the folder that it is in."
        )
