"""The built-in corpus: dates, times, spans, money, quantities and numbers in words, between any two of fifteen locales.

    for source, target in itertools.islice(pairs("en", "hu"), 12_000): ...
    # Friday, August 14, 1992, 3:07 PM    ->  1992. augusztus 14., péntek 15:07
    # three hundred and forty-two or six  ->  háromszáznegyvenkettő vagy hat

Nothing is downloaded: one *value* is drawn, and both sides are what Unicode's CLDR (through Babel) and num2words make
of it, so that each pair is a true translation and there is no last one. A tiny model learns it in a minute, yet words
change order all the time (the year comes first in Japanese and Hungarian, the weekday last; a German "zweiundvierzig"
says the two before the forty), which is what an alignment is there to show.

Three decisions a newcomer would question:

- **What is held out are facts, not sentences.** Each date, time, amount … belongs by a hash to one split, and a
  sentence is made of parts of its own split only. So does each pair of a weekday and a month, of a first and a last
  month, of tens and units: a model that is right on them has composed, it cannot have remembered.
- **Every space is a plain one.** CLDR writes no-break, narrow and thin spaces, and changes its mind about which between
  releases; nobody types them, and a model trained on "3:07\\u202fPM" would stumble over "3:07 PM".
- **Only forms that every locale gets right are used.** Ordinals, years and amounts spelled out are left out: there
  num2words is wrong, or does not know the gender, in several locales. What is left has been read, and a few slips of
  spelling are put right in `_SPELLING`.

The values depend on seed and split alone, never on the locales, the machine or the Python version; the text on the
installed Babel and num2words.
"""

import datetime
import difflib
import hashlib
import random
import re
import unicodedata
from bisect import bisect
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache, lru_cache, partial
from itertools import accumulate
from typing import Literal, NamedTuple, Protocol, get_args

from babel import Locale
from babel.dates import (
    TIMEDELTA_UNITS,
    format_date,
    format_interval,
    format_skeleton,
    format_time,
    format_timedelta,
    get_datetime_format,
)
from babel.lists import format_list
from babel.numbers import format_currency
from babel.units import format_unit
from num2words import num2words

from saccade.errors import SaccadeError

Split = Literal["train", "valid", "test"]
TimeUnit = Literal["year", "month", "week", "day", "hour", "minute", "second"]
How = Literal["alone", "at", "and", "or"]
Fact = tuple[str | int, ...]
Uniform = Callable[[], float]
Sampler = Callable[[Uniform], "Value"]

LOCALES: tuple[str, ...] = (
    "en", "de", "fr", "es", "it", "pt", "ro", "nl", "sv", "fi", "hu", "pl", "ru", "uk", "ja",
)  # fmt: skip
CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "SEK", "NOK", "CAD", "AUD", "INR", "MXN", "HUF")
SYMBOLS = ("USD", "EUR", "GBP", "JPY")
UNITS = (
    "temperature-celsius", "speed-kilometer-per-hour", "area-square-meter", "area-square-kilometer", "area-hectare",
    "volume-cubic-meter", "volume-liter", "mass-kilogram", "mass-gram", "length-kilometer", "length-meter",
)  # fmt: skip
TIME_UNITS: tuple[TimeUnit, ...] = get_args(TimeUnit)
YEARS = range(1900, 2100)

_SECONDS = dict(TIMEDELTA_UNITS)
_NEVER_ROUND = float("inf")
# CLDR's Portuguese is Brazil's.
_NUM2WORDS = {"pt": "pt_BR"}
_SPELLING = {
    "hu": ((r"két$", "kettő"),),  # kétezer-kettő
    "it": ((r"dicotto$", "diciotto"), (r"(?<=.)tre$", "tré")),  # centodiciotto, centoventitré
    "nl": ((r"(?<=d)één$", "een"), (r"duizend(?=\w)", "duizend ")),  # honderdeen; duizend negenhonderd
    "pt": ((r",", ""),),  # mil duzentos e um
    "sv": ((r"ettt", "ett"), (r"förtio", "fyrtio")),  # ettusen, and the usual spelling of forty
    "uk": ((r"'", "ʼ"),),  # CLDR's apostrophe
}
_HELD_OUT_PERCENT = 5  # for valid, and as much again for test


class Value(Protocol):
    """Something that can be said in every locale."""

    def facts(self) -> tuple[Fact, ...]:
        """What decides its split: itself, then the combinations that are held out as a whole."""

    def render(self, locale: str) -> str:
        """Say it in the words of `locale`."""


class Date(NamedTuple):
    """A day: with its weekday in full style, without in long style."""

    year: int
    month: int
    day: int
    style: Literal["full", "long"]

    def facts(self) -> tuple[Fact, ...]:
        weekday = datetime.date(self.year, self.month, self.day).weekday()
        return ("date", self.year, self.month, self.day), ("weekday, month", weekday, self.month)

    def render(self, locale: str) -> str:
        return format_date(datetime.date(self.year, self.month, self.day), self.style, locale=_cldr(locale))


class Time(NamedTuple):
    """A time of day, on the locale's own twelve- or twenty-four-hour clock."""

    hour: int
    minute: int

    def facts(self) -> tuple[Fact, ...]:
        return (("time", *self),)

    def render(self, locale: str) -> str:
        return format_time(datetime.time(self.hour, self.minute), "short", locale=_cldr(locale))


class Quarter(NamedTuple):
    """A quarter of a year."""

    year: int
    quarter: int

    def facts(self) -> tuple[Fact, ...]:
        return (("quarter", *self),)

    def render(self, locale: str) -> str:
        first = datetime.date(self.year, 3 * self.quarter - 2, 1)
        return format_skeleton("yQQQQ", first, locale=_cldr(locale))


class Months(NamedTuple):
    """From one month to a later one of the same year."""

    year: int
    first: int
    last: int

    def facts(self) -> tuple[Fact, ...]:
        return ("months", *self), ("first, last", self.first, self.last)

    def render(self, locale: str) -> str:
        first, last = (datetime.date(self.year, month, 1) for month in (self.first, self.last))
        return format_interval(first, last, "yMMMM", locale=_cldr(locale))


class Relative(NamedTuple):
    """So many days, weeks … from now, or ago."""

    amount: int
    unit: TimeUnit
    past: bool

    def facts(self) -> tuple[Fact, ...]:
        return (("relative", *self),)

    def render(self, locale: str) -> str:
        return _timedelta(-self.amount if self.past else self.amount, self.unit, locale, add_direction=True)


class Duration(NamedTuple):
    """Hours and minutes."""

    hours: int
    minutes: int

    def facts(self) -> tuple[Fact, ...]:
        return (("duration", *self),)

    def render(self, locale: str) -> str:
        parts = [_timedelta(self.hours, "hour", locale), _timedelta(self.minutes, "minute", locale)]
        return format_list(parts, locale=_cldr(locale))


class Money(NamedTuple):
    """An amount in hundredths, with the currency's name or its symbol."""

    hundredths: int
    currency: str
    style: Literal["name", "standard"]

    def facts(self) -> tuple[Fact, ...]:
        return (("money", self.hundredths, self.currency),)

    def render(self, locale: str) -> str:
        units, cents = divmod(self.hundredths, 100)
        # Babel takes the plural from the digits it is given, so "24.00" must not reach it where "24" is written.
        amount = Decimal(self.hundredths).scaleb(-2) if cents else Decimal(units)
        digits = bool(cents) or self.style == "standard"  # "21 euros", but "€21.00", as on a price tag
        return format_currency(
            amount, self.currency, locale=_cldr(locale), currency_digits=digits, format_type=self.style
        )


class Quantity(NamedTuple):
    """So many kilograms, degrees, kilometers per hour …"""

    amount: int
    unit: str

    def facts(self) -> tuple[Fact, ...]:
        return (("quantity", *self),)

    def render(self, locale: str) -> str:
        return format_unit(self.amount, self.unit, "long", locale=_cldr(locale))


class Number(NamedTuple):
    """A whole number in words."""

    value: int

    def facts(self) -> tuple[Fact, ...]:
        tens, units = divmod(self.value % 100, 10)
        itself: Fact = ("number", self.value)
        # Only where a language composes: one who never met "fourteen" cannot know it.
        return (itself, ("tens, units", tens, units)) if tens > 1 and units else (itself,)

    def render(self, locale: str) -> str:
        return _in_words(self.value, locale)


class Joined(NamedTuple):
    """One value, or two: a date at a time, one thing and another, one thing or another."""

    how: How
    parts: tuple[Value, ...]

    def facts(self) -> tuple[Fact, ...]:
        return tuple(fact for part in self.parts for fact in part.facts())

    def render(self, locale: str) -> str:
        texts = [part.render(locale) for part in self.parts]
        if self.how == "alone":
            return texts[0]
        if self.how == "at":
            glue = str(get_datetime_format("long", locale=_cldr(locale))).replace("'", "")
            return glue.replace("{1}", texts[0]).replace("{0}", texts[1])
        joined = format_list(texts, style="standard" if self.how == "and" else "or", locale=_cldr(locale))
        # CLDR's lists leave to their reader that Spanish says "siete u ocho", not "siete o ocho".
        return re.sub(r" o (?=h?o|8|11(?!\d))", " u ", joined) if locale == "es" else joined


def render(value: Value, locale: str) -> str:
    """The text of `value` in `locale`: one line, NFC, plain spaces only."""
    return unicodedata.normalize("NFC", " ".join(value.render(locale).split()))


def split_of(value: Value) -> Split:
    """The split that `value` belongs to: the first held-out fact decides, the widest first."""
    for fact in reversed(value.facts()):
        bucket = _bucket(fact)
        if bucket < _HELD_OUT_PERCENT:
            return "valid"
        if bucket < 2 * _HELD_OUT_PERCENT:
            return "test"
    return "train"


def pairs(source: str, target: str, *, seed: int = 1, split: Split = "train") -> Iterator[tuple[str, str]]:
    """Endless (source, target) sentences; the same seed and split always give the same ones, in the same order."""
    _check(source, target, split)
    return _stream(source, target, seed, split)


def _stream(source: str, target: str, seed: int, split: Split) -> Iterator[tuple[str, str]]:
    # Python promises to keep the sequence of random() alone, so nothing else of Random is used.
    uniform = random.Random(_hash(f"{seed} {split}")).random
    while True:
        value = _sentence(uniform, split)
        pair = render(value, source), render(value, target)
        if pair[0] != pair[1]:  # "21 kilometer" is Dutch and Swedish, and would teach only to copy
            yield pair


def _sentence(uniform: Uniform, split: Split) -> Joined:
    how, samplers = _KINDS[bisect(_CUMULATIVE, uniform() * _CUMULATIVE[-1])][1:]
    parts: list[Value] = []
    while len(parts) < len(samplers):
        part = samplers[len(parts)](uniform)
        if split_of(part) == split and part not in parts:
            parts.append(part)
    return Joined(how, tuple(parts))


def _below(uniform: Uniform, end: int) -> int:
    return int(uniform() * end)


def _date(uniform: Uniform, style: Literal["full", "long"]) -> Date:
    first = datetime.date(YEARS.start, 1, 1)
    days = (datetime.date(YEARS.stop, 1, 1) - first).days
    day = first + datetime.timedelta(days=_below(uniform, days))
    return Date(day.year, day.month, day.day, style)


def _time(uniform: Uniform) -> Time:
    return Time(_below(uniform, 24), _below(uniform, 60))


def _quarter(uniform: Uniform) -> Quarter:
    return Quarter(YEARS[_below(uniform, len(YEARS))], 1 + _below(uniform, 4))


def _months(uniform: Uniform) -> Months:
    first = 1 + _below(uniform, 11)
    return Months(YEARS[_below(uniform, len(YEARS))], first, first + 1 + _below(uniform, 12 - first))


def _relative(uniform: Uniform) -> Relative:
    return Relative(1 + _below(uniform, 60), TIME_UNITS[_below(uniform, len(TIME_UNITS))], uniform() < 0.5)


def _duration(uniform: Uniform) -> Duration:
    return Duration(1 + _below(uniform, 24), 1 + _below(uniform, 59))


def _money(uniform: Uniform) -> Money:
    scale = (100, 10_000, 100_000)[_below(uniform, 3)]  # 1 … 99 units, 100 … 9,900, 1,000 … 99,000
    return Money((1 + _below(uniform, 99)) * scale, CURRENCIES[_below(uniform, len(CURRENCIES))], "name")


def _price(uniform: Uniform) -> Money:
    currency = SYMBOLS[_below(uniform, len(SYMBOLS))]
    cents = 0 if currency == "JPY" else 5 * _below(uniform, 20)
    return Money((1 + _below(uniform, 99)) * 100 + cents, currency, "standard")


def _quantity(uniform: Uniform) -> Quantity:
    return Quantity(1 + _below(uniform, 99), UNITS[_below(uniform, len(UNITS))])


def _number(uniform: Uniform) -> Number:
    return Number(_below(uniform, (100, 1000, 1000, 10_000)[_below(uniform, 4)]))


_full_date = partial(_date, style="full")
_long_date = partial(_date, style="long")
_KINDS: tuple[tuple[int, How, tuple[Sampler, ...]], ...] = (
    (16, "alone", (_full_date,)),
    (14, "at", (_full_date, _time)),
    (6, "at", (_long_date, _time)),
    (6, "or", (_long_date, _long_date)),
    (2, "alone", (_quarter,)),
    (6, "alone", (_months,)),
    (4, "alone", (_number,)),
    (18, "or", (_number, _number)),
    (6, "alone", (_money,)),
    (4, "or", (_price, _price)),
    (4, "and", (_money, _money)),
    (2, "alone", (_quantity,)),
    (4, "or", (_quantity, _quantity)),
    (2, "alone", (_relative,)),
    (4, "or", (_relative, _relative)),
    (2, "alone", (_duration,)),
)
_CUMULATIVE = tuple(accumulate(weight for weight, _, _ in _KINDS))


@cache
def _cldr(locale: str) -> Locale:
    return Locale.parse(locale)


@cache  # at most 10,000 numbers a locale; num2words takes 0.1 ms for one
def _in_words(number: int, locale: str) -> str:
    words = str(num2words(number, lang=_NUM2WORDS.get(locale, locale)))
    for wrong, right in _SPELLING.get(locale, ()):
        words = re.sub(wrong, right, words)
    return words


def _timedelta(amount: int, unit: TimeUnit, locale: str, add_direction: bool = False) -> str:
    return format_timedelta(
        datetime.timedelta(seconds=amount * _SECONDS[unit]),
        granularity=unit,
        threshold=_NEVER_ROUND,
        add_direction=add_direction,
        locale=_cldr(locale),
    )


@lru_cache(maxsize=1 << 15)  # a held-out split asks twenty times for each value it takes
def _bucket(fact: Fact) -> int:
    return _hash(repr(fact)) % 100


def _hash(text: str) -> int:
    """The same number on every machine, whatever PYTHONHASHSEED says."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _check(source: str, target: str, split: str) -> None:
    for side, locale in (("source", source), ("target", target)):
        if locale not in LOCALES:
            raise SaccadeError(
                f"the built-in corpus has no {side} locale {locale!r}; it has {', '.join(LOCALES)}{_nearest(locale)}"
            )
    if source == target:
        raise SaccadeError(
            f"source and target of the built-in corpus are both {source!r}; choose two of {', '.join(LOCALES)}"
        )
    if split not in get_args(Split):
        raise SaccadeError(f"the built-in corpus has no split {split!r}; it has {', '.join(get_args(Split))}")


def _nearest(name: str) -> str:
    """People write en-US, German or Deutsch: look among codes, English names and own names."""
    known = {locale: locale for locale in LOCALES}
    for locale in LOCALES:
        for language in ("en", locale):
            known[str(_cldr(locale).get_display_name(language)).lower()] = locale
    code = re.split("[-_.@]", name.lower())[0]
    near = difflib.get_close_matches(code, known, n=1, cutoff=0.6)
    return f"; did you mean {known[near[0]]}?" if near else ""
