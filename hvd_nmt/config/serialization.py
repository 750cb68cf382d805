"""A configuration as plain values: read from YAML, written to it, compared."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.config.limits import AUTO, Count
from hvd_nmt.config.mixture import Stages, stages_of
from hvd_nmt.config.schema import Config
from hvd_nmt.config.unique_keys import UniqueKeys

_FORMER = frozenset({
    "data.bpe_dropout",
    "data.noise",
    "checkpoints.background",
    "checkpoints.copies",
    "evaluation.samples",
    "evaluation.tokens_per_batch",
    "training.fixed_groups",
    "training.wire",
    "training.hierarchical",
    "training.islands",
    "training.streaming",
    "training.outer_rate",
    "training.outer_momentum",
    "telemetry.timeline_steps",
    "data.seed",
    "training.check_replicas_every",
})  # fmt: skip
"""dotted names of options and sections that are gone, one a line: config.yaml of an older run has
them still, and they are read over, whatever their value"""
_FORMER_VALUES: dict[tuple[str, str], Any] = {
    ("training.sync_every", "auto"): 32,
    ("evaluation.best_by", "ter"): "val_loss",
    ("training.jit_compile", "auto"): False,
    ("training.jit_compile", "on"): True,
    ("training.jit_compile", "off"): False,
}
"""dotted name and former value, as text -> what it is now"""


def load(path: Path, default: Config | None = None) -> Config:
    """Read a YAML file of configuration values, such as config.yaml of a run, over a default.

    Raises:
        ConfigError: the file cannot be read, is no mapping, has an unknown key (the nearest name
            is given) or a value of the wrong type.
    """
    return _replaced(default or Config(), read_yaml(path), str(path))


def dropped(path: Path) -> list[str]:
    """Former options of a config.yaml that had its run trained otherwise than now."""
    values, found = read_yaml(path), []
    for name in ("data.bpe_dropout", "data.noise", "training.islands", "training.wire"):
        section, key = name.split(".")
        part = values.get(section)
        value = part.get(key) if isinstance(part, dict) else None
        rates = value.values() if isinstance(value, dict) else [value]
        if not {*map(str, rates)} <= {"None", "0", "0.0", "False", "auto", "off", "float32"}:
            found.append(f"{name} {value}")
    return found


def from_plain(values: Mapping[str, Any], where: str) -> Config:
    """The configuration of which `as_plain` gave these values.

    Raises:
        ConfigError: one is unknown or wrong; the sentence begins with `where`.
    """
    return _replaced(Config(), values, where)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        ConfigError: it cannot be read, is no mapping, or gives a name two values.
    """
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), UniqueKeys)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join((getattr(error, "strerror", None) or str(error)).split())
        raise ConfigError(f"The configuration {path} cannot be read: {reason}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"The configuration {path} is no mapping of names to values.")
    return values


def save(config: Config, path: Path) -> None:
    """Write every value of the configuration as YAML."""
    path.write_text(yaml.safe_dump(as_plain(config), sort_keys=False), encoding="utf-8")


def as_plain(config: Any) -> dict[str, Any]:
    """The configuration as nested dictionaries of plain values."""
    return dataclasses.asdict(config, dict_factory=_plain)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of nested dictionaries with its dotted name."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def differences(old: Config, new: Config) -> Iterator[tuple[str, Any, Any]]:
    """Each value that differs: (dotted name, old value, new value)."""
    new_values = dict(flat(as_plain(new)))
    for name, value in flat(as_plain(old)):
        if new_values[name] != value:
            yield name, value, new_values[name]


def _replaced(default: Any, values: Mapping[str, Any], where: str, section: str = "") -> Any:
    fields = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    types = get_type_hints(type(default))
    changes = {}
    for name, value in values.items():
        if name not in fields:
            if f"{section}{name}" in _FORMER:
                continue
            raise ConfigError(f"{where}: unknown key {name!r}{nearest(str(name), fields)}.")
        old = fields[name]
        if dataclasses.is_dataclass(old):
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: {name} must be a mapping, not {value!r}.")
            changes[name] = _replaced(old, value, f"{where}: {name}", f"{section}{name}.")
            continue
        value = _FORMER_VALUES.get((f"{section}{name}", str(value)), value)
        changes[name] = _chosen(types[name], old, value, f"{where}: {name}")
    return dataclasses.replace(default, **changes)


def _chosen(type_: Any, old: Any, value: Any, where: str) -> Any:
    """The value of a field whose type may have choices, as words, besides or instead of others."""
    if type_ == Stages:
        return stages_of(value, where)
    if type_ == Count:
        is_count = isinstance(value, int) and not isinstance(value, bool)
        if is_count or value == AUTO:
            return value
        raise ConfigError(f"{where} must be a whole number or {AUTO}, not {value!r:.60}.")
    converted, choices = _converted(old, value, where), get_args(type_)
    if choices and value not in choices:
        raise ConfigError(f"{where} must be one of {', '.join(choices)}, not {value!r}.")
    return converted


def _converted(old: Any, value: Any, where: str) -> Any:
    wanted = type(old)
    if isinstance(old, Path) and isinstance(value, str):
        return Path(value)
    if isinstance(value, bool) == isinstance(old, bool):
        if isinstance(value, wanted):
            return value
        try:  # YAML 1.1 reads 1e-9 as text, and 1000 as an integer where a float is wanted
            if isinstance(old, float) and isinstance(value, int | str):
                return float(value)
        except (ValueError, OverflowError):
            pass
    raise ConfigError(f"{where} must be of type {wanted.__name__}, not {value!r:.60}.")


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: _as_in_yaml(value) for name, value in items}


def _as_in_yaml(value: Any) -> Any:
    if isinstance(value, Path):
        return os.fspath(value)
    return list(value) if isinstance(value, tuple) else value


def nearest(name: str, names: Mapping[str, Any]) -> str:
    """ " (did you mean '...'?)", or nothing if no name is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
