"""Countries, cities and languages from Babel's CLDR, with the German grammar CLDR lacks."""

import functools

from babel.core import get_global
from babel.languages import get_territory_language_info

from hvd_nmt.preparation.embedded.frame import Entry, Pool, pool_of
from hvd_nmt.preparation.embedded.words import DE, DEFINITE, EN, clean, in_both, listed

# Left out: territories that are not countries, and names that CLDR writes in a way no sentence
# can take ("Congo - Kinshasa", "Myanmar (Burma)") or that hold an "and" themselves.
COUNTRIES = listed(
    "AD AE AF AL AM AO AR AT AU AZ BB BD BE BF BG BH BI BJ BO BR BS BT BW BY CA CF CH CL CM CN CO "
    "CR CU CY CZ DE DJ DK DO DZ EC EE EG ER ES ET FI FR GA GB GE GH GN GR GT GY HN HR HT HU ID IE "
    "IL IN IQ IR IS IT JM JO JP KE KG KH KR KW KZ LA LB LI LK LR LT LU LV LY MA MC MD ME MG MK ML "
    "MN MR MT MU MV MW MX MY MZ NA NE NG NI NL NO NP NZ OM PA PE PG PH PK PL PT PY QA RO RS RU RW "
    "SA SC SD SE SG SI SK SL SN SO SR SS SV SY TD TG TH TJ TM TN TR TZ UA UG US UY UZ VE VN YE ZA "
    "ZM ZW"
)

# English names that take "the".
_ENGLISH_THE = frozenset(listed("AE BS CF DO GB MV NL PH SC US"))

# German names that take the article: gender, or p for plural. All others are neuter without it.
_GERMAN_GENDER = {
    "AE": "p", "BS": "p", "CF": "f", "CH": "f", "DO": "f", "GB": "n", "IQ": "m", "IR": "m",
    "LB": "m", "MD": "f", "MN": "f", "MV": "p", "NL": "p", "PH": "p", "SC": "p", "SD": "m",
    "SK": "f", "SS": "m", "TD": "m", "TR": "f", "UA": "f", "US": "p", "YE": "m",
}  # fmt: skip

# What follows the definite article in nominative and dative, where it is not CLDR's own form.
_AFTER_ARTICLE = {
    "AE": ("Vereinigten Arabischen Emirate", "Vereinigten Arabischen Emiraten"),
    "CF": ("Zentralafrikanische Republik", "Zentralafrikanischen Republik"),
    "DO": ("Dominikanische Republik", "Dominikanischen Republik"),
    "GB": ("Vereinigte Königreich", "Vereinigten Königreich"),
    "NL": ("Niederlande", "Niederlanden"),
    "US": ("Vereinigten Staaten", "Vereinigten Staaten"),
}

# One is "auf" these, not "in" them; from a group of islands one comes "von".
_ISLANDS = frozenset(listed("BB BS CU CY JM LK MG MT MU MV PH SC"))

# Time zones whose CLDR exemplar city is a city people know, and not a country's name as well.
_ZONES = listed(
    "Europe/Vienna Europe/Berlin Europe/Zurich Europe/Paris Europe/London Europe/Rome "
    "Europe/Madrid Europe/Lisbon Europe/Prague Europe/Warsaw Europe/Budapest Europe/Athens "
    "Europe/Brussels Europe/Copenhagen Europe/Stockholm Europe/Oslo Europe/Helsinki Europe/Dublin "
    "Europe/Amsterdam Europe/Belgrade Europe/Bratislava Europe/Bucharest Europe/Istanbul "
    "Europe/Kyiv Europe/Ljubljana Europe/Minsk Europe/Moscow Europe/Podgorica Europe/Riga "
    "Europe/Skopje Europe/Sofia Europe/Tallinn Europe/Vilnius "
    "Europe/Volgograd Europe/Zagreb Asia/Almaty Asia/Amman Asia/Baghdad Asia/Baku Asia/Bangkok "
    "Asia/Beirut Asia/Colombo Asia/Damascus Asia/Dhaka Asia/Dubai Asia/Jakarta "
    "Asia/Kabul Asia/Karachi Asia/Krasnoyarsk Asia/Kuala_Lumpur Asia/Manila "
    "Asia/Nicosia Asia/Novosibirsk Asia/Phnom_Penh Asia/Pyongyang Asia/Riyadh Asia/Seoul "
    "Asia/Shanghai Asia/Tashkent Asia/Tbilisi Asia/Tehran Asia/Tokyo "
    "Asia/Vladivostok Asia/Yerevan Africa/Accra Africa/Addis_Ababa Africa/Algiers "
    "Africa/Cairo Africa/Casablanca Africa/Dakar Africa/Dar_es_Salaam Africa/Harare "
    "Africa/Johannesburg Africa/Kampala Africa/Khartoum Africa/Lagos Africa/Luanda "
    "Africa/Maputo Africa/Mogadishu Africa/Nairobi Africa/Tripoli Africa/Tunis "
    "Africa/Windhoek America/Bogota America/Caracas America/Chicago America/Denver "
    "America/Detroit America/Havana America/La_Paz America/Lima America/Los_Angeles "
    "America/Managua America/Montevideo America/New_York America/Phoenix "
    "America/Santiago America/Sao_Paulo America/Toronto America/Vancouver "
    "Australia/Adelaide Australia/Brisbane Australia/Melbourne Australia/Perth Australia/Sydney "
    "Pacific/Auckland Pacific/Honolulu"
)

# Languages whose German name ends in -isch or is Deutsch, so that it can be declined.
_LANGUAGES = listed(
    "ar az bg bn bs ca cs cy da de el en es et eu fa fi fr ga he hr hu hy id is it ja ka kk ko lt "
    "lv mk mn mt nl no pl pt ro ru sk sl sq sr sv th tr uk uz vi zh"
)


def pools() -> dict[str, Pool]:
    """The pools of this module, by name.

    `country`, `city`, `language`; `station`: a European city, for trains and castles; `spot`:
    a city with the country it lies in; `speech`: a country with an official language that at
    least a third of its people speak.
    """
    return {
        "country": pool_of([country(code) for code in COUNTRIES]),
        "city": pool_of([_city(zone) for zone in _ZONES]),
        "station": pool_of([_city(zone) for zone in _ZONES if zone.startswith("Europe/")]),
        "language": pool_of([_language(code) for code in _LANGUAGES]),
        "spot": pool_of(_spots()),
        "speech": pool_of(_speeches()),
    }


@functools.cache
def country(code: str) -> Entry:
    """The entry of a country, given one of COUNTRIES.

    English: text. German: text (nominative), acc, in, to, from, and `exportiert`, which agrees.
    """
    english = clean(EN.territories[code])
    if code in _ENGLISH_THE:
        english = f"the {english}"
    name = clean(DE.territories[code])
    island = code in _ISLANDS
    gender = _GERMAN_GENDER.get(code)
    if gender is None:
        place = "auf" if island else "in"
        german = {"text": name, "acc": name, "in": f"{place} {name}", "to": f"nach {name}",
                  "from": f"aus {name}"}  # fmt: skip
    else:
        german = _with_article(gender, *_AFTER_ARTICLE.get(code, (name, name)), island)
    verb = "exportieren" if gender == "p" else "exportiert"
    return Entry({"text": english}, german | {"exportiert": verb})


def _with_article(gender: str, name: str, dative_name: str, island: bool) -> dict[str, str]:
    acc, dat = f"{DEFINITE['acc'][gender]} {name}", f"{DEFINITE['dat'][gender]} {dative_name}"
    at, out_of = ("auf", "von") if island else ("in", "aus")
    inside, into = f"{at} {dat}", f"{at} {acc}"
    if gender in "mn":
        inside = f"im {dative_name}"
    if gender == "n":
        into = f"ins {name}"
    return {"text": f"{DEFINITE['text'][gender]} {name}", "acc": acc, "in": inside, "to": into,
            "from": f"{out_of} {dat}"}  # fmt: skip


def _city(zone: str) -> Entry:
    last = zone.split("/")[-1].replace("_", " ")
    return in_both(lambda locale: locale.time_zones.get(zone, {}).get("city", last))


def _spots() -> list[Entry]:
    territory = get_global("zone_territories")
    entries = []
    for zone in _ZONES:
        code = territory.get(zone)
        # "Manila auf den Philippinen" is right but "Havanna auf Kuba" reads like a harbour.
        if code in COUNTRIES and (code not in _ISLANDS or code in _GERMAN_GENDER):
            (english, german), land = _city(zone), country(code)
            entries.append(
                Entry(
                    {**english, "country": land.english["text"]},
                    {**german, "in": land.german["in"]},
                )
            )
    return entries


def _language(code: str) -> Entry:
    name = clean(DE.languages[code])
    return Entry(
        {"text": clean(EN.languages[code])},
        {"text": name, "into": f"ins {name}e", "from": f"aus dem {name}en"},
    )


def _speeches() -> list[Entry]:
    entries = []
    for code in COUNTRIES:
        spoken = get_territory_language_info(code)
        for tongue in _LANGUAGES:
            facts = spoken.get(tongue, {})
            if (code, tongue) == ("UA", "ru"):  # CLDR calls it official; Ukrainian law does not.
                continue
            official = facts.get("official_status") in ("official", "de_facto_official")
            if official and facts["population_percent"] >= 33:
                land, speech = country(code), _language(tongue)
                entries.append(
                    Entry(
                        {"text": speech.english["text"], "country": land.english["text"]},
                        {"text": speech.german["text"]}
                        | {form: land.german[form] for form in ("in", "to", "from")},
                    )
                )
    return entries
