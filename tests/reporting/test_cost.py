"""Prices as people write them, and what a run costs by them."""

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.reporting import cost, questions


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [("2.50EUR", 2.5, "EUR"), ("2.50 EUR", 2.5, "EUR"), ("$0.35", 0.35, "$"), ("3", 3.0, ""),
     (" € 1.20 ", 1.2, "€"), ("0", 0.0, "")],
)  # fmt: skip
def test_a_price_is_a_number_with_its_currency(text, amount, currency):
    assert cost.price(text, "--p") == cost.Price(amount, currency)


@pytest.mark.parametrize("text", ["", "EUR", "-1", "1e3", "1,50", "$1EUR", "1 2", "nan"])
def test_what_is_no_price_is_said_with_the_option(text):
    with pytest.raises(ConfigError, match="--power-price"):
        cost.price(text, "--power-price")


def energy(run, **prices):
    return cost.energy_and_cost(questions.gather(run), cost.Prices(**prices))


def test_a_currency_that_was_not_given_is_not_made_up(two_host_run):
    assert "(currency not given)" in energy(two_host_run(), per_kwh=cost.Price(1, "")).answer


def test_without_power_the_rent_is_still_known(two_host_run):
    run = two_host_run(telemetry=(), ended_s=two_host_run().started_s + 7200)
    of = energy(run, per_hour=cost.Price(1.5, "EUR"), per_kwh=cost.Price(0.3, "EUR"))
    assert not of.known
    assert "6.00 EUR" in of.answer
    assert "per kWh that" not in of.answer


def test_without_a_clock_the_rent_is_unknown(two_host_run):
    run = two_host_run(telemetry=(), started_s=None, ended_s=None)
    of = energy(run, per_hour=cost.Price(1.5, "EUR"))
    assert "The rent is not known" in of.answer


def test_the_energy_of_each_gpu_is_listed(two_host_run):
    of = energy(two_host_run())
    assert [row[0] for row in of.tables[0].rows] == [
        "v100a:0 Tesla V100", "v100a:1 Tesla V100", "v100b:0 Tesla V100", "v100b:1 Tesla V100"
    ]  # fmt: skip
    assert {row[2] for row in of.tables[0].rows} == {"90 W"}
    assert "Prices were not given" in of.answer
