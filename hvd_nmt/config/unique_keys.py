"""YAML in which each name has one value."""

from typing import Any

import yaml


class UniqueKeys(yaml.SafeLoader):
    """YAML's own loader lets the second value of a name win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, name in enumerate(names):
            if name in names[:number]:
                line = node.value[number][0].start_mark.line + 1
                raise ValueError(f"line {line}: {name} has a value already.")
        return super().construct_mapping(node, deep)
