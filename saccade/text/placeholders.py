"""What must come through whatever the model does: markup, variables, addresses, numbers, listed terms.

- `tags`: `<b>`, `</b>`, `<br/>`, `<a href="…">`, `<0>`, comments `<!-- … -->`
- `variables`: `{name}`, `{0}`, `{}`, `{x:>8}`, `{ $name }`, `{n, number}`, `{{mustache}}`, `${x}`, `%{x}`, `%s`,
  `%1$s`, `%5.2f`, `%(name)d`, `%dpx`
- `urls`: `https://…`, any other `scheme://…`, `www.…`; a full stop or bracket that ends a sentence is not part of it
- `emails`: `name@host.tld`
- `numbers`: digits; `saccade.text.numbers` says when one has survived

Of two that overlap, the one that begins first counts, and of those that begin together the longest.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from saccade.text.glossary import Glossary, Terms, occurrences, standing
from saccade.text.numbers import Found, numbers_in, sign_of, survivors
from saccade.text.spans import UNSPACED, Span

_SPEC = r"(?:hh?|ll?|[Lzjt])?[diouxXeEfFgGaAcsrp@]"
# A word does not go on after one, but a unit may stand at it: "%age" is none, "%dpx" and "%dMB" are.
_UNIT = r"(?:[A-Z]{2,3}|px|pt|rem|ms|ns|min|hrs?|sec|[cdkm]m|[km]g|ml|[kMGT]i?[Bb]|[kMG]?Hz|k?bps|fps|st|nd|rd|th)\b"
# No space in a flag, and no digit before: "100% sure" and "5%" hold no variable.
_PRINTF = (
    rf"(?<!\d)%(?:\d+\$)?[-+#0]*\d*(?:\.\d+)?(?:{_SPEC}(?![A-Za-z]{{2}})|[dsuif](?={_UNIT}))"
    rf"|%\(\w+\)[-+#0]*\d*(?:\.\d+)?{_SPEC}"
)
_NAMED = (
    r"\{[\w.\[\]\-]*(?:![rsa])?(?::[^{}\s]*)?\}"
    r"|\{ ?\$?[\w.\-]+ ?\}"  # Fluent's
    r"|\{\s*\w+\s*,\s*(?:number|date|time|duration|ordinal|spellout)\s*(?:,[^{}\n]*)?\}"  # ICU's that hold no text
)
_BRACES = r"\{\{\{[^{}\n]*\}\}\}|\{\{[^{}\n]*\}\}|[$#%]\{[^{}\n]*\}"
_IN_URL = rf"(?:[^\s<>\"{{}}|\\^`{UNSPACED}\u3000-\u303f\uff00-\uffef]|\{{[^{{}}\s]*\}})"
# A tag that is a number has no words in it: "1<2 and 3>2" holds none.
_ASSIGNED = r"(?:\s+[\w:.\-]+=(?:\"[^\"]*\"|'[^']*'|[^\s<>\"']+))*"
PATTERNS: dict[str, re.Pattern[str]] = {
    "tags": re.compile(
        r"<!--.*?-->|<[!?][A-Za-z][^<>]*>"
        r"|</?[A-Za-z_][\w:.\-]*(?:\s(?:[^<>\"']|\"[^\"]*\"|'[^']*')*|\s[^<>]*)?/?>"
        rf"|</?\d+{_ASSIGNED}\s*/?>"
    ),
    "variables": re.compile(f"{_BRACES}|{_NAMED}|{_PRINTF}"),
    "urls": re.compile(rf"(?<![A-Za-z0-9])(?:[A-Za-z][A-Za-z0-9+.\-]*://|www\.(?=\w)){_IN_URL}+"),
    "emails": re.compile(r"(?<![\w.+\-])[A-Za-z0-9_.+\-]+@[A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)+"),
}
_SIGN = re.compile(r"[<{%@\d]|//|www")  # no placeholder is without one
KINDS = (*PATTERNS, "numbers")
_AFTER_URL = ".,;:!?'*_~»”’…"


class Protection:
    """What to carry through: kinds of placeholders, terms that stay, terms with one translation."""

    def __init__(
        self,
        kinds: Collection[str] = KINDS,
        terms: Sequence[str] = (),
        glossary: Mapping[str, str] | Glossary | None = None,
        language: str = "",  # of the translation: numbers may be words of it
    ) -> None:
        self.patterns = {kind: pattern for kind, pattern in PATTERNS.items() if kind in kinds}
        self.numbers = "numbers" in kinds
        self.terms = Terms(terms)
        self.glossary = glossary if isinstance(glossary, Glossary) else Glossary(glossary or {})
        self.language = language

    def find(self, text: str) -> list[Span]:
        """All that must come through, in its order; no two overlap."""
        if not self.glossary and self._has_none(text):
            return []
        finders = [*self._exact_finders(), *([self.glossary.find] if self.glossary else [])]
        spans = _sweep(text, finders)
        if self.numbers:
            taken = [(span.start, span.end) for span in spans]
            free = numbers_in(text, taken)
            for n in free:
                number = text[n.start : n.end]
                spans.append(Span("numbers", n.start, n.end, number, sign_of(text, n.start) + number))
        return sorted(spans, key=lambda span: span.start)

    def exact(self, text: str) -> list[Span]:
        """What must be in a translation exactly as often as in its source: all but numbers and the glossary."""
        return [] if self._has_none(text) else _sweep(text, self._exact_finders())

    def losses(self, line: str, spans: Sequence[Span], text: str, told: Sequence[str] = ()) -> list[str]:
        """What a translation of `line` lacks or has too often; empty: everything came through.

        `told`: phrases that it was told to hold, in which there may be more than the source has.
        """
        exact = self.exact(text)
        if not exact and not spans:
            return []
        wanted = Counter(span.text for span in spans if span.kind in EXACT)
        for span in spans:
            if span.kind == "glossary":  # a translation may hold a term that stays
                wanted.update(inner.text for inner in self.exact(span.wanted))
        have = Counter(span.text for span in exact)
        phrases = standing(told, text) if told else []
        too_many = Counter(span.text for span in exact if not _overlaps(span, phrases)) - wanted
        wrong = [*(wanted - have).elements(), *too_many.elements()]
        for term, count in Counter(span.wanted for span in spans if span.kind == "glossary").items():
            wrong += [term] * (count - sum(1 for _ in occurrences(term, text)))
        numbers = [Found(span.start, span.end) for span in spans if span.kind == "numbers"]
        taken = [(span.start, span.end) for span in exact]
        places = survivors(line, numbers, text, self.language, taken)
        return wrong + [line[n.start : n.end] for n, place in zip(numbers, places, strict=True) if place is None]

    def _has_none(self, text: str) -> bool:
        """A quick look, which is all that most lines need."""
        return not self.terms.terms and _SIGN.search(text) is None

    def _exact_finders(self) -> list["Finder"]:
        return [*(_finder(kind, pattern) for kind, pattern in self.patterns.items()), self.terms.find]


def _overlaps(span: Span, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(span.start < end and start < span.end for start, end in ranges)


EXACT = (*PATTERNS, "terms")
Finder = Callable[[str, int], Span | None]


class Tag(NamedTuple):
    """What a tag does."""

    name: str
    opens: bool
    closes: bool


def tag_of(text: str) -> Tag:
    """`<b>` opens, `</b>` closes, `<br/>` and a comment do neither."""
    match = re.match(r"<(/?)([A-Za-z_][\w:.\-]*|\d+)", text)
    if match is None or text.endswith("/>") or match.group(2).lower() in VOID:
        return Tag(match.group(2).lower() if match else "", opens=False, closes=False)
    return Tag(match.group(2).lower(), opens=not match.group(1), closes=bool(match.group(1)))


# HTML's elements that have no content, and some that begin a new line: words on their two sides are two words.
VOID = frozenset(("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"))
_BLOCKS = ("p", "div", "li", "ul", "ol", "td", "th", "tr", "table", "h1", "h2", "h3", "h4", "h5", "h6", "dd", "dt")
BREAKS = VOID | frozenset(_BLOCKS)


def _sweep(text: str, finders: Sequence[Finder]) -> list[Span]:
    spans: list[Span] = []
    ahead = [finder(text, 0) for finder in finders]
    position = 0
    while True:
        for i, span in enumerate(ahead):
            if span is not None and span.start < position:
                ahead[i] = finders[i](text, position)
        found = [span for span in ahead if span is not None]
        if not found:
            return spans
        first = min(found, key=lambda span: (span.start, -span.end))
        spans.append(first)
        position = first.end


def _finder(kind: str, pattern: re.Pattern[str]) -> Finder:
    def find(text: str, start: int) -> Span | None:
        match = pattern.search(text, start)
        if match is None:
            return None
        found = _without_ending(match.group()) if kind == "urls" else match.group()
        return Span(kind, match.start(), match.start() + len(found), found, found)

    return find


def _without_ending(url: str) -> str:
    """A URL without the signs after it that belong to the sentence."""
    opening = {")": "(", "]": "["}
    while url[-1] in _AFTER_URL or (url[-1] in opening and url.count(url[-1]) > url.count(opening[url[-1]])):
        url = url[:-1]
    return url
