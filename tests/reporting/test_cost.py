"""Prices as people write them."""

import pytest

from hvd_nmt.common.errors import ConfigError
from hvd_nmt.reporting import cost


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
