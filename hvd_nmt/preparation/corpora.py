"""Several corpora in one data directory: the YAML file of `prepare --corpora`.

    corpora:
      - name: clean                     # of which weights and reports speak
        source: clean.en.gz             # a file, or a list of files
        target: clean.de.gz
        source_language: en             # where it is not --source-language
        target_language: de
        tags: [<2de>]                   # pieces in front of each source
        weight: 3                       # share of an epoch's pairs, or "as is": each pair once
        date: 2016-08                   # for the reader of the report
        cleaning: {clean: moses, remove_duplicates: true}    # over the options of the command line
        dev: {source: val.en, target: val.de}
        test: {source: test.en, target: test.de}

Paths are relative to the YAML file. At least one corpus brings dev files.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.config.mixture import AS_IS, Weight, weight_of
from hvd_nmt.config.serialization import nearest, read_yaml
from hvd_nmt.data.corpus import LANGUAGE_NAME
from hvd_nmt.preparation.cleaning import Rules
from hvd_nmt.preparation.parts import Input
from hvd_nmt.preparation.subwords import TAG

_SIDES = ("source", "target")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_HELD_OUT = ("dev", "test")


@dataclass(frozen=True)
class CorpusFiles:
    """One corpus: its files, and how they are used."""

    name: str
    """"" of the only one that options of the command line name"""
    languages: tuple[str, str]
    """of source and target"""
    inputs: Mapping[str, Input]
    """the files of train, and of dev and test where it has them"""
    rules: Rules
    """which training pairs are removed"""
    tags: tuple[str, ...] = ()
    """pieces in front of each source"""
    weight: Weight = AS_IS
    """share of an epoch's pairs, relative to the other weights; or each pair once"""
    date: str = ""
    """when the text was collected, for the reader of a report"""

    def request(self) -> dict[str, Any]:
        """All that decides the result, as plain JSON values; not the names of the files."""
        return {
            "name": self.name,
            "languages": list(self.languages),
            "rules": dataclasses.asdict(self.rules),
            "tags": list(self.tags),
            "weight": self.weight,
            "date": self.date,
            "n_best": False,  # as directories of older versions have it
            "inputs": {
                part: [[file.sha256 for file in pair] for pair in raw.facts]
                for part, raw in self.inputs.items()
            },
        }


def languages(corpora: Iterable[CorpusFiles]) -> tuple[str, str]:
    """What the two sides are called in file names: source and target, if there are several."""
    of_side = [dict.fromkeys(each) for each in zip(*(c.languages for c in corpora), strict=True)]
    source, target = (next(iter(names)) for names in of_side)
    is_one_direction = len(of_side[0]) == len(of_side[1]) == 1 and source != target
    return (source, target) if is_one_direction else ("source", "target")


def tags(corpora: Iterable[CorpusFiles], more: Iterable[str] = ()) -> tuple[str, ...]:
    """`more` tags and those of all corpora, each once."""
    return tuple(dict.fromkeys((*more, *(tag for corpus in corpora for tag in corpus.tags))))


def read(path: Path, languages: tuple[str, str], rules: Rules) -> list[CorpusFiles]:
    """The corpora that a YAML file names, with the digests of their files.

    Args:
        languages: of a corpus that names none.
        rules: of the command line; each corpus may change some.

    Raises:
        ConfigError: the file cannot be read or says what cannot be.
        DataError: a file of text cannot be read.
    """
    values = read_yaml(path)
    if set(values) != {"corpora"} or not isinstance(values["corpora"], list):
        raise ConfigError(f"{path} must hold one list named corpora.")
    found: list[CorpusFiles] = []
    for number, entry in enumerate(values["corpora"], start=1):
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: corpus {number} must be a mapping with a name and files.")
        name = entry.get("name", f"number {number}")
        try:
            found.append(_corpus(entry, path.parent, languages, rules))
        except (ConfigError, DataError) as error:
            raise type(error)(f"{path}: corpus {name}: {error}") from None
        if name in (corpus.name for corpus in found[:-1]):
            raise ConfigError(f"{path}: {name} names two corpora: give each a name of its own.")
    if not any("dev" in corpus.inputs for corpus in found):
        raise ConfigError(
            f"{path}: no corpus has dev files: give at least one `dev: {{source: ..., target: "
            "...}`, by which training is judged."
        )
    return found


def _corpus(
    entry: dict[str, Any], folder: Path, languages: Sequence[str], rules: Rules
) -> CorpusFiles:
    _require_known(entry, (*_SIDES, "name", "source_language", "target_language", "tags",
                           "weight", "date", "cleaning", *_HELD_OUT))  # fmt: skip
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"name {name!r}: use letters, digits, _ and -; numbers need quotes.")
    source, target = (
        entry.get(f"{side}_language", language)
        for side, language in zip(_SIDES, languages, strict=True)
    )
    for language in (source, target):
        if not isinstance(language, str) or not re.fullmatch(LANGUAGE_NAME, language):
            raise ConfigError(f"{language!r} is no language name: use one like en or pt_BR.")
    cleaned, tags = _rules(entry.get("cleaning", {}), rules), _tags(entry.get("tags", []))
    weight = weight_of(entry.get("weight", AS_IS), "weight")
    inputs = {"train": _input(entry, "train", folder)}  # reads the files, so it comes last
    for part in _HELD_OUT:
        if part in entry:
            if not isinstance(entry[part], dict):
                raise ConfigError(f"{part} must be a mapping with source and target.")
            _require_known(entry[part], _SIDES)
            inputs[part] = _input(entry[part], part, folder)
    return CorpusFiles(
        name, (source, target), inputs, cleaned, tags, weight, str(entry.get("date", ""))
    )


def _input(files: dict[str, Any], part: str, folder: Path) -> Input:
    sides = []
    for side in _SIDES:
        given = files.get(side)
        names = given if isinstance(given, list) else [given]
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{part} needs a file, or a list of files, as {side}.")
        sides.append([folder / str(name) for name in names])
    if len(sides[0]) != len(sides[1]):
        raise ConfigError(f"{part} has {len(sides[0])} source and {len(sides[1])} target files.")
    return Input.of(list(zip(*sides, strict=True)))


def _rules(changes: Any, rules: Rules) -> Rules:
    if not isinstance(changes, dict):
        raise ConfigError("cleaning must be a mapping of rules to values.")
    fields = {rule.name: type(getattr(rules, rule.name)) for rule in dataclasses.fields(rules)}
    _require_known(changes, tuple(fields))
    for name, value in changes.items():
        fits = isinstance(value, fields[name]) and isinstance(value, bool) == (fields[name] is bool)
        if not fits and not (fields[name] is float and type(value) is int):
            raise ConfigError(f"{name} must be of type {fields[name].__name__}, not {value!r}.")
    if changes.get("clean", "none") not in ("moses", "none"):
        raise ConfigError(f"clean must be moses or none, not {changes['clean']!r}.")
    return dataclasses.replace(rules, **changes)


def _tags(tags: Any) -> tuple[str, ...]:
    if not isinstance(tags, list):
        raise ConfigError("tags must be a list, such as [<2de>].")
    for tag in tags:
        if not isinstance(tag, str) or not TAG.fullmatch(tag) or tags.count(tag) > 1:
            raise ConfigError(f"tag {tag!r}: give each once, like <2de>, without spaces, in ASCII.")
    return tuple(tags)


def _require_known(values: dict[str, Any], known: Sequence[str]) -> None:
    for name in values:
        if name not in known:
            raise ConfigError(f"unknown key {name!r}{nearest(str(name), known)}.")
