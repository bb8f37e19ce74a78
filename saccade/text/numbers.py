"""Does a number survive in a translation?

A number is a run of digits with single separators between them. It *survives* where the translation has

1. the same value in digits: grouped or not, with either decimal sign, in the digits of any script, with or without
   leading zeros and with or without a fraction of zeros (`1,234.50` = `1.234,5` = `1 234,5` = `١٢٣٤٫٥`; `05` = `5`); or
2. the hour of the other clock, where it is the hour of a time (`8:15 PM` = `20:15`; `19.02` = `7:02`); or
3. its word in the target language, cardinal or ordinal, as num2words gives it, where a word begins with it (`3` =
   `drei`, `dreijährige`), its Roman numeral up to 39, or the name of the month, where it is a number of a date
   (`3/28/1986` = `28. März 1986`).

A separator may be a decimal sign (the last one) or one between thousands (three digits follow). A run that is neither,
such as `28.03.1986`, is several numbers; `12 500` is one, or two where the translation has two. A *code*, such as
`2.13.0`, `192.168.0.1` or `978-3-16-148410-0`, is three groups or more with dots, hyphens or colons between them that
make no date, no time, no thousands and no range of such (`10:00-12:00`): it survives only as it stands, in the digits
of any script. Digits that stand for one number do not stand for another: `5 of 5` needs two. Numbers that the
translation has beyond those of the source are left alone: they may be words of the source.
"""

import re
import unicodedata
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import NamedTuple

from babel import Locale, UnknownLocaleError
from num2words import num2words

from saccade.text.spans import UNSPACED

# A digit after a letter is part of a name (A4, mp3), unless it is a letter of a script without spaces (1942年6月).
# A space is a separator where just threes follow it: 12 500.
_SPACED = r"\d{1,3}(?: \d{3})+(?:[.,٫]\d+)?(?! ?\d)"
NUMBER = re.compile(rf"(?:(?<!\w)|(?<=[{UNSPACED}]))(?:{_SPACED}|\d+(?:[.,'’٬٫\u00a0\u202f]\d+)*)")
_JOINED = r"\d++(?:[.:\-]\d++){2,}+"
_CODE = re.compile(rf"(?:(?<!\w)|(?<=\b[vV])|(?<=[{UNSPACED}])){_JOINED}")
_WRITTEN_CODE = re.compile(_JOINED)
_RUN = re.compile(r"\d+(?:[.,'’٬٫\u00a0\u202f ]\d+)*")
_GROUP = re.compile(r"\d+")
_CLOCK = re.compile(r"[:.]\d\d(?:[:.]\d\d)?(?:\s*([ap])\.?m\b)?|\s*([ap])\.?m\b", re.IGNORECASE)
_TIME = re.compile(r"\b([01]?\d|2[0-3]):([0-5]\d)\b", re.ASCII)
_SIGN = re.compile(r"(?<![^\s(\[{\"'„“«=:$€£¥])[\-−]?\.?\Z")  # -5, .5
_DATE = re.compile(r"[/\-.月월]")
_ROMAN = ("", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX")
_LONGEST_WORD = 6  # digits of a number that may be a word
_SHORT = 3

Value = tuple[str, str]  # digits before and after the decimal sign


class Found(NamedTuple):
    """Where a number stands in a text."""

    start: int
    end: int


def numbers_in(text: str, taken: Sequence[tuple[int, int]] = ()) -> list[Found]:
    """The numbers of a text; a run that is no single number and no code is cut into its groups.

    `taken` are stretches that are something else: no number is in them, and no code goes across their ends.
    """
    runs = (Found(*run.span()) for run in _CODE.finditer(text))
    codes = [run for run in runs if is_code(text[run.start : run.end]) and not _overlaps(run, taken)]
    found: list[Found] = []
    position = 0
    for code in [*codes, Found(len(text), len(text))]:
        for run in NUMBER.finditer(text, position, code.start):
            if values(run.group()):
                found.append(Found(*run.span()))
            else:
                found += [Found(run.start() + g.start(), run.start() + g.end()) for g in _GROUP.finditer(run.group())]
        found += [code] if code in codes else []
        position = code.end
    return [number for number in found if not _overlaps(number, taken)]


def sign_of(text: str, start: int) -> str:
    """What before a number changes its value: a minus, the point of a fraction."""
    sign = _SIGN.search(text[max(start - 3, 0) : start])
    return sign.group() if sign else ""


@lru_cache(1024)
def is_code(run: str) -> bool:
    """Whether digits between dots, hyphens and colons stand for nothing that another language writes otherwise."""
    if not _WRITTEN_CODE.fullmatch(run):
        return False
    groups = _GROUP.findall(_ascii(run))
    signs = [sign for sign in "-:." if sign in run]  # what joins most loosely first: 10:00-12:00, 2:1.5
    if len(signs) > 1:
        return any(is_code(part) for part in run.split(signs[0]))
    return not (_is_date(groups, signs[0]) or _is_time(groups, signs[0]) or _is_thousands(groups, signs[0]))


def _is_date(groups: Sequence[str], sign: str) -> bool:
    if len(groups) != 3 or sign == ":":
        return False
    first, middle, last = groups
    orders = ((first, middle, last), (last, middle, first), (last, first, middle))
    return any(
        len(year) in (2, 4) and len(month) <= 2 and len(day) <= 2 and 1 <= int(month) <= 12 and 1 <= int(day) <= 31
        for year, month, day in orders
    )


def _is_time(groups: Sequence[str], sign: str) -> bool:
    if len(groups) != 3 or sign == "-":
        return False
    return len(groups[0]) <= 2 and int(groups[0]) <= 24 and all(len(g) == 2 and int(g) < 60 for g in groups[1:])


def _is_thousands(groups: Sequence[str], sign: str) -> bool:
    """Not of an address: 192.168.100.200 has four numbers of a byte, none with a zero before it."""
    address = len(groups) == 4 and all(int(group) < 256 and str(int(group)) == group for group in groups)
    return sign == "." and len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:]) and not address


@lru_cache(1024)
def values(run: str) -> frozenset[Value]:
    """What a run of digits and separators can mean: `1.234` is a thousand and more, or one and a fraction."""
    groups = [_ascii(group) for group in _GROUP.findall(run)]
    thousands = all(len(group) == 3 for group in groups[1:]) and (len(groups) == 1 or len(groups[0]) <= 3)
    meant = {(_whole("".join(groups)), "")} if thousands else set()
    if len(groups) > 1 and all(len(group) == 3 for group in groups[1:-1]):
        # Three digits may be thousands: there, zeros say something.
        fraction = groups[-1] if len(groups[-1]) == 3 else groups[-1].rstrip("0")
        meant.add((_whole("".join(groups[:-1])), fraction))
    return frozenset(meant)


def survivors(
    source: str, numbers: Sequence[Found], target: str, language: str = "", taken: Sequence[tuple[int, int]] = ()
) -> list[Found | None]:
    """For each number of the source, where the translation has it; None: it is lost.

    `taken` are stretches of the translation that are something else, such as addresses.
    """
    candidates = [found for found in _candidates(target) if not _overlaps(found[0], taken)]
    by_value: dict[Value, list[int]] = {}  # numbers of candidates, the first to be taken at the end
    for i in range(len(candidates) - 1, -1, -1):
        for value in candidates[i][1]:
            by_value.setdefault(value, []).append(i)
    used = _Used(len(target))
    result: list[Found | None] = [None] * len(numbers)

    def first_free(meant: AbstractSet[Value]) -> Found | None:
        """The first candidate that can mean it. One that is used never comes free, so it is not looked at again."""
        waiting = [by_value[value] for value in meant if value in by_value]
        for places in waiting:
            while places and used.overlaps(candidates[places[-1]][0]):
                places.pop()
        first = min((places[-1] for places in waiting if places), default=None)
        return None if first is None else candidates[first][0]

    def settle(meant: Sequence[AbstractSet[Value]]) -> None:
        # Long numbers first, and whole runs before pieced ones: `12` must not be made of the `1` and the `2` of others.
        for i in sorted(range(len(numbers)), key=lambda i: -(numbers[i].end - numbers[i].start)):
            if result[i] is None and (place := first_free(meant[i])) is not None:
                used.add(place)
                result[i] = place

    texts = [source[n.start : n.end] for n in numbers]
    codes = [i for i, text in enumerate(texts) if is_code(text)]
    for i in codes:
        for run in _WRITTEN_CODE.finditer(target):
            there = Found(*run.span())
            if _ascii(run.group()) == _ascii(texts[i]) and not (_overlaps(there, taken) or used.overlaps(there)):
                used.add(there)
                result[i] = there
                break
    meant = [frozenset[Value]() if i in codes else values(text) for i, text in enumerate(texts)]
    settle(meant)
    settle([_other_clock(source, n) for n in numbers])
    missing: set[tuple[str, ...]] = set()  # words that are not there, or no more
    for i in [i for i, place in enumerate(result) if place is None]:
        # A number that has a word leaves its digits to an equal one that has none: 5月5日 is 5. Mai.
        for j in [i, *(j for j in range(len(numbers)) if result[j] and meant[j] & meant[i])]:
            words = _words_for(source, numbers[j], language)
            place = None if words in missing else _first_word(words, target, taken, used)
            if place is None:
                missing.add(words)
            else:
                used.add(place)
                result[i], result[j] = result[j], place
                break
    for i in [i for i, place in enumerate(result) if place is None]:
        parts = source[numbers[i].start : numbers[i].end].split(" ")
        places: list[Found] = []
        for part in parts if len(parts) > 1 else ():  # 3 100 m may be three times 100 m
            free = (
                place
                for place, value in candidates
                if value & values(part) and not (used.overlaps(place) or _overlaps(place, places))
            )
            words = _number_words(int(part), language) if part.isdecimal() else ()
            place = next(free, None) or _first_word(words, target, [*taken, *places], used)
            places += [place] if place else []
        if len(places) == len(parts):
            result[i] = places[0]
            for place in places:
                used.add(place)
    return result


class _Used:
    """Which characters of a translation stand for a number already: a line may have thousands of them."""

    def __init__(self, length: int) -> None:
        self._marks = bytearray(length)

    def add(self, place: Found) -> None:
        self._marks[place.start : place.end] = b"\1" * (place.end - place.start)

    def overlaps(self, place: Found) -> bool:
        return 1 in self._marks[place.start : place.end]


def _candidates(text: str) -> list[tuple[Found, AbstractSet[Value]]]:
    """Every row of neighbouring groups that can be a number, the fewest groups first."""
    found: list[tuple[int, Found, AbstractSet[Value]]] = []
    for run in _RUN.finditer(text):
        groups = list(_GROUP.finditer(run.group()))
        for i in range(len(groups)):
            for j in range(i, min(i + 6, len(groups))):
                piece = run.group()[groups[i].start() : groups[j].end()]
                if meant := values(piece):
                    place = Found(run.start() + groups[i].start(), run.start() + groups[j].end())
                    found.append((j - i, place, meant))
    for time in _TIME.finditer(text):
        hour, minutes = int(time.group(1)), time.group(2).rstrip("0")  # 19.02 is 19:02, or 7:02
        found.append((1, Found(*time.span()), {(str(h), minutes) for h in (hour, hour + 12, hour - 12) if 0 <= h < 24}))
    return [(place, meant) for _, place, meant in sorted(found, key=lambda f: (f[0], f[1]))]


def _other_clock(source: str, number: Found) -> set[Value]:
    text = source[number.start : number.end]
    if not (text.isdecimal() and len(text) <= 2 and (clock := _CLOCK.match(source, number.end))):
        return set()
    hour, half = int(text), (clock.group(1) or clock.group(2) or "").lower()
    if half == "p" and hour < 12:
        return {(str(hour + 12), "")}
    if half == "a" and hour == 12:
        return {("0", "")}
    if not half and hour == 0:
        return {("12", "")}
    return {(str(hour - 12), "")} if not half and 12 < hour < 24 else set()


def _words_for(source: str, number: Found, language: str) -> tuple[str, ...]:
    text = _ascii(source[number.start : number.end]).replace(" ", "")
    if not text.isdecimal() or len(text) > _LONGEST_WORD:
        return ()
    value = int(text)
    words = _number_words(value, language)
    if 1 <= value < 40:
        words += ("X" * (value // 10) + _ROMAN[value % 10],)
    if 1 <= value <= 12 and (source[: number.start].endswith(("/", "-", ".")) or _DATE.match(source, number.end)):
        words += _months(value, language)
    return words


@lru_cache(1024)
def _number_words(value: int, language: str) -> tuple[str, ...]:
    words = []
    if language:
        for to in ("cardinal", "ordinal"):
            try:
                words.append(str(num2words(value, lang=language, to=to)).casefold())
            except (NotImplementedError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError):
                continue  # num2words has no such language, or no such form in it
    return tuple(words)


@lru_cache(256)
def _months(value: int, language: str) -> tuple[str, ...]:
    try:
        months = Locale.parse(language, sep="-" if "-" in language else "_").months
    except (UnknownLocaleError, ValueError, TypeError):
        return ()
    return tuple(months[form]["wide"][value] for form in ("format", "stand-alone"))


def _first_word(words: Sequence[str], text: str, taken: Sequence[tuple[int, int]], used: "_Used") -> Found | None:
    """Where a word of the text begins with one of `words`; its last letter may be inflected. A numeral stands alone."""
    small = text.lower() if len(text.lower()) == len(text) else text
    for word in words:
        numeral = word.isupper() and word.isascii()
        # Of a long word anything may follow, of a short one two letters: eins, and ein, eine, einen.
        forms = [(word, 0)] if numeral else [(word.lower(), 2 if len(word) <= _SHORT else len(text))]
        if len(word) > _SHORT and not numeral:
            forms.append((word.lower()[:-1], 2))
        for form, more in forms:
            start = -1
            while (start := (text if numeral else small).find(form, start + 1)) >= 0:
                end = start + len(form)
                while end < len(text) and text[end].isalnum():
                    end += 1
                alone = start == 0 or not text[start - 1].isalnum()
                fits = alone and end - start - len(form) <= more
                if fits and not (used.overlaps(Found(start, end)) or _overlaps((start, end), taken)):
                    return Found(start, end)
    return None


def _overlaps(place: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    return any(place[0] < end and start < place[1] for start, end in others)


def _ascii(digits: str) -> str:
    if digits.isascii():
        return digits
    return "".join(str(unicodedata.decimal(c)) if not c.isascii() and c.isdecimal() else c for c in digits)


def _whole(digits: str) -> str:
    return digits.lstrip("0") or "0"
