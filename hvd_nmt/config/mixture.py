"""Stages of a run on several corpora: how much of each one its steps hold, and until when.

A corpus that a stage does not name is not used in it.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from hvd_nmt.common.errors import ConfigError

AS_IS: Literal["as is"] = "as is"
END: Literal["end"] = "end"
Weight = float | Literal["as is"]
"""share of an epoch's pairs, relative to the other weights; `as is`: each pair once an epoch"""


@dataclass(frozen=True)
class Stage:
    """Some steps with the same mixture."""

    until: int | Literal["end"]
    """last step of the stage"""
    weights: Mapping[str, Weight]
    """weight of each corpus in use, by name"""


Stages = tuple[Stage, ...]


def weight_of(value: Any, name: str) -> Weight:
    """A weight as it stands in a file; ConfigError: it is none."""
    if value == AS_IS:
        return AS_IS
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):  # YAML 1.1 reads 1e-3 as text
            if 0 < float(value) < math.inf:
                return float(value)
    raise ConfigError(f"{name} {value!r}: give a number above 0, or {AS_IS!r}.")


def stages_of(values: Any, where: str) -> Stages:
    """Stages as they stand in a file; ConfigError: they are none, or not one after the other."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ConfigError(f"{where} must be a list such as {_EXAMPLE}, not {values!r:.60}.")
    stages = tuple(_stage(value, f"{where}: stage {i}") for i, value in enumerate(values, start=1))
    ends = [math.inf if stage.until == END else stage.until for stage in stages]
    if any(end >= following for end, following in pairwise(ends)):
        raise ConfigError(f"{where}: each stage must end after the one before it.")
    if ends and ends[-1] != math.inf:
        raise ConfigError(f"{where}: the last stage needs `until: end`.")
    return stages


_EXAMPLE = "[{until: 50000, weights: {clean: 1, crawled: 3}}, {until: end, weights: {clean: 1}}]"


def _stage(value: Any, where: str) -> Stage:
    match value:
        case {"until": until, "weights": dict(weights)} if weights and len(value) == 2:
            if until == END or (type(until) is int and until > 0):
                named = {str(name): weight_of(w, f"{where}: {name}") for name, w in weights.items()}
                return Stage(until, named)
    raise ConfigError(f"{where} needs `until`, a step or end, and weights, as in {_EXAMPLE}.")
