"""The energy a run took and what it cost."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.common.units import count, duration
from hvd_nmt.explain import machines
from hvd_nmt.reporting.answer import Answer, Facts, Table

_PRICE = re.compile(r"\s*([^\d\s.,+-]{0,4})\s*(\d+(?:\.\d+)?)\s*([^\d\s.,+-]{0,4})\s*")
_J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Price:
    """An amount of money for one unit of something."""

    amount: float
    currency: str
    """currency as it was given, such as EUR or $; "" if none was"""

    def times(self, units: float) -> str:
        """The price of so many units, in words."""
        return f"{self.amount * units:,.2f} {self.currency or '(currency not given)'}"


@dataclass(frozen=True)
class Prices:
    """What the reader pays; None where it was not said."""

    per_hour: Price | None = None
    """price of one host for one hour"""
    per_kwh: Price | None = None
    """price of a kilowatt-hour of electric energy"""


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


def energy_and_cost(facts: Facts, prices: Prices) -> Answer:
    """What the GPUs used and what the hosts cost, as far as prices were given."""
    run = facts.run
    question = "How much energy did the run take, and what did it cost?"
    how = (
        "Energy: each GPU's own counter, read by NVML; where a GPU has none, its power integrated "
        "over the samples by trapezoids, without pauses between samples. CPUs, fans and power "
        "supplies are not in it. Rent: hosts x hours from the start of the run to its last record "
        "x the price per hour."
    )
    uses = [use for use in machines.gpu_use(run) if use.energy_j is not None]
    energy_j = sum(use.energy_j or 0.0 for use in uses)
    if not uses:
        unknown = (
            "The energy is not known: the record holds no power of a GPU. On hosts without GPUs "
            "use a meter; with GPUs let hvd_nmt sample them (telemetry.interval_s)."
        )
        sentences = [unknown, *_prices_in_words(facts, prices, None)]
        return Answer(question, " ".join(sentences), how, known=False)
    sentences = [f"The GPUs took {_energy(energy_j)}."]
    sentences += _prices_in_words(facts, prices, energy_j / _J_PER_KWH)
    per_step = f"{energy_j / max(1, run.steps_done):,.1f} J of GPU energy a step."
    rows = tuple(
        (f"{use.host}:{use.index} {use.name}", _energy(use.energy_j or 0.0),
         f"{(use.energy_j or 0.0) / use.measured_s:.0f} W", duration(use.measured_s))
        for use in uses
    )  # fmt: skip
    table = Table("GPU energy", ("GPU", "energy", "mean power", "measured for"), rows)
    evidence = (per_step,) if run.steps_done else ()
    return Answer(question, " ".join(sentences), how, evidence, (table,))


def _prices_in_words(facts: Facts, prices: Prices, kwh: float | None) -> list[str]:
    run = facts.run
    sentences: list[str] = []
    if prices.per_kwh and kwh is not None:
        sentences.append(
            f"At {prices.per_kwh.times(1)} per kWh that is {prices.per_kwh.times(kwh)}."
        )
    wall_s = machines.wall_s(run)
    if prices.per_hour and wall_s is not None:
        sentences.append(rent(prices.per_hour, max(1, len(set(run.hosts))), wall_s))
    elif prices.per_hour:
        sentences.append("The rent is not known: the record has no clock.")
    elif not prices.per_kwh:
        sentences.append("Prices were not given (--price-per-hour, --power-price).")
    return sentences


def _energy(energy_j: float) -> str:
    kwh = energy_j / _J_PER_KWH
    return f"{kwh:,.2f} kWh" if kwh >= 0.1 else f"{energy_j / 3600:,.1f} Wh"
