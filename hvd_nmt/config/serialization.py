"""A configuration as plain values: read from YAML, written to it, compared."""

import contextlib
import dataclasses
import difflib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.mixture import Stages, stages_of
from hvd_nmt.config.schema import AUTO, Config, Count

_FORMER = frozenset({
    "data.bpe_dropout", "data.noise", "data.seed", "checkpoints.background", "checkpoints.copies",
    "evaluation.samples", "evaluation.tokens_per_batch", "telemetry.timeline_steps",
    "training.check_replicas_every",
})  # fmt: skip
"""dotted names of options and sections that are gone; config.yaml of an older run still has them,
and any value of them is read over"""
_WANTED = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path",
    Count: f"a whole number or {AUTO}",
}  # fmt: skip


def load(path: Path, default: Config | None = None) -> Config:
    """Read a YAML file of configuration values, over a default.

    A run's config.yaml is whole: what its version lacked has the schema's value, with which it
    trained. ConfigError: it is no mapping, has an unknown key or a value of the wrong type.
    """
    values = [(name.rpartition(".")[2], value) for name, value in flat(as_plain(Config()))]
    others = {name for name, value in values if not isinstance(value, str) or value == AUTO}
    texts = {name for name, _ in values} - others  # wherever in the configuration they are
    given = read_yaml(path, texts)
    whole = given.keys() >= get_type_hints(Config).keys()
    return from_plain(given, str(path), default if default and not whole else Config())


def read_yaml(path: Path, texts: Collection[str] = ()) -> dict[str, Any]:
    """The mapping that a YAML file holds; ConfigError: it holds none, or a name has two values.

    Names are text, and so are the values of the names `texts`: no, on, 1_000 and 2024-05-01, too.
    """
    try:
        values = _PlainYaml(path.read_text(encoding="utf-8"), texts).get_single_data()
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = f"{error.strerror}; check its path" if isinstance(error, OSError) else str(error)
        if isinstance(error, UnicodeDecodeError):
            line = error.object.count(b"\n", 0, error.start) + 1
            reason = f"line {line} is not UTF-8; save the file as UTF-8"
        if mark := getattr(error, "problem_mark", None):
            reason = f"line {mark.line + 1}: {getattr(error, 'problem', '')}; correct this line"
        reason = " ".join(reason.split()).rstrip(".")
        raise ConfigError(f"Cannot read the configuration {path}: {reason}.") from error
    if not isinstance(values, dict):
        raise ConfigError(f"The configuration {path} must be lines `name: value`, as YAML.")
    return values


def nearest(name: str, names: Iterable[str]) -> str:
    """ " (did you mean '...'?)", or nothing if no name is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def from_plain(values: Mapping[str, Any], where: str, default: Any, section: str = "") -> Any:
    """The configuration, or a `section` of it, with other values, named as `as_plain` gives them.

    ConfigError: one is unknown or wrong; the sentence begins with `where`.
    """
    hints = get_type_hints(type(default))
    changes = {}
    for name, value in values.items():
        dotted = f"{section}{name}"
        if name not in hints:
            if dotted in _FORMER:
                continue
            fault = f"unknown key {name!r}{nearest(str(name), hints)}"
            homes = [h for h in hints if name in getattr(hints[h], "__dataclass_fields__", ())]
            inside = f"put it into {' or '.join(homes)}, as {{{name!r}: {value!r:.60}}}"
            raise ConfigError(f"{where}: {fault}: {inside if homes else 'correct or remove it'}.")
        old, here = getattr(default, name), f"{where}: {name}"
        if not dataclasses.is_dataclass(old):
            changes[name] = _converted(hints[name], value, here)
        elif isinstance(value, dict):
            changes[name] = from_plain(value, here, old, f"{dotted}.")
        else:
            raise ConfigError(f"{here} must be a mapping, not {value!r}.")
    return dataclasses.replace(default, **changes)


def save(config: Config, path: Path) -> None:
    """Write every value of the configuration as YAML."""
    path.write_text(yaml.safe_dump(as_plain(config), sort_keys=False), encoding="utf-8")


def as_plain(config: Any) -> dict[str, Any]:
    """The configuration as nested dictionaries of plain values."""
    return dataclasses.asdict(
        config, dict_factory=lambda items: {name: _plain(value) for name, value in items}
    )


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of nested dictionaries with its dotted name."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def differences(old: Config, new: Config) -> Iterator[tuple[str, Any, Any]]:
    """Each value that differs: (dotted name, old value, new value)."""
    for (name, before), (_, after) in zip(flat(as_plain(old)), flat(as_plain(new)), strict=True):
        if before != after:
            yield name, before, after


def _converted(hint: Any, value: Any, where: str) -> Any:
    if hint == Stages:
        return stages_of(value, where)
    is_count = hint == Count and (value == AUTO or type(value) is int)
    if is_count or type(value) is hint or value in get_args(hint):
        return value
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint is float and type(value) in (int, str):  # YAML 1.1 reads 1e-9 as text
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    wanted = _WANTED.get(hint) or f"one of {', '.join(get_args(hint))}"
    raise ConfigError(f"{where} must be {wanted}, not {value!r:.60}.")


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return os.fspath(value)
    return list(value) if isinstance(value, tuple) else value


_TEXT, _NULL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:null"


class _PlainYaml(yaml.SafeLoader):
    """YAML's own loader lets a name's second value win, and nested aliases fill any memory.

    What YAML 1.1 takes for a boolean, a number or a date is text where text is wanted.
    """

    def __init__(self, stream: str, texts: Collection[str]) -> None:
        super().__init__(stream)
        self._texts = texts

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            line = event.start_mark.line + 1
            raise ValueError(f"line {line}: write the values instead of *{event.anchor}.")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = _TEXT
                items = value.value if isinstance(value, yaml.SequenceNode) else [value]
                for item in items if key.value in self._texts else ():
                    if isinstance(item, yaml.ScalarNode) and item.tag != _NULL:
                        item.tag = _TEXT
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, name in enumerate(names):
            if name in names[:number]:
                line = node.value[number][0].start_mark.line + 1
                raise ValueError(f"line {line}: {name} is given twice: remove one of them.")
        return super().construct_mapping(node, deep)
