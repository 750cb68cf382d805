"""The raw files of corpora: one of the command line, or several of the YAML file of `--corpora`.

The file's form is in docs/guide/corpora.md. Paths in it are relative to it.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.common.files import FileFacts, fingerprint
from hvd_nmt.config.mixture import AS_IS, Weight, weight_of
from hvd_nmt.config.serialization import from_plain, nearest, read_yaml
from hvd_nmt.data.text import LineBlock, pair_blocks
from hvd_nmt.preparation import bitext, mtdata
from hvd_nmt.preparation.bitext import Columns
from hvd_nmt.preparation.cleaning import CleaningRules
from hvd_nmt.preparation.subwords import require_tags

_SIDES = ("source", "target")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_HELD_OUT = ("dev", "test")
_OF_A_PART = (*_SIDES, "file", "columns")
_TEXTS = (*_SIDES, "file", "name", "source_language", "target_language", "tags", "date")

Paths = tuple[Path, ...]
"""a source file and its translation, line by line; or one file with both sides"""


class Input(NamedTuple):
    """The raw text of a part."""

    paths: Sequence[Paths]
    """files, one after the other"""
    facts: Sequence[tuple[FileFacts, FileFacts]]
    """what each of these files is"""
    languages: tuple[str, str] = ("", "")
    """source and target language, by which a file with both sides is read"""
    columns: Columns = Columns()
    """columns of a TSV file"""

    @classmethod
    def of(
        cls, paths: Sequence[Paths], languages: tuple[str, str] = ("", ""),
        columns: Columns | None = None,
    ) -> "Input":  # fmt: skip
        """Reads the files' digests; raises as `file_facts`, and as `require_one_side`."""
        pairs = []
        for files in paths:
            facts = [file_facts(file) for file in files]
            pairs.append((facts[0], facts[-1]))
            for side in {*files} if len(files) > 1 else ():
                bitext.require_one_side(side)
        return cls(paths, pairs, languages, columns or Columns())

    @property
    def files(self) -> list[FileFacts]:
        """What all sources and all targets are; of several files, the digest of their digests."""
        return [*map(joined_facts, zip(*self.facts, strict=True))]

    def blocks(self) -> Iterator[tuple[Paths, int, LineBlock]]:
        """The line pairs, their files, the pairs of the files before; raises as `pair_blocks`."""
        before = 0
        for paths in self.paths:
            if len(paths) == 1:
                blocks = bitext.blocks(paths[0], self.languages, self.columns)
            else:
                blocks = pair_blocks(*paths)
            for block in blocks:
                yield paths, before, block
            before += block.first + block.pairs - 1


def file_facts(path: Path) -> FileFacts:
    """What a file is; DataError: it cannot be read, or not more than once."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(
            f"{path} is a pipe or a device, but the text is read more than once: give a file "
            "(plain or compressed)."
        )
    try:
        return fingerprint(path)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}. Check the path.") from None


def joined_facts(files: Sequence[FileFacts]) -> FileFacts:
    """What one file after the other is: of several, the digest of their digests."""
    if len(files) == 1:
        return files[0]
    digests = "".join(file.sha256 for file in files)
    n_bytes = sum(file.n_bytes for file in files)
    return FileFacts(n_bytes, hashlib.sha256(digests.encode()).hexdigest())


@dataclass(frozen=True)
class CorpusFiles:
    """One corpus: its files, and how they are used."""

    name: str
    """"" of the only one that options of the command line name"""
    languages: tuple[str, str]
    """source and target language"""
    inputs: Mapping[str, Input]
    """the files of train, and of dev and test where it has them"""
    rules: CleaningRules
    """rules by which training pairs are removed"""
    tags: tuple[str, ...] = ()
    """pieces in front of each source"""
    weight: Weight = AS_IS
    """share of an epoch's pairs, relative to the other weights; or each pair once"""
    date: str = ""
    """when the text was collected, for the reader of a report"""
    dev_size: int = 0
    """training pairs to hold out for dev, evenly spread"""


def side_names(corpora: Iterable[CorpusFiles]) -> tuple[str, str]:
    """What the two sides are called in file names: source and target, if there are several."""
    directions = {corpus.languages for corpus in corpora}
    source, target = directions.pop()
    return _SIDES if directions or source == target else (source, target)


def both_sides(name: str, folder: Path, languages: tuple[str, str], cache: Path) -> Paths:
    """The files of what holds both sides: a file of the folder; or what mtdata has."""
    if name.startswith(mtdata.PREFIX):
        return mtdata.download(name.removeprefix(mtdata.PREFIX), languages, cache)
    return (folder / name,)


def read_corpora(
    path: Path, languages: tuple[str, str], rules: CleaningRules, cache: Path
) -> list[CorpusFiles]:
    """The corpora that a YAML file names, with the digests of their files.

    `languages` are those of a corpus that names none; each may change some of the `rules`.
    `cache` keeps what mtdata downloads. ConfigError: the file cannot be read or says what cannot
    be; DataError: as `file_facts`.
    """
    values = read_yaml(path, _TEXTS)
    entries = values.get("corpora")
    if len(values) != 1 or not isinstance(entries, list):
        raise ConfigError(f"{path} must have one list named corpora.")
    corpora: list[CorpusFiles] = []
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: corpus {number} must be a mapping with a name and files.")
        name = entry.get("name", f"number {number}")
        try:
            corpora.append(_corpus(entry, path.parent, languages, rules, cache))
        except (ConfigError, DataError) as error:
            raise type(error)(f"{path}: corpus {name}: {error}") from None
        if name in (corpus.name for corpus in corpora[:-1]):
            raise ConfigError(f"{path}: two corpora are named {name}: give each its own name.")
    if not any(corpus.dev_size or "dev" in corpus.inputs for corpus in corpora):
        raise ConfigError(
            f"{path}: no corpus has a dev part: give at least one `dev: {{source: ..., target: "
            "...}` or `dev_size: 1000`, by which training is judged."
        )
    return corpora


def require_language(name: Any) -> None:
    """See that a language can name files, or raise ConfigError."""
    if not isinstance(name, str) or not re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", name):
        raise ConfigError(f"{name!r} is not a language code: use one like en or pt_BR.")


def _corpus(
    entry: dict[str, Any], folder: Path, languages: Sequence[str], rules: CleaningRules, cache: Path
) -> CorpusFiles:
    _require_known(entry, (*_OF_A_PART, "name", "source_language", "target_language", "tags",
                           "weight", "date", "cleaning", "dev_size", *_HELD_OUT))  # fmt: skip
    name, tags = entry.get("name"), entry.get("tags", [])
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"name {name!r}: use letters, digits, _ and -.")
    source = entry.get("source_language", languages[0])
    target = entry.get("target_language", languages[1])
    for language in (source, target):
        require_language(language)
    if not isinstance(tags, list):
        raise ConfigError("tags must be a list, such as [<2de>].")
    require_tags(tags)
    dev_size = entry.get("dev_size", 0)
    if type(dev_size) is not int or dev_size < 0 or (dev_size and "dev" in entry):
        raise ConfigError("dev_size must be a number of training pairs, instead of dev files.")
    weight = weight_of(entry.get("weight", AS_IS), "weight")
    cleaned = from_plain(_mapping(entry, "cleaning"), "cleaning", rules)
    parts = {"train": entry, **{part: _mapping(entry, part) for part in _HELD_OUT if part in entry}}
    for part in parts.keys() - {"train"}:
        _require_known(parts[part], _OF_A_PART)
    inputs = {
        part: _input(files, part, folder, (source, target), cache) for part, files in parts.items()
    }
    date = str(entry.get("date", ""))
    return CorpusFiles(name, (source, target), inputs, cleaned, tuple(tags), weight, date, dev_size)


def _mapping(entry: dict[str, Any], name: str) -> dict[str, Any]:
    value = entry.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be a mapping.")
    return value


def _input(
    files: dict[str, Any], part: str, folder: Path, languages: tuple[str, str], cache: Path
) -> Input:
    if "file" in files:
        if any(side in files for side in _SIDES):
            raise ConfigError(f"{part} has a file with both sides: remove source and target.")
        paths = [both_sides(name, folder, languages, cache) for name in _names(files, part, "file")]
        return Input.of(paths, languages, _columns(files))
    if "columns" in files:
        raise ConfigError(f"{part}: columns are those of a `file` with both sides.")
    sides = [[folder / name for name in _names(files, part, side)] for side in _SIDES]
    if len(sides[0]) != len(sides[1]):
        raise ConfigError(f"{part} has {len(sides[0])} source and {len(sides[1])} target files.")
    return Input.of(list(zip(*sides, strict=True)))


def _names(files: dict[str, Any], part: str, key: str) -> list[str]:
    given = files.get(key)
    names: list[Any] = given if isinstance(given, list) else [given]
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{part} needs a file, or a list of files, as {key}.")
    return names


def _columns(files: dict[str, Any]) -> Columns:
    values = dict(_mapping(files, "columns"))
    scores = values.pop("min_scores", {})
    try:
        numbers = {side: int(values[side]) for side in _SIDES if side in values}
        of_columns = Columns(min_scores={int(key): float(scores[key]) for key in scores})
    except (TypeError, ValueError):
        example = "{source: 2, target: 3, min_scores: {1: 0.5}}"
        raise ConfigError(f"columns must be numbers, from 1, such as {example}.") from None
    return from_plain(values | numbers, "columns", of_columns)


def _require_known(values: dict[str, Any], known: Sequence[str]) -> None:
    for name in values:
        if name not in known:
            raise ConfigError(f"unknown key {name!r}{nearest(str(name), known)}.")
