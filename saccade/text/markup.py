"""HTML and its kin, translated in place: markup neither gets into a translation nor out of one.

The text of a block (a paragraph, a cell, a heading) is a row: its inline tags go where the words went that they held.
Scripts, styles, code and what is marked `translate="no"` stay as they are, and so does every character of a tag but the
attributes that people read. Text comes out escaped.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from saccade.text.rows import Part, Piece, Row, Tag, Work, translated
from saccade.text.tags import RAW, Token, html_tokens, partners, xml_tokens

DEEPEST = 50  # islands within islands; deeper ones stay as they are
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Dialect:
    """What the elements of a kind of markup are to a reader. All others begin and end a row."""

    inline: frozenset[str]  # held by a row, around words of it
    untouched: frozenset[str]  # left as they are, with all that they hold
    alone: frozenset[str]  # have no content and stand between words of a row
    glued: frozenset[str] = frozenset()  # of these, no space stands for them: a word may go on after one
    islands: frozenset[str] = frozenset()  # within a row, with rows of their own (footnotes)
    attributes: frozenset[str] = frozenset()  # that people read
    rows: frozenset[str] | None = None  # where text is; None: anywhere
    xml: bool = False


_INLINE = """
a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark nobr q ruby s small span strike strong sub sup
time u
"""
_UNTOUCHED = "code pre kbd samp var tt svg math object canvas audio video"
HTML = Dialect(
    inline=frozenset(_INLINE.split()),
    untouched=RAW | set(_UNTOUCHED.split()),
    alone=frozenset(("br", "img", "input", "wbr", "embed", "area")),
    glued=frozenset(("wbr",)),
    attributes=frozenset(("title", "alt", "placeholder", "aria-label")),
)
XHTML = replace(HTML, xml=True)


def translated_html(text: str, dialect: Dialect = HTML) -> Work[str]:
    """An HTML document, or a part of one, in another language."""
    tokens = list(xml_tokens(text) if dialect.xml else html_tokens(text))
    return (yield from translated(Reading(tokens, dialect).pieces()))


class Reading:
    """Tokens read as rows and what stands between them."""

    def __init__(self, tokens: list[Token], dialect: Dialect) -> None:
        self.tokens, self.dialect = tokens, dialect
        self.partners = partners(tokens)
        self.closing = {end: start for start, end in self.partners.items()}

    def pieces(self, start: int = 0, end: int | None = None, depth: int = 0) -> list[Piece]:
        """The tokens from `start` to `end` as pieces of markup."""
        end = len(self.tokens) if end is None else end
        out: list[Piece] = []
        parts: list[Part] = []
        inside = 0 if self.dialect.rows is not None else 1  # elements around that may hold text
        position = start
        while position < end:
            token = self.tokens[position]
            whole = self._whole(position, end)
            if whole is not None and whole > position + 1 and self._stands_inline(token):
                parts.append(self._alone(position, whole, depth))
            elif whole is not None and whole > position + 1:
                self._close(parts, out)
                out.append(self._raw(position, whole))
            elif token.kind == "text" and inside:
                parts.append(html.unescape(token.raw))
            elif (part := self._inline(position, depth)) is not None and inside:
                parts.append(part)
            else:
                self._close(parts, out)
                out += self._attributes(token)
                if self.dialect.rows is not None and token.name in self.dialect.rows:
                    inside += {"open": 1, "close": -1}.get(token.kind, 0)
            position = whole or position + 1
        self._close(parts, out)
        return out

    def _whole(self, position: int, end: int) -> int | None:
        """Where an element that is one thing ends: one that stays as it is, or an island; None: it is not one."""
        token = self.tokens[position]
        if token.kind != "open":
            return None
        stays = token.name in self.dialect.untouched or _not_to_translate(token)
        if not stays and token.name not in self.dialect.islands:
            return None
        partner = self.partners.get(position)
        if partner is not None:
            return min(partner + 1, end)
        # Never closed: up to the next tag that begins a row.
        after = position + 1
        while after < end and (self.tokens[after].kind in ("text", "other") or self._stands_inline(self.tokens[after])):
            after += 1
        return after

    def _stands_inline(self, token: Token) -> bool:
        dialect = self.dialect
        if token.name in ("pre", "script", "style") and token.name in dialect.untouched:
            return token.name == "script"  # a script may stand between two words
        return token.name in dialect.inline | dialect.untouched | dialect.islands

    def _inline(self, position: int, depth: int) -> Tag | None:
        """A tag that a row can hold; None: it begins or ends one."""
        token = self.tokens[position]
        if token.kind == "other":
            return Tag("alone", [token.raw], position)
        if token.kind == "alone" and token.name in self.dialect.alone | self.dialect.inline:
            return Tag("alone", self._attributes(token), position, token.name not in self.dialect.glued)
        if token.kind == "open" and token.name in self.dialect.inline and self._holds_no_row(position):
            return Tag("open", self._attributes(token), position)
        opening = self.closing.get(position)
        if opening is not None and token.name in self.dialect.inline and self._holds_no_row(opening):
            return Tag("close", [token.raw], opening)
        return None

    def _holds_no_row(self, position: int) -> bool:
        """Whether an inline element has its partner, and nothing between them that begins a row."""
        if not hasattr(self, "_breaks"):
            self._breaks = self._count_breaks()
        partner = self.partners.get(position)
        return partner is not None and self._breaks[position] == self._breaks[partner]

    def _count_breaks(self) -> list[int]:
        """How many tokens up to each one begin or end a row."""
        counts: list[int] = []
        count = 0
        for i, token in enumerate(self.tokens):
            inline = token.kind in ("text", "other") or self._stands_inline(token) or token.name in self.dialect.alone
            lonely = token.kind in ("open", "close") and i not in self.partners and i not in self.closing
            count += not inline or lonely
            counts.append(count)
        return counts

    def _alone(self, start: int, end: int, depth: int) -> Tag:
        if self.tokens[start].name in self.dialect.islands and depth < DEEPEST:
            first = self._attributes(self.tokens[start])
            return Tag("alone", [*first, *self.pieces(start + 1, end, depth + 1)], start)
        return Tag("alone", [self._raw(start, end)], start, parts_words=True)

    def _raw(self, start: int, end: int) -> str:
        return "".join(token.raw for token in self.tokens[start:end])

    def _attributes(self, token: Token) -> list[Piece]:
        """A tag with the attributes that people read as rows of their own."""
        if token.kind not in ("open", "alone") or not self.dialect.attributes:
            return [token.raw]
        out: list[Piece] = []
        position = 0
        for name, start, end in token.attributes:
            value = token.raw[start:end]
            if name not in self.dialect.attributes or not value.strip("\"' \t\n\f\r"):
                continue
            quoted = value[1:-1] if value[0] in "\"'" else value
            out += [token.raw[position:start], Row([html.unescape(quoted)], self._written_value)]
            position = end
        return [*out, token.raw[position:]]

    def _written_value(self, parts: Sequence[Part]) -> list[Piece]:
        text = "".join(part for part in parts if isinstance(part, str))
        return ['"' + html.escape(self._clean(text)) + '"']

    def _close(self, parts: list[Part], out: list[Piece]) -> None:
        """End a row."""
        if any(isinstance(part, str) and part.strip() for part in parts):
            out.append(Row(parts.copy(), self._written))
        else:
            out += self._written(parts)
        parts.clear()

    def _written(self, parts: Sequence[Part]) -> list[Piece]:
        out: list[Piece] = []
        for part in parts:
            out += part.raw if isinstance(part, Tag) else [html.escape(self._clean(part), quote=False)]
        return out

    def _clean(self, text: str) -> str:
        return without_controls(text) if self.dialect.xml else text


def without_controls(text: str) -> str:
    """A text without the characters that XML has no place for."""
    return _NOT_XML.sub("", text)


def _not_to_translate(token: Token) -> bool:
    if "translate" not in token.raw:
        return False
    values = {name: token.raw[start:end].strip("\"'").lower() for name, start, end in token.attributes}
    return values.get("translate") == "no" or "notranslate" in values.get("class", "").split()
