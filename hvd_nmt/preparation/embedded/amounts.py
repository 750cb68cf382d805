"""Numbers, measures and money, formatted by Babel from CLDR."""

from babel.numbers import (
    format_compact_decimal,
    format_currency,
    format_decimal,
    format_percent,
    get_currency_name,
    get_territory_currencies,
)
from babel.units import format_unit

from hvd_nmt.preparation.embedded.frame import Entry, Pool, joined, pool_of, same
from hvd_nmt.preparation.embedded.places import COUNTRIES, country
from hvd_nmt.preparation.embedded.words import DE, EN, cardinal, clean, in_both, ordinal

# Currency -> what a small sum is a multiple of.
_CURRENCIES = {
    "EUR": 1, "USD": 1, "GBP": 1, "CHF": 1, "CAD": 1, "AUD": 1, "NZD": 1, "PLN": 1, "BRL": 1,
    "DKK": 10, "SEK": 10, "NOK": 10, "CZK": 10, "MXN": 10, "THB": 10, "PHP": 10, "EGP": 10,
    "MAD": 10, "ZAR": 10, "INR": 10, "JPY": 100, "ISK": 100, "HUF": 100, "KRW": 1000,
}  # fmt: skip

_SOLIDS = "flour:Mehl sugar:Zucker rice:Reis butter:Butter cheese:Käse honey:Honig"
_LIQUIDS = "milk:Milch water:Wasser olive_oil:Olivenöl apple_juice:Apfelsaft cream:Sahne wine:Wein"

_PERCENT = {"en": "#,##0.#%", "de": "#,##0.# %"}


def pools() -> dict[str, Pool]:
    """The pools of this module, by name.

    `number` and `ordinal` in words, `century`, `age`, `big`, `million`, `percent`, `price`
    ($12.50), `money` (300 Swiss francs), `exchange` (money and another currency), `local` (a
    country and a sum in its currency), `quantity` (250 grams of sugar), measures, `size` (a
    length and a smaller width), `sum` (arithmetic that is true).
    """
    half_degrees = [n / 2 for n in range(4, 77)]
    return {
        "number": Pool(999, lambda i: same(*cardinal(i + 1)), skew=2.0),
        "age": pool_of([same(*cardinal(n)) for n in range(20, 80)]),
        "ordinal": Pool(60, lambda i: _ordinal(i + 1), skew=1.5),
        "birthday": pool_of([_ordinal(n) for n in range(18, 100)]),
        "century": pool_of([_ordinal(n) for n in range(9, 21)]),
        "pages": Pool(690, lambda i: same(str(i + 10), str(i + 10))),
        "big": Pool(989, lambda i: _decimal(100 * (i + 11)), skew=1.3),
        "million": Pool(189, lambda i: _million((i + 11) / 10)),
        "percent": Pool(120, lambda i: _percent(i + 1)),
        "price": Pool(3 * 5 * 120, _price, skew=1.3),
        "money": Pool(len(_CURRENCIES) * 98, _money),
        "exchange": Pool(len(_CURRENCIES) * (len(_CURRENCIES) - 1) * 98, _exchange),
        "local": _local_pool(),
        "quantity": pool_of(_quantities()),
        "kilograms": Pool(186, lambda i: _measure((i + 30) / 2, "mass-kilogram")),
        "kilometers": Pool(78, lambda i: _measure(5 * i + 15, "length-kilometer")),
        "meters": Pool(79, lambda i: _measure((i + 2) / 2, "length-meter")),
        "area": Pool(180, lambda i: _measure(i + 21, "area-square-meter")),
        "speed": Pool(50, lambda i: _measure(5 * i + 25, "speed-kilometer-per-hour")),
        "degrees": pool_of([_measure(n, "temperature-celsius") for n in half_degrees]),
        "megabytes": Pool(398, lambda i: _measure((i + 3) / 2, "digital-megabyte")),
        "size": Pool(60 * 30, lambda i: _size(2 * (i // 30) + 40, (i % 30 + 6) / 2)),
        "sum": pool_of(_sums()),
    }


def _ordinal(number: int) -> Entry:
    english, german = ordinal(number)
    return Entry({"text": english}, {"text": german, "dat": f"{german}n", "acc": f"{german}n"})


def _decimal(number: float) -> Entry:
    return in_both(lambda locale: format_decimal(number, locale=locale))


def _million(millions: float) -> Entry:
    number = round(millions * 1e6)
    return in_both(
        lambda locale: format_compact_decimal(
            number, format_type="long", locale=locale, fraction_digits=1
        )
    )


def _percent(halves: int) -> Entry:
    return in_both(
        lambda locale: format_percent(halves / 200, _PERCENT[locale.language], locale=locale)
    )


def _price(index: int) -> Entry:
    euros, rest = divmod(index, 3 * 5)
    cents, currency = (0, 20, 50, 75, 95)[rest // 3], ("EUR", "USD", "GBP")[rest % 3]
    amount = euros + 2 + cents / 100
    return in_both(lambda locale: format_currency(amount, currency, locale=locale))


def _currency_name(code: str) -> Entry:
    """Names a currency in the plural, as objects of a verb in running text."""
    english, german = (clean(get_currency_name(code, 2, locale)) for locale in (EN, DE))
    # CLDR capitalises "Dänische Kronen" as a heading. "Schweizer" is a capital in itself.
    adjective, _, noun = german.partition(" ")
    if noun and adjective.endswith("e"):
        german = german[0].lower() + german[1:]
    return same(english, german)


def _sum_of_money(code: str, multiple: int) -> Entry:
    amount, currency = _decimal(multiple * _CURRENCIES[code]), _currency_name(code)
    return same(
        f"{amount.english['text']} {currency.english['text']}",
        f"{amount.german['text']} {currency.german['text']}",
    )


def _money(index: int) -> Entry:
    return _sum_of_money(list(_CURRENCIES)[index // 98], 2 + index % 98)


def _exchange(index: int) -> Entry:
    pair, multiple = divmod(index, 98)
    codes = list(_CURRENCIES)
    source, target = divmod(pair, len(codes) - 1)
    target += target >= source
    return joined(
        text=_sum_of_money(codes[source], 2 + multiple), into=_currency_name(codes[target])
    )


def _local_pool() -> Pool:
    pairs = [(code, (get_territory_currencies(code) or [""])[0]) for code in COUNTRIES]
    pairs = [(code, currency) for code, currency in pairs if currency in _CURRENCIES]

    def make(index: int) -> Entry:
        code, currency = pairs[index // 98]
        land, amount = country(code), _sum_of_money(currency, 2 + index % 98)
        return Entry(
            {"country": land.english["text"], **amount.english},
            {"in": land.german["in"], **amount.german},
        )

    return Pool(98 * len(pairs), make)


def _measure(number: float, unit: str) -> Entry:
    value = int(number) if number == int(number) else number
    return in_both(lambda locale: format_unit(value, unit, "long", locale=locale))


def _quantities() -> list[Entry]:
    grams = [_measure(n, "mass-gram") for n in range(50, 1000, 50)]
    kilograms = [_measure(n / 2, "mass-kilogram") for n in range(2, 13)]
    milliliters = [_measure(n, "volume-milliliter") for n in range(50, 1000, 50)]
    liters = [_measure(n / 2, "volume-liter") for n in range(2, 13)]
    entries = []
    for foods, measures in ((_SOLIDS, grams + kilograms), (_LIQUIDS, milliliters + liters)):
        for pair in foods.split():
            english, german = pair.replace("_", " ").split(":")
            entries += [
                same(f"{m.english['text']} of {english}", f"{m.german['text']} {german}")
                for m in measures
            ]
    return entries


def _size(long: float, wide: float) -> Entry:
    return joined(long=_measure(long, "length-meter"), wide=_measure(wide, "length-meter"))


def _sums() -> list[Entry]:
    triples = [(a, b, a + b, "plus", "plus") for a in range(1, 51) for b in range(1, 51)]
    triples += [(a, b, a - b, "minus", "minus") for a in range(2, 61) for b in range(1, a)]
    triples += [(a, b, a * b, "times", "mal") for a in range(2, 21) for b in range(2, 13)]
    entries = []
    # Capitalised in German: it follows a colon and is a whole sentence.
    for a, b, result, english, german in triples:
        (en_a, de_a), (en_b, de_b) = cardinal(a), cardinal(b)
        task = same(f"{en_a} {english} {en_b}", f"{de_a.capitalize()} {german} {de_b}")
        entries.append(joined(task=task, result=same(*cardinal(result))))
    return entries
