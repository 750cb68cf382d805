"""YAML in which each name has one value; what cannot be read is one sentence."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from hvd_nmt.common.errors import ConfigError


class _UniqueKeys(yaml.SafeLoader):
    """YAML's own loader lets the second value of a name win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, name in enumerate(names):
            if name in names[:number]:
                line = node.value[number][0].start_mark.line + 1
                raise ValueError(f"line {line}: {name} has a value already.")
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        ConfigError: it cannot be read, is no mapping, or gives a name two values.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"The configuration {path} cannot be read: {reason}") from error
    values = parse_yaml(text, f"The configuration {path}")
    if not isinstance(values, dict):
        raise ConfigError(f"The configuration {path} is no mapping of names to values.")
    return values


def parse_yaml(text: str, what: str) -> Any:
    """The values in a text.

    Raises:
        ConfigError: it cannot be read, or gives a name two values; begins with `what` it is.
    """
    try:
        return yaml.load(text, _UniqueKeys)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{what} cannot be read: {' '.join(str(error).split())}") from error


def nearest(name: str, names: Iterable[str]) -> str:
    """ " (did you mean '...'?)", or nothing if no name is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
