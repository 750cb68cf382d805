"""What hosts cost."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.units import count, duration

_PRICE = re.compile(r"\s*([^\d\s.,+-]{0,4})\s*(\d+(?:\.\d+)?)\s*([^\d\s.,+-]{0,4})\s*")


@dataclass(frozen=True)
class Price:
    """An amount of money for one unit of something."""

    amount: float
    currency: str
    """currency as it was given, such as EUR or $; "" if none was"""

    def times(self, units: float) -> str:
        """The price of so many units, in words."""
        return f"{self.amount * units:,.2f} {self.currency or '(currency not given)'}"


def price(text: str, option: str) -> Price:
    """Reads a price such as 2.50EUR, "2.50 EUR", $2.50 or 2.50.

    Raises:
        ConfigError: it is none of these.
    """
    match = _PRICE.fullmatch(text)
    if not match or (match[1] and match[3]):
        raise ConfigError(
            f"{option} is {text!r}: give a number from 0 on with a currency, such as 2.50EUR."
        )
    return Price(float(match[2]), match[1] or match[3])


def rent(per_hour: Price, hosts: int, seconds: float) -> str:
    """What so many hosts cost for so long, in one sentence.

    Args:
        per_hour: price of one host for one hour.
        hosts: number of hosts.
        seconds: time for which they are rented.
    """
    hours = seconds / 3600  # days would be too coarse to reckon the price from
    time = duration(seconds) if hours < 24 else f"{hours:,.1f} h"
    return (
        f"Rent of {count(hosts, 'host')} for {time} at {per_hour.times(1)} per host "
        f"and hour: {per_hour.times(hosts * hours)}."
    )
