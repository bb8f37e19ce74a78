"""Rows of text and tags, translated as one line each: the tags become numbers, and are themselves again afterwards.

A row is what a reader sees as one stretch: the content of a paragraph with its bold words and links. The model's
pipeline carries `<7>` and `</7>` through by alignment; what stands behind a number is never read by a model, and
nothing that a model writes can become a tag: whatever is not one of the row's own numbers is text. A translation whose
tags do not lie within each other as those of the source do is not taken; the texts between the tags are then translated
one by one.

Work that needs translations is a generator: it yields texts and is sent their translations, so that a command, a server
and a test drive it alike.
"""

import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar, Union

T = TypeVar("T")
Work = Generator[list[str], list[str], T]
Piece = Union[str, "Row"]  # markup as it is, or a row to translate within it

MOST_TAGS = 200  # in a row that is translated as one; placing them takes the square of their number
_SPACE = re.compile(r"[ \t\n\f\r]+")
_NUMBERED = re.compile(r"<(/?)(?:br )?(\d{1,9})(/?)>")


@dataclass(eq=False)
class Tag:
    """A tag of a row: the first or the second of a pair, or one by itself with all that it holds."""

    kind: str  # open, close, alone
    raw: list[Piece]
    number: int  # the same for the two of a pair
    parts_words: bool = False  # whether the words on its two sides are two words


Part = str | Tag


@dataclass(eq=False)
class Row:
    """Text (unescaped) and tags, and how to write them as markup."""

    parts: list[Part]
    write: Callable[[Sequence[Part]], list[Piece]]
    spaces: bool = True  # whether a line break is no more than a space
    done: list[Part] = field(default_factory=list)

    @property
    def rows_within(self) -> Iterator["Row"]:
        for part in self.parts:
            if isinstance(part, Tag):
                yield from rows_in(part.raw)


def finished(work: "Work[T]", translate: Callable[[list[str]], list[str]]) -> T:
    """Do the work with translations by `translate`."""
    try:
        texts = next(work)
        while True:
            texts = work.send(translate(texts) if texts else [])
    except StopIteration as end:
        return end.value


def together(works: Sequence["Work[T]"]) -> "Work[list[T]]":
    """Several works as one: their texts are asked for together, so that they can be translated in one batch."""
    made: dict[int, T] = {}
    answers: dict[int, list[str] | None] = dict.fromkeys(range(len(works)))
    while answers:
        asked: dict[int, list[str]] = {}
        for i, answer in answers.items():
            try:
                asked[i] = next(works[i]) if answer is None else works[i].send(answer)
            except StopIteration as end:
                made[i] = end.value
        if not asked:
            break
        found = iter((yield [text for texts in asked.values() for text in texts]))
        answers = {i: list(islice(found, len(texts))) for i, texts in asked.items()}
    return [made[i] for i in range(len(works))]


def rows_in(pieces: Sequence[Piece]) -> Iterator[Row]:
    """All rows, those within tags of others too."""
    for piece in pieces:
        if isinstance(piece, Row):
            yield piece
            yield from piece.rows_within


def rendered(pieces: Sequence[Piece]) -> str:
    """The markup, with the rows' translations in their places."""
    return "".join(piece if isinstance(piece, str) else rendered(piece.write(piece.done)) for piece in pieces)


def translated(pieces: Sequence[Piece]) -> Work[str]:
    """Translate all rows at once, and once more in parts those whose tags did not come back as they were."""
    rows = [(row, _Core(row)) for row in rows_in(pieces)]
    told = [(row, core) for row, core in rows if core.whole]
    failed = [(row, core) for row, core in rows if core.told and not core.whole]
    lines = yield [core.line for _, core in told]
    for (row, core), line in zip(told, lines, strict=True):
        found = core.read(line)
        if found is None:
            failed.append((row, core))
        else:
            row.done = [*core.before, *found, *core.after]
    if failed:
        texts = [_collapsed(part, row).strip() for row, core in failed for part in core.parts if isinstance(part, str)]
        answers = iter((yield [text for text in texts if text]))
        for row, core in failed:
            said = [_again(part, answers) if isinstance(part, str) else part for part in core.parts]
            row.done = [*core.before, *said, *core.after]
    for row, core in rows:
        if not core.told:
            row.done = row.parts
    return rendered(pieces)


def _again(text: str, answers: Iterator[str]) -> str:
    """A text between two tags, translated by itself: the white space around it stays."""
    if not text.strip():
        return text
    left, right = len(text) - len(text.lstrip()), len(text.rstrip())
    return text[:left] + next(answers).strip() + text[right:]


class _Core:
    """A row without what stands at its edges: white space, tags by themselves, pairs around all of it."""

    def __init__(self, row: Row) -> None:
        self.before: list[Part] = []
        self.after: deque[Part] = deque()
        self.parts = deque(part for part in row.parts if part != "")
        while self._peel():
            pass
        texts = [_collapsed(part, row) if isinstance(part, str) else part for part in self.parts]
        self.tags = {part.number: part for part in self.parts if isinstance(part, Tag)}
        words = "".join(part for part in texts if isinstance(part, str))
        taken = [int(number) for _, number, _ in _NUMBERED.findall(words)]
        self.first = max(taken, default=-1) + 1 if self.tags else 0
        # Numbers within the row, so that the same sentence is the same line wherever it stands.
        self.order = {number: self.first + i for i, number in enumerate(self.tags)}
        self.line = "".join(part if isinstance(part, str) else self._shown(part) for part in texts)
        self.told = bool(words.strip())
        self.whole = self.told and len(self.tags) <= MOST_TAGS

    def _peel(self) -> bool:
        """Move one thing from an edge to where it is out of the way."""
        parts = self.parts
        if not parts:
            return False
        first, last = parts[0], parts[-1]
        if isinstance(first, str) and (rest := first.lstrip()) != first:
            self.before.append(first[: len(first) - len(rest)])
            parts.popleft()
            parts.extendleft([rest] if rest else [])
        elif isinstance(last, str) and (rest := last.rstrip()) != last:
            self.after.appendleft(last[len(rest) :])
            parts.pop()
            parts.extend([rest] if rest else [])
        elif isinstance(first, Tag) and first.kind == "alone":
            self.before.append(parts.popleft())
        elif isinstance(last, Tag) and last.kind == "alone":
            self.after.appendleft(parts.pop())
        elif isinstance(first, Tag) and isinstance(last, Tag) and first.number == last.number and first is not last:
            self.before.append(parts.popleft())
            self.after.appendleft(parts.pop())
        else:
            return False
        return True

    def _shown(self, tag: Tag) -> str:
        number = self.order[tag.number]
        if tag.kind == "alone":
            return f"<br {number}/>" if tag.parts_words else f"<{number}/>"
        return f"</{number}>" if tag.kind == "close" else f"<{number}>"

    def read(self, line: str) -> list[Part] | None:
        """Text and tags of a translation; None: they do not lie within each other as those of the source do."""
        if not self.tags:
            return [line]
        known = {self._shown(part): part for part in self.parts if isinstance(part, Tag)}
        found: list[Part] = []
        position = 0
        for match in _NUMBERED.finditer(line):
            if match[0] in known:
                found += [line[position : match.start()], known[match[0]]]
                position = match.end()
        found.append(line[position:])
        nesting = _nesting(found)
        return found if nesting is not None and nesting == _nesting(self.parts) else None


def _nesting(parts: Iterable[Part]) -> dict[int, int | None] | None:
    """For each tag the pair that it is in; None: a tag is there twice, or pairs cross or are not closed."""
    within: dict[int, int | None] = {}
    open_: list[int] = []
    for part in parts:
        if isinstance(part, str):
            continue
        if part.kind == "close":
            if not open_ or open_.pop() != part.number:
                return None
            continue
        if part.number in within:
            return None
        within[part.number] = open_[-1] if open_ else None
        if part.kind == "open":
            open_.append(part.number)
    return None if open_ else within


def _collapsed(text: str, row: Row) -> str:
    return _SPACE.sub(" ", text) if row.spaces else text
