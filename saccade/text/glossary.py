"""Terms that have one translation: a TSV of `source term<TAB>target term`, for one request or for all.

A term is found as whole words, wherever it stands; of two that overlap, the one that begins first, and of those that
begin together the longest. A term in small letters is found in any case, and its translation takes on that case
(`beam` → `Strahl`: `BEAM` → `STRAHL`); one with a capital is found only as it is written (`US` is not `us`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from saccade.data.lines import read_lines, where_is
from saccade.errors import SaccadeError
from saccade.text.spans import UNSPACED, Span

_UNSPACED = re.compile(f"[{UNSPACED}]")
_NOT_WORDS = re.compile(r"[<{@]|%\S|//|www\.")  # markup, variables, addresses: another case is another thing


class Glossary:
    """Source terms and their translations."""

    def __init__(self, terms: Mapping[str, str]) -> None:
        self._translations = {}
        for source, target in terms.items():
            if not source.strip() or not target.strip():
                raise SaccadeError(f"glossary: {source!r} → {target!r}: neither side can be blank; take the entry out")
            if {"\n", "\r"} & set(source + target):
                raise SaccadeError(f"glossary: {source!r} → {target!r}: a term cannot go over the end of a line")
            self._translations[_key(source)] = target.strip()

    def __bool__(self) -> bool:
        return bool(self._translations)

    @classmethod
    def read(cls, path: str | Path) -> "Glossary":
        """Read a TSV file; blank lines are passed over."""
        terms: dict[str, str] = {}
        for number, line in enumerate(read_lines(path), 1):
            if not line.strip():
                continue
            columns = line.split("\t")
            where = f"{where_is(str(path))}, line {number:,}"
            if len(columns) != 2 or not all(column.strip() for column in columns):
                raise SaccadeError(
                    f"{where}: {line!r} is not `source term<TAB>target term`; put one tab between the two"
                )
            source, target = _key(columns[0]), columns[1].strip()
            if terms.setdefault(source, target) != target:
                raise SaccadeError(
                    f"{where}: {source!r} is {terms[source]!r} above and {target!r} here; keep one of them"
                )
        if not terms:
            raise SaccadeError(
                f"{where_is(str(path))}: a glossary without a term; write `source term<TAB>target term` lines"
            )
        return cls(terms)

    def find(self, text: str, start: int = 0) -> Span | None:
        """The first term in `text` from `start` on."""
        if not self._translations:
            return None
        match = self._pattern.search(text, start)
        if match is None:
            return None
        found = _key(match.group())
        target = self._translations.get(found)
        if target is None:
            target = _in_case_of(match.group(), self._translations[found.lower()])
        return Span("glossary", match.start(), match.end(), match.group(), target)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self._translations, key=lambda term: (-len(term), term))
        return re.compile("|".join(f"(?i:{p})" if t == t.lower() else p for t, p in map(_pattern_of, longest_first)))


class Terms:
    """Terms that stay as they are, found as whole words, case and all."""

    def __init__(self, terms: Sequence[str]) -> None:
        self.terms = sorted({_key(term) for term in terms if term.strip()}, key=lambda term: (-len(term), term))
        self._compiled = re.compile("|".join(whole_words(term) for term in self.terms)) if self.terms else None

    def find(self, text: str, start: int = 0) -> Span | None:
        """The first term in `text` from `start` on."""
        match = self._compiled.search(text, start) if self._compiled else None
        return match and Span("terms", match.start(), match.end(), match.group(), match.group())


def occurrences(term: str, text: str) -> Iterator[tuple[int, int]]:
    """Where `term` stands in `text` as whole words."""
    return (match.span() for match in re.finditer(whole_words(term), text))


def standing(phrases: Sequence[str], text: str, whole: Sequence[tuple[int, int]] = ()) -> list[tuple[int, int]]:
    """Where phrases that a translation was told to hold stand in it, with the words that they end in; in order, apart.

    `whole`: stretches that are not cut, and are part of what they overlap.
    """
    found: list[tuple[int, int]] = []
    for phrase in filter(None, map(str.strip, phrases)):
        before = r"(?<!\w)" if _has_bounds(phrase[0]) else ""
        found += [m.span() for m in re.finditer(rf"{before}{re.escape(phrase)}[^\W{UNSPACED}]*", text)]
    found += [one for one in whole if any(one[0] < end and start < one[1] for start, end in found)]
    ranges: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if ranges and start < ranges[-1][1]:
            start, end = ranges[-1][0], max(end, ranges.pop()[1])
        ranges.append((start, end))
    return ranges


def whole_words(term: str) -> str:
    """A pattern for `term` between the bounds of words, with any white space for white space."""
    pattern = r"\s+".join(map(re.escape, term.split()))
    # A sign has no bounds, and neither has a script that is written without spaces.
    before = r"(?<!\w)" if _has_bounds(term[0]) else ""
    after = r"(?!\w)" if _has_bounds(term[-1]) else ""
    return before + pattern + after


def _pattern_of(term: str) -> tuple[str, str]:
    return term, whole_words(term)


def _has_bounds(character: str) -> bool:
    return re.match(r"\w", character) is not None and not _UNSPACED.match(character)


def _key(term: str) -> str:
    return " ".join(term.split())


def _in_case_of(found: str, target: str) -> str:
    if _NOT_WORDS.search(target):
        return target
    if found.isupper() and len(found) > 1:
        return target.upper()
    return target[:1].upper() + target[1:] if found[:1].isupper() else target
