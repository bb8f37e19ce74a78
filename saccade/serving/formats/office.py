"""Word's and PowerPoint's files (.docx, .pptx): paragraphs of runs, each run with its formatting.

A run of one text is a pair of tags around it, whatever stands between texts is a tag by itself, and a text that comes
back outside of all runs gets one like its neighbour. Runs of the same formatting are one: Word cuts them where somebody
stopped typing. A field (a page number, a reference) stays as it is.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from saccade.errors import SaccadeError
from saccade.serving.formats.archive import Limits, translated_archive
from saccade.serving.formats.xml import encoded_xml, read_xml
from saccade.text.markup import DEEPEST, without_controls
from saccade.text.rows import Part, Piece, Row, Tag, Work, translated
from saccade.text.tags import Token, partners, xml_tokens


class Names(NamedTuple):
    """What a format calls its elements."""

    paragraph: str
    run: str
    text: str
    formatting: str  # of a run
    first: str  # in a paragraph, before all else
    last: str
    wrappers: frozenset[str]  # hold runs
    dropped: frozenset[str]  # marks of a program about the old text
    spaces: frozenset[str]  # in a run, part words
    preserved: str  # how a text says that its spaces count


_WORD = Names(
    *("w:p", "w:r", "w:t", "w:rPr", "w:pPr", ""),
    frozenset(("w:hyperlink", "w:ins", "w:smartTag", "w:fldSimple", "w:dir", "w:bdo")),
    frozenset(("w:proofErr", "w:lastRenderedPageBreak")),
    frozenset(("w:br", "w:tab", "w:cr", "w:ptab")),
    '<w:t xml:space="preserve">',
)
_SLIDES = Names(
    *("a:p", "a:r", "a:t", "a:rPr", "a:pPr", "a:endParaRPr"),
    frozenset(),
    frozenset(),
    frozenset(("a:br", "a:tab")),
    "<a:t>",
)
_FIELD = re.compile(r"w:fldCharType\s*=\s*[\"'](begin|end)[\"']")
_WORD_PARTS = re.compile(r"word/(?:document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
_SLIDE_PARTS = re.compile(r"ppt/(?:slides/slide|notesSlides/notesSlide|diagrams/data)\d+\.xml")


def translated_word(data: bytes, limits: Limits) -> Work[bytes]:
    """A .docx file with its paragraphs translated."""
    return (yield from _translated(data, limits, _WORD, _WORD_PARTS))


def translated_presentation(data: bytes, limits: Limits) -> Work[bytes]:
    """A .pptx file with its paragraphs translated."""
    return (yield from _translated(data, limits, _SLIDES, _SLIDE_PARTS))


def _translated(data: bytes, limits: Limits, names: Names, parts: re.Pattern[str]) -> Work[bytes]:
    def member(name: str, content: bytes) -> Work[bytes]:
        tokens = list(xml_tokens(read_xml(name, content, limits)))
        text = yield from translated(_Document(tokens, names).pieces(0, len(tokens)))
        return encoded_xml(text, content)

    return (yield from translated_archive(data, limits, lambda name: bool(parts.fullmatch(name)), member))


@dataclass(eq=False)
class Run(Tag):
    """The first tag of a run, and what closes it."""

    formatting: str = ""
    closing: str = ""


class _Document:
    """A member's tokens, read as paragraphs and what stands between them."""

    def __init__(self, tokens: list[Token], names: Names) -> None:
        self.tokens, self.names = tokens, names
        self.partners = partners(tokens)
        self.count = 0  # numbers that tags have had
        if 2 * len(self.partners) != sum(token.kind in ("open", "close") for token in tokens):
            raise SaccadeError("the file is damaged: its tags do not close each other; save it again")

    def pieces(self, start: int, end: int, depth: int = 0) -> list[Piece]:
        out: list[Piece] = []
        position = start
        while position < end:
            token = self.tokens[position]
            if token.kind == "open" and token.name == self.names.paragraph and depth < DEEPEST:
                stop = self._end(position)
                out += [token.raw, *self._paragraph(position + 1, stop - 1, depth + 1), self.tokens[stop - 1].raw]
                position = stop
            else:
                out.append(token.raw)
                position += 1
        return out

    def _end(self, position: int) -> int:
        """Past the element that begins there."""
        return self.partners[position] + 1 if self.tokens[position].kind == "open" else position + 1

    def _raw(self, start: int, end: int) -> str:
        return "".join(token.raw for token in self.tokens[start:end])

    def _paragraph(self, start: int, end: int, depth: int) -> list[Piece]:
        fields = self._fields(start, end)
        if fields is None:
            return self._one_by_one(start, end)
        before: list[Piece] = []
        after: list[Piece] = []
        parts: list[Part] = []
        position = start
        while position < end:
            token, stop = self.tokens[position], self._end(position)
            if position in fields:
                stop = fields[position]
                parts.append(self._alone([self._raw(position, stop)], True))
            elif token.name == self.names.first:
                before.append(self._raw(position, stop))
            elif token.name == self.names.last and self.names.last:
                after.append(self._raw(position, stop))
            else:
                self._part(position, stop, parts, depth)
            position = stop
        return [*before, *([Row(_merged(parts), self._written, spaces=False)] if parts else []), *after]

    def _fields(self, start: int, end: int) -> dict[int, int] | None:
        """Where each field begins and ends; None: one begins or ends elsewhere, so that nothing may change places."""
        found: dict[int, int] = {}
        depth = begun = 0
        position = start
        while position < end:
            stop = self._end(position)
            marks = [_FIELD.search(token.raw) for token in self.tokens[position:stop] if token.name == "w:fldChar"]
            if marks and self.tokens[position].name != self.names.run:
                return None
            for mark in marks:
                kind = mark[1] if mark else ""
                if kind == "begin":
                    begun = begun if depth else position
                    depth += 1
                elif kind == "end":
                    depth -= 1
                    if depth == 0:
                        found[begun] = stop
                if depth < 0:
                    return None
            position = stop
        return None if depth else found

    def _part(self, position: int, stop: int, parts: list[Part], depth: int) -> None:
        """Read one element of a paragraph, or of a wrapper in it."""
        token, names = self.tokens[position], self.names
        if token.name == names.run and token.kind == "open":
            self._run(position, stop, parts, depth)
        elif token.name in names.wrappers and token.kind == "open" and depth < DEEPEST:
            self.count += 1
            number = self.count
            parts.append(Tag("open", [token.raw], number))
            inner = position + 1
            while inner < stop - 1:
                self._part(inner, self._end(inner), parts, depth + 1)
                inner = self._end(inner)
            parts.append(Tag("close", [self.tokens[stop - 1].raw], number))
        elif token.name not in names.dropped and token.raw.strip():
            parts.append(self._alone(self.pieces(position, stop, depth), token.name in names.spaces))

    def _run(self, start: int, stop: int, parts: list[Part], depth: int) -> None:
        """A run as as many runs as it has things in it."""
        names = self.names
        head, closing, formatting = self.tokens[start].raw, self.tokens[stop - 1].raw, ""
        position = start + 1
        while position < stop - 1:
            token, after = self.tokens[position], self._end(position)
            if token.name == names.formatting:
                formatting = self._raw(position, after)
            elif token.name == names.text and token.kind == "open":
                self.count += 1
                text = html.unescape(self._raw(position + 1, after - 1))
                ends = self.tokens[after - 1].raw + closing
                parts += [Run("open", [head, formatting, names.preserved], self.count, False, formatting, ends)]
                parts += [text, Tag("close", [ends], self.count)]
            elif token.kind != "text" and token.name not in names.dropped:
                inside = self.pieces(position, after, depth)
                parts.append(self._alone([head, formatting, *inside, closing], token.name in names.spaces))
            position = after

    def _alone(self, raw: list[Piece], spaced: bool) -> Tag:
        self.count += 1
        return Tag("alone", raw, self.count, spaced)

    def _one_by_one(self, start: int, end: int) -> list[Piece]:
        """Each text where it stands."""
        out: list[Piece] = []
        within = False
        for token in self.tokens[start:end]:
            if token.kind == "text" and within:
                out.append(Row([html.unescape(token.raw)], self._written_text, spaces=False))
            else:
                out.append(token.raw)
            within = token.kind == "open" and token.name == self.names.text
        return out

    def _written_text(self, parts: Sequence[Part]) -> list[Piece]:
        return [_escaped(part) for part in parts if isinstance(part, str)]

    def _written(self, parts: Sequence[Part]) -> list[Piece]:
        out: list[Piece] = []
        runs = [part for part in parts if isinstance(part, Run)]
        near: Run | None = runs[0] if runs else None
        inside: int | None = None
        for part in parts:
            if isinstance(part, Tag):
                out += part.raw
                if isinstance(part, Run):
                    near, inside = part, part.number
                elif part.number == inside:
                    inside = None
            elif inside is not None or near is None:
                out.append(_escaped(part))
            elif part:
                out += [*near.raw, _escaped(part), near.closing]
        return out


def _merged(parts: list[Part]) -> list[Part]:
    """Runs side by side with the same formatting as one. A run is three parts: its tag, a text, what closes it."""
    out: list[Part] = []
    last: Run | None = None  # the run that ends with the last part
    position = 0
    while position < len(parts):
        run, text = parts[position], parts[min(position + 1, len(parts) - 1)]
        if not isinstance(run, Run) or not isinstance(text, str):
            out.append(run)
            last = None
            position += 1
            continue
        if last is not None and last.formatting == run.formatting:
            out[-2] = str(out[-2]) + text
        else:
            out += parts[position : position + 3]
            last = run
        position += 3
    return out


def _escaped(text: str) -> str:
    return html.escape(without_controls(text), quote=False)
