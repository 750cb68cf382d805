"""Dates, times and spans of time, formatted by Babel from CLDR."""

import datetime
import functools
from collections.abc import Callable, Sequence

from babel.dates import (
    format_date,
    format_skeleton,
    format_time,
    format_timedelta,
    get_day_names,
    get_month_names,
)
from babel.units import format_unit

from hvd_nmt.preparation.embedded.frame import Entry, Pool, joined, pool_of, same
from hvd_nmt.preparation.embedded.words import DE, EN, ONE, cardinal, clean, in_both

_FIRST_DATE = datetime.date(1950, 1, 1)
_LAST_DATE = datetime.date(2025, 12, 31)
_FIRST_RECENT = datetime.date(2010, 1, 1)
_FIRST_PLAN = datetime.date(2027, 1, 1)
_LAST_PLAN = datetime.date(2049, 12, 31)

_UNIT_GENDER = {"minute": "f", "hour": "f", "day": "m", "week": "f", "month": "m", "year": "n"}


def pools() -> dict[str, Pool]:
    """The pools of this module, by name.

    `date` (March 3, 2014), `recent` (not long ago), `deadline` (in the years to come),
    `fulldate` (the same with the weekday), `day` (March 3), `month`, `weekday`, `year`; `time`
    (3:45 PM), `clock` (half past three), `period` (a start and a later end), `opening` (the
    same, for most of a day); `minutes`, `hours`, `days`, `weeks`, `years` and `span` in words;
    `duration` in figures (2 hours and 15 minutes).
    """
    leap_year = datetime.date(2028, 1, 1)
    return {
        "date": _date_pool(_FIRST_DATE, _LAST_DATE, _long_date),
        "fulldate": _date_pool(_FIRST_PLAN, _LAST_PLAN, _full_date),
        "deadline": _date_pool(_FIRST_PLAN, _LAST_PLAN, _long_date),
        "recent": _date_pool(_FIRST_RECENT, _LAST_DATE, _long_date),
        "day": _date_pool(leap_year, datetime.date(2028, 12, 31), _day_of_year),
        "month": pool_of([_month(number) for number in range(1, 13)]),
        "weekday": pool_of([_weekday(number) for number in range(7)]),
        "year": pool_of([same(str(y), str(y)) for y in range(1950, 2026)]),
        "time": pool_of([_time(5 * n) for n in range(288)]),
        "period": pool_of(_periods(range(420, 1141, 15), (30, 45, 60, 90, 120, 180, 240))),
        "opening": pool_of(_periods(range(480, 661, 15), range(420, 661, 15))),
        "clock": pool_of([same(*_clock(h, m)) for h in range(1, 13) for m in range(0, 60, 5)]),
        "minutes": pool_of([_span("minute", n) for n in (1, *range(2, 13), *range(15, 60, 5))]),
        "hours": pool_of([_span("hour", n) for n in range(1, 10)]),
        "days": pool_of([_span("day", n) for n in range(1, 29)]),
        "weeks": pool_of([_span("week", n) for n in range(1, 13)]),
        "years": pool_of([_span("year", n) for n in range(1, 31)], skew=1.5),
        "span": pool_of(
            [_span(unit, n) for n in range(1, 13) for unit in ("day", "week", "month", "year")]
        ),
        "duration": Pool(12 * 12, lambda index: _duration(1 + index // 12, index % 12 * 5)),
    }


def _date_pool(
    first: datetime.date, last: datetime.date, make: Callable[[datetime.date], Entry]
) -> Pool:
    days = (last - first).days + 1
    return Pool(days, lambda index: make(first + datetime.timedelta(days=index)))


def _long_date(date: datetime.date) -> Entry:
    return in_both(lambda locale: format_date(date, "long", locale=locale))


def _full_date(date: datetime.date) -> Entry:
    # CLDR's "Dienstag, 3. März 2020" cannot follow "am": the date stands in apposition, dative.
    weekday = _weekday(date.weekday()).german["text"]
    german = f"{weekday}, dem {_long_date(date).german['text']}"
    return same(clean(format_date(date, "full", locale=EN)), german)


def _day_of_year(date: datetime.date) -> Entry:
    return in_both(lambda locale: format_skeleton("MMMMd", date, locale=locale))


def _month(number: int) -> Entry:
    return in_both(lambda locale: get_month_names("wide", locale=locale)[number])


def _weekday(number: int) -> Entry:
    return in_both(lambda locale: get_day_names("wide", locale=locale)[number])


@functools.cache
def _time(minute_of_day: int) -> Entry:
    time = datetime.time(minute_of_day // 60, minute_of_day % 60)
    return in_both(lambda locale: format_time(time, "short", locale=locale))


def _periods(starts: Sequence[int], lengths: Sequence[int]) -> list[Entry]:
    return [
        joined(start=_time(start), end=_time(start + length))
        for start in starts
        for length in lengths
    ]


def _clock(hour: int, minute: int) -> tuple[str, str]:
    """Says the time as people do: English counts from the full hour, German also from the half."""
    english_now, german_now = cardinal(hour)
    english_next, german_next = cardinal(hour % 12 + 1)
    if minute == 0:
        return f"{english_now} o'clock", f"{'ein' if hour == 1 else german_now} Uhr"
    if minute == 30:
        return f"half past {english_now}", f"halb {german_next}"
    past = minute < 30
    near = minute if past else 60 - minute
    english_near, german_near = ("a quarter", "Viertel") if near == 15 else cardinal(near)
    english = f"{english_near} {'past' if past else 'to'} {english_now if past else english_next}"
    if near == 25:
        return english, f"fünf {'vor' if past else 'nach'} halb {german_next}"
    german_hour = german_now if past else german_next
    return english, f"{german_near} {'nach' if past else 'vor'} {german_hour}"


@functools.cache
def _unit_nouns(unit: str) -> tuple[str, str, str, str, str]:
    """Takes the nouns out of CLDR's patterns: two English forms and three German ones.

    The dative plural is not in Babel's unit patterns, but CLDR's "vor 2 Tagen" has it.
    """

    def noun(text: str) -> str:
        return clean(text).rsplit(" ", 1)[1]

    names = [
        noun(format_unit(count, f"duration-{unit}", "long", locale=locale))
        for locale in (EN, DE)
        for count in (1, 2)
    ]
    seconds = {"minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": 2592000,
               "year": 31536000}  # fmt: skip
    ago = format_timedelta(
        datetime.timedelta(seconds=-2 * seconds[unit]),
        granularity=unit, threshold=1.5, add_direction=True, locale=DE,
    )  # fmt: skip
    return names[0], names[1], names[2], names[3], noun(ago)


@functools.cache
def _span(unit: str, count: int) -> Entry:
    """Makes "three weeks": German text, acc and dat."""
    english_one, english_many, german_one, german_many, german_dative = _unit_nouns(unit)
    english, german = cardinal(count)
    if count == 1:
        gender = _UNIT_GENDER[unit]
        forms = {case: f"{article[gender]} {german_one}" for case, article in ONE.items()}
        return Entry({"text": f"{english} {english_one}"}, forms)
    many = f"{german} {german_many}"
    return Entry(
        {"text": f"{english} {english_many}"},
        {"text": many, "acc": many, "dat": f"{german} {german_dative}"},
    )


def _duration(hours: int, minutes: int) -> Entry:
    texts = []
    for locale, glue in ((EN, " and "), (DE, " und ")):
        parts = [format_unit(hours, "duration-hour", "long", locale=locale)]
        if minutes:
            parts.append(format_unit(minutes, "duration-minute", "long", locale=locale))
        texts.append(clean(glue.join(parts)))
    return same(*texts)
