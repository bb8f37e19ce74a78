"""Markup cut into tokens, every character of it in one of them: what is text here is text to a browser.

HTML as its living standard tokenises it (section 13.2.5), as far as that decides where text begins and ends, in one
pass over the string. Where the standard lets the end of something depend on more than the text itself (a `<style>`
within `<svg>`), and the ways of reading it differ, the rest is one token that is left as it is. XML is taken for well
formed.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_WS = " \t\n\f\r"
_NAME = re.compile(r"[A-Za-z][^ \t\n\f\r/>]*")
_XML_NAME = re.compile(r"[^\W\d][\w:.\-]*")
_XML_END = re.compile(r"(?:[^<>\"']|\"[^\"]*\"|'[^']*')*>")
ATTRIBUTE = re.compile(
    rf"[{_WS}/]*(?:(?P<end>>)|(?P<name>[^{_WS}/>][^{_WS}/>=]*)"
    rf"(?:[{_WS}]*=[{_WS}]*(?P<value>\"[^\"]*\"|'[^']*'|[^{_WS}>\"'][^{_WS}>]*|(?=>)))?)"
)
_UNCLOSED = re.compile(rf"[{_WS}]*=[{_WS}]*[\"']")  # after a name: a value whose quotation mark never comes again

# Elements whose content is no markup; all of it is kept as it is.
RAW = frozenset(("script", "style", "xmp", "iframe", "noembed", "noframes", "noscript", "textarea"))
FOREIGN = frozenset(("svg", "math"))
_VOID = "area base basefont bgsound br col embed frame hr img input keygen link meta param source track wbr"
VOID = frozenset(_VOID.split())


class Token(NamedTuple):
    """A stretch of markup. `kind` is text, open, close, alone (has no content) or other (comments, raw content, …)."""

    kind: str
    raw: str
    name: str = ""  # of HTML in small letters

    @property
    def attributes(self) -> list[tuple[str, int, int]]:
        """Name, beginning and end (in `raw`, quotation marks included) of each attribute that has a value."""
        head = re.match(rf"</?[^{_WS}/>]*", self.raw)
        found: list[tuple[str, int, int]] = []
        position = head.end() if head else len(self.raw)
        while (match := ATTRIBUTE.match(self.raw, position)) and not match["end"] and match.end() > position:
            position = match.end()
            if match["value"]:
                found.append((match["name"].lower(), *match.span("value")))
        return found


def html_tokens(text: str) -> Iterator[Token]:
    """The tokens of an HTML document or of a part of one."""
    position = foreign = 0
    while position < len(text):
        token = _html_token(text, position, bool(foreign))
        yield token
        position += len(token.raw)
        if token.name in FOREIGN:
            foreign = max(foreign + {"open": 1, "close": -1}.get(token.kind, 0), 0)
        if token.kind == "open" and token.name == "plaintext":
            yield from _rest(text, position)
            return
        if token.kind != "open" or token.name not in RAW | {"title"}:
            continue
        end = _end_of_script(text, position) if token.name == "script" else _end_of(text, position, token.name)
        inside = text[position:end]
        if foreign and "<" in inside:
            yield from _rest(text, position)
            return
        if inside:
            yield Token("text" if token.name == "title" else "other", inside)
        position = end


def xml_tokens(text: str) -> Iterator[Token]:
    """The tokens of well-formed XML without a document type."""
    position = 0
    while position < len(text):
        token = _xml_token(text, position)
        yield token
        position += len(token.raw)


def partners(tokens: list[Token]) -> dict[int, int]:
    """For each tag that opens an element, the one that closes it; those without a partner are not listed."""
    found: dict[int, int] = {}
    open_: list[int] = []
    waiting: dict[str, int] = {}  # how many of a name are open: one that closes nothing is known at once
    for i, token in enumerate(tokens):
        if token.kind == "open":
            open_.append(i)
            waiting[token.name] = waiting.get(token.name, 0) + 1
        elif token.kind == "close" and waiting.get(token.name):
            while True:
                last = open_.pop()
                waiting[tokens[last].name] -= 1
                if tokens[last].name == token.name:
                    found[last] = i
                    break
    return found


def _html_token(text: str, start: int, foreign: bool) -> Token:
    if text[start] != "<":
        end = text.find("<", start)
        return Token("text", text[start : end if end >= 0 else len(text)])
    following = text[start + 1 : start + 3]
    if text.startswith("<!--", start):
        return Token("other", text[start : _end_of_comment(text, start)])
    if foreign and text.startswith("<![CDATA[", start):
        first, last = text.find(">", start), text.find("]]>", start)
        return Token("other", text[start : first + 1 if first == last + 2 and last >= 0 else len(text)])
    if following[:1] in ("!", "?") or (following[:1] == "/" and not following[1:].isascii()):
        return Token("other", text[start : _past(text, ">", start)])
    if following[:1] == "/":
        return _tag(text, start, start + 2) if following[1:].isalpha() else _bogus_end(text, start, following)
    if following[:1].isascii() and following[:1].isalpha():
        return _tag(text, start, start + 1)
    end = text.find("<", start + 1)  # a sign of its own
    return Token("text", text[start : end if end >= 0 else len(text)])


def _bogus_end(text: str, start: int, following: str) -> Token:
    """`</>` is nothing, `</ x>` a comment, and `</` at the very end is text."""
    return Token("other" if following[1:] else "text", text[start : _past(text, ">", start)])


def _tag(text: str, start: int, name_at: int) -> Token:
    name = _NAME.match(text, name_at)
    assert name is not None
    position = name.end()
    while match := ATTRIBUTE.match(text, position):
        if match["end"]:
            token = Token("open", text[start : match.end()], name[0].lower())
            if name_at - start == 2:
                return token._replace(kind="close")
            return token._replace(kind="alone") if token.name in VOID or _closes_itself(token) else token
        if match["value"] is None and _UNCLOSED.match(text, match.end("name")):
            break
        position = match.end()
    return Token("other", text[start:])  # never ends


def _closes_itself(token: Token) -> bool:
    """Whether it is `<svg/>`; the slash of `<svg a=b/>` is part of the value."""
    values = token.attributes if token.name in FOREIGN and token.raw.endswith("/>") else [("", 0, len(token.raw) - 1)]
    return not values or values[-1][2] != len(token.raw) - 1


def _end_of_comment(text: str, start: int) -> int:
    if quick := re.compile(r"<!--(?:>|->)").match(text, start):
        return quick.end()
    ends = re.compile(r"--!?>").search(text, start + 4)
    return ends.end() if ends else len(text)


def _end_of(text: str, start: int, name: str) -> int:
    found = re.compile(rf"</{name}(?=[{_WS}/>])", re.IGNORECASE).search(text, start)
    return found.start() if found else len(text)


_IN_SCRIPT = re.compile(rf"<!--|-->|<(/?)script(?=[{_WS}/>])", re.IGNORECASE)


def _end_of_script(text: str, start: int) -> int:
    """Where a script ends; within `<!-- <script> … -->` it does not."""
    escaped = twice = False
    position = start
    while found := _IN_SCRIPT.search(text, position):
        position = found.end()
        if found[0] == "<!--":
            escaped = True
            position -= 2  # its dashes may be those of the end
        elif found[0] == "-->":
            escaped = twice = False
        elif found[1]:
            if not twice:
                return found.start()
            twice = False
        elif escaped:
            twice = True
    return len(text)


def _past(text: str, sign: str, start: int) -> int:
    end = text.find(sign, start)
    return end + len(sign) if end >= 0 else len(text)


def _rest(text: str, position: int) -> Iterator[Token]:
    if position < len(text):
        yield Token("other", text[position:])


def _xml_token(text: str, start: int) -> Token:
    if text[start] != "<":
        end = text.find("<", start)
        return Token("text", text[start : end if end >= 0 else len(text)])
    for opening, closing in (("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>"), ("<!", ">")):
        if text.startswith(opening, start):
            return Token("other", text[start : _past(text, closing, start + len(opening))])
    closes = text.startswith("</", start)
    name = _XML_NAME.match(text, start + 1 + closes)
    closed = _XML_END.match(text, name.end()) if name else None
    if name is None or closed is None:
        return Token("other", text[start:])
    raw = text[start : closed.end()]
    return Token("close" if closes else "alone" if raw.endswith("/>") else "open", raw, name[0])
