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


def test_what_is_said_of_energy_and_cost(two_host_run, golden_page):
    began_s = two_host_run().started_s
    timeless = two_host_run(telemetry=(), started_s=None, ended_s=None)
    rent, energy = cost.Price(1.5, "EUR"), cost.Price(0.3, "EUR")
    found = [
        cost.energy_and_cost(questions.gather(run), prices)
        for run, prices in (
            (two_host_run(ended_s=began_s + 3600), cost.Prices(rent, energy)),
            (two_host_run(), cost.Prices()),
            (two_host_run(), cost.Prices(per_kwh=cost.Price(1, ""))),
            (two_host_run(telemetry=(), ended_s=began_s + 7200), cost.Prices(rent, energy)),
            (two_host_run(ended_s=began_s + 300_000), cost.Prices(rent)),
            (timeless, cost.Prices(rent)),
        )
    ]
    assert [of.known for of in found] == [True, True, True, False, True, False]
    rows = [" | ".join(row) for row in found[0].tables[0].rows]
    golden_page("cost.txt", "\n".join([*(of.answer for of in found), *rows, ""]))
    assert all(of.tables == found[0].tables for of in found if of.known)


def test_energy_and_rent_follow_from_power_time_and_prices(two_host_run):
    run = two_host_run(ended_s=two_host_run().started_s + 5400)
    measured_s = run.telemetry[0].samples[-1]["time_s"] - run.telemetry[0].samples[0]["time_s"]
    kwh = 4 * 90 * measured_s / 3.6e6
    prices = cost.Prices(cost.Price(2.0, "EUR"), cost.Price(1000.0, "EUR"))
    said = cost.energy_and_cost(questions.gather(run), prices).answer
    assert f"{1000 * kwh:,.2f} EUR" in said
    assert "6.00 EUR" in said  # two hosts for an hour and a half
