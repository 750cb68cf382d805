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

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hvd_nmt.common.errors import ConfigError, DataError
from hvd_nmt.config.mixture import AS_IS, Weight, weight_of
from hvd_nmt.config.yaml_reader import nearest, read_yaml
from hvd_nmt.data.corpus import LANGUAGE_NAME, MixedCorpus
from hvd_nmt.preparation.cleaning import Cleaner, Pair, Rules
from hvd_nmt.preparation.parts import Input, PartState, Paths
from hvd_nmt.preparation.subwords import TAG

MIXED = ("source", "target")
"""what the sides are called in file names where corpora have several languages"""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_HELD_OUT = ("dev", "test")


@dataclass(frozen=True)
class CorpusFiles:
    """One corpus: its files, and how they are used."""

    name: str
    """"" of the only one that options of the command line name"""
    languages: tuple[str, str]
    """of source and target"""
    parts: Mapping[str, list[Paths]]
    """the files of train, and of dev and test where it has them"""
    rules: Rules
    """which training pairs are removed"""
    tags: tuple[str, ...] = ()
    """pieces in front of each source"""
    weight: Weight = AS_IS
    """share of an epoch's pairs, relative to the other weights; or each pair once"""
    date: str = ""
    """when the text was collected, for the reader of a report"""


@dataclass(frozen=True)
class Corpora:
    """What the YAML file says, and what its files were when the command began."""

    corpora: tuple[CorpusFiles, ...]
    inputs: Mapping[str, Mapping[str, Input]] = field(default_factory=dict)
    """of each corpus, by name: of each of its parts"""

    @property
    def tags(self) -> tuple[str, ...]:
        """Of all corpora, each once."""
        return tuple(dict.fromkeys(tag for corpus in self.corpora for tag in corpus.tags))

    @property
    def languages(self) -> tuple[str, str]:
        """What the two sides are called in file names."""
        source, target = ({corpus.languages[side] for corpus in self.corpora} for side in (0, 1))
        if len(source) == len(target) == 1 and source != target:
            return self.corpora[0].languages
        return MIXED

    def records(self, encoded: Mapping[str, PartState]) -> list[MixedCorpus]:
        """What the manifest says of each of several corpora."""
        return [
            MixedCorpus(
                name=each.name,
                source_language=each.languages[0],
                target_language=each.languages[1],
                tags=list(each.tags),
                weight=each.weight,
                date=each.date,
                pairs={part: state.by_corpus[index] for part, state in encoded.items()},
            )
            for index, each in enumerate(self.corpora)
            if each.name
        ]

    def request(self) -> list[dict[str, Any]]:
        """All that decides the result, as plain JSON values; not the names of the files."""
        return [
            {
                "name": each.name,
                "languages": list(each.languages),
                "rules": dataclasses.asdict(each.rules),
                "tags": list(each.tags),
                "weight": each.weight,
                "date": each.date,
                "n_best": False,  # as directories of older versions have it
                "inputs": {
                    part: [[file.sha256 for file in pair] for pair in found.facts]
                    for part, found in self.inputs[each.name].items()
                },
            }
            for each in self.corpora
        ]


@dataclass(frozen=True)
class Tagged:
    """A cleaner that puts tags in front of the sources that stay. It can be pickled."""

    cleaner: Cleaner | Any
    tags: tuple[str, ...]

    def __call__(self, source: str, target: str) -> tuple[str | None, Pair]:
        """What the cleaner says, see `cleaning.Cleaner`."""
        rule, (source, target) = self.cleaner(source, target)
        return rule, (source if rule else " ".join((*self.tags, source)), target)


def single(inputs: Mapping[str, Input], languages: tuple[str, str], rules: Rules) -> Corpora:
    """The only corpus, which options of the command line name."""
    return Corpora((CorpusFiles("", languages, {}, rules),), {"": inputs})


def read(path: Path, languages: tuple[str, str], rules: Rules) -> Corpora:
    """The corpora that a YAML file names.

    Args:
        languages: of a corpus that names none.
        rules: of the command line; each corpus may change some.

    Raises:
        ConfigError: the file cannot be read or says what cannot be.
    """
    values = read_yaml(path)
    if set(values) != {"corpora"} or not isinstance(values["corpora"], list):
        raise ConfigError(f"{path} must hold one list named corpora.")
    found = []
    for number, entry in enumerate(values["corpora"], start=1):
        if not isinstance(entry, dict):
            raise ConfigError(f"{path}: corpus {number} must be a mapping with a name and files.")
        try:
            found.append(_corpus(entry, path.parent, languages, rules))
        except ConfigError as error:
            name = entry.get("name", f"number {number}")
            raise ConfigError(f"{path}: corpus {name}: {error}") from None
    if not found:
        raise ConfigError(f"{path}: the list corpora is empty: give at least one corpus.")
    names = [corpus.name for corpus in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{path}: {twice[0]} names two corpora: give each a name of its own.")
    if not any("dev" in corpus.parts for corpus in found):
        raise ConfigError(f"{path}: no corpus has dev files: give at least one `dev: {{source: ...,"
                          " target: ...}`, by which training is judged.")  # fmt: skip
    return Corpora(tuple(found))


def with_inputs(corpora: Corpora) -> Corpora:
    """The corpora with the digests of their files; DataError: a file cannot be read."""
    inputs = {}
    for each in corpora.corpora:
        try:
            inputs[each.name] = {part: Input.of(paths) for part, paths in each.parts.items()}
        except DataError as error:
            raise DataError(f"corpus {each.name}: {error}") from None
    return dataclasses.replace(corpora, inputs=inputs)


def _corpus(
    entry: dict[str, Any], folder: Path, languages: tuple[str, str], rules: Rules
) -> CorpusFiles:
    known = ("name", "source", "target", "source_language", "target_language", "tags",
             "weight", "date", "cleaning", *_HELD_OUT)  # fmt: skip
    _require_known(entry, known)
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"name {name!r}: use letters, digits, _ and -; numbers need quotes.")
    own = tuple(
        entry.get(f"{side}_language", language)
        for side, language in zip(MIXED, languages, strict=True)
    )
    for language in own:
        if not isinstance(language, str) or not re.fullmatch(LANGUAGE_NAME, language):
            raise ConfigError(f"{language!r} is no language name: use one like en or pt_BR.")
    parts = {"train": _paths(entry, "train", folder)}
    for part in _HELD_OUT:
        if part in entry:
            files = entry[part]
            if not isinstance(files, dict):
                raise ConfigError(f"{part} must be a mapping with source and target.")
            _require_known(files, MIXED)
            parts[part] = _paths(files, part, folder)
    return CorpusFiles(
        name, (own[0], own[1]), parts, _rules(entry.get("cleaning", {}), rules),
        _tags(entry.get("tags", [])), weight_of(entry.get("weight", AS_IS), "weight"),
        str(entry.get("date", "")),
    )  # fmt: skip


def _paths(files: dict[str, Any], part: str, folder: Path) -> list[Paths]:
    sides = []
    for side in MIXED:
        given = files.get(side)
        names = given if isinstance(given, list) else [given]
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{part} needs a file, or a list of files, as {side}.")
        sides.append([folder / str(name) for name in names])
    if len(sides[0]) != len(sides[1]):
        raise ConfigError(f"{part} has {len(sides[0])} source and {len(sides[1])} target files.")
    return list(zip(*sides, strict=True))


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
        if not isinstance(tag, str) or not TAG.fullmatch(tag):
            raise ConfigError(f"{tag!r} is no tag: use one like <2de>, without spaces, in ASCII.")
    if len(set(tags)) < len(tags):
        raise ConfigError(f"tags {', '.join(tags)}: give each once.")
    return tuple(tags)


def _require_known(values: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in values:
        if name not in known:
            raise ConfigError(f"unknown key {name!r}{nearest(str(name), known)}.")
