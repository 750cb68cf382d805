"""Limits of numbers, written into the types of the fields that have them."""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from hvd_nmt.common.errors import ConfigError

AUTO: Literal["auto"] = "auto"
Count = int | Literal["auto"]
"""a number, or left to the program"""


class Limit(NamedTuple):
    """What a number must be."""

    holds: Callable[[Any], bool]
    wanted: str


_ABOVE_0 = Limit(lambda value: value > 0, "it must be above 0")
_NOT_BELOW_0 = Limit(lambda value: value >= 0, "it must be at least 0")
PositiveInt = Annotated[int, _ABOVE_0]
PositiveCount = Annotated[Count, _ABOVE_0]
PositiveFloat = Annotated[float, _ABOVE_0]
NaturalInt = Annotated[int, _NOT_BELOW_0]
NaturalCount = Annotated[Count, _NOT_BELOW_0]
NaturalFloat = Annotated[float, _NOT_BELOW_0]
Share = Annotated[float, Limit(lambda value: 0 <= value < 1, "give a share in [0, 1)")]


def require(config: Any, section: str = "") -> None:
    """See that the numbers of a dataclass are within the limits of their types.

    Raises:
        ConfigError: one is not; its name begins with the section's.
    """
    for name, hint in get_type_hints(type(config), include_extras=True).items():
        value = getattr(config, name)
        for limit in getattr(hint, "__metadata__", ()):
            if not isinstance(limit, Limit) or value == AUTO:
                continue
            if not (limit.holds(value) and value < math.inf):  # NaN fails every comparison
                dotted = f"{section}.{name}" if section else name
                raise ConfigError(f"{dotted} is {value}: {limit.wanted} and finite.")
