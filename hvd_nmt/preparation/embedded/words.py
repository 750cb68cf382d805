"""Clean text, numbers in words, and the German articles: what all pools are made with."""

import functools
import re
import unicodedata
from collections.abc import Callable, Mapping

from babel import Locale
from num2words import num2words

from hvd_nmt.preparation.embedded.frame import Entry, same

EN = Locale("en")
DE = Locale("de")

_INVISIBLE = re.compile("[\u200b-\u200f\u2060-\u2064\ufeff\u00ad]")

DEFINITE: Mapping[str, Mapping[str, str]] = {
    "text": {"m": "der", "f": "die", "n": "das", "p": "die"},
    "acc": {"m": "den", "f": "die", "n": "das", "p": "die"},
    "dat": {"m": "dem", "f": "der", "n": "dem", "p": "den"},
}
"""Case -> gender (or p, plural) -> definite article. The nominative is called `text`."""

ONE: Mapping[str, Mapping[str, str]] = {
    "text": {"m": "ein", "f": "eine", "n": "ein"},
    "acc": {"m": "einen", "f": "eine", "n": "ein"},
    "dat": {"m": "einem", "f": "einer", "n": "einem"},
}
"""Case -> gender -> indefinite article, which is also the number one before a noun."""

PRONOUN: Mapping[str, Mapping[str, str]] = {
    "er": {"m": "er", "f": "sie", "n": "es"},
    "ihn": {"m": "ihn", "f": "sie", "n": "es"},
}
"""Masculine form -> gender -> personal pronoun."""


def clean(text: str) -> str:
    """CLDR text made typeable: NFC, plain hyphens and apostrophes, nothing invisible.

    CLDR puts no-break and thin spaces between numbers and units; single plain spaces are left.
    """
    text = _INVISIBLE.sub("", text).replace("\u2011", "-").replace("\u2019", "'")
    return unicodedata.normalize("NFC", " ".join(text.split()))


def in_both(text: Callable[[Locale], str]) -> Entry:
    """An entry of what a function of Babel says in English and in German."""
    return same(clean(text(EN)), clean(text(DE)))


def listed(text: str) -> tuple[str, ...]:
    """Splits a table in the source that is easier to read as running text, at blanks."""
    return tuple(text.split())


@functools.cache
def cardinal(number: int) -> tuple[str, str]:
    """A number from 0 to 999 in words, English and German.

    Beyond that num2words' German needs mending ("eine million").
    """
    return clean(num2words(number, lang="en")), clean(num2words(number, lang="de"))


@functools.cache
def ordinal(number: int) -> tuple[str, str]:
    """An ordinal number from 1 to 99 in words: "third" and the German weak nominative "dritte"."""
    english, german = (num2words(number, lang=lang, to="ordinal") for lang in ("en", "de"))
    return clean(english), clean(german)


def declined(gender: str, noun: str) -> dict[str, str]:
    """A German noun (m, f or n) without case endings of its own, with the definite article.

    The forms are text, acc, dat, zu ("zum Konzert"), noun, er, ihn and gender.
    """
    forms = {case: f"{article[gender]} {noun}" for case, article in DEFINITE.items()}
    forms |= {name: pronoun[gender] for name, pronoun in PRONOUN.items()}
    to = "zur" if gender == "f" else "zum"
    return forms | {"noun": noun, "gender": gender, "zu": f"{to} {noun}"}
