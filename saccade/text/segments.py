"""Cut a text where it is too long: into sentences, and those that are still too long at commas, spaces, characters.

Sentences are found by `sentencex`, which knows the abbreviations of some three hundred languages. Nothing is lost: a
segment is a range of the text, and what stands between two of them is white space, which comes back as it was. A
placeholder is never cut.
"""

import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

import sentencex

from saccade.data.tokenizers import Tokenizer
from saccade.errors import SaccadeError
from saccade.text.alignment import Range
from saccade.text.spans import UNSPACED

_SURROGATES = re.compile("[\ud800-\udfff]")
_WHITE = re.compile(r"\s")
_LINE = re.compile(r"[^\r\n]+")
_CLAUSE = re.compile(r"[,;:–—…][\"'”’)\]]*(?=\s)|[，、；：。！？؛،][”’」』）]*")
_SPACE = re.compile(r"\s+")
_LONGEST_MEAN = 16  # characters a piece: a longer text is too long, and a megabyte need not be encoded to know
_CHARACTER = re.compile(rf"(?<=[{UNSPACED}])(?=[{UNSPACED}])")


class Limits(NamedTuple):
    """How long a segment may be."""

    pieces: int
    characters: int | None  # longer than any sentence of the training corpus; None: not known


def segments(
    text: str,
    tokenizer: Tokenizer,
    limits: Limits,
    language: str,
    always: bool = False,
    whole: Sequence[Range] = (),
    where: str = "the text",
) -> list[Range]:
    """The stretches of `text` to translate one by one, without white space around them.

    A line that fits is one; with `always`, each of its sentences is. What is too long and cannot be cut is refused.
    """
    found: list[Range] = []
    for line in _LINE.finditer(text):
        if always or not fits(line.group(), tokenizer, limits):
            for sentence in _sentences(text, line.start(), line.end(), language, whole):
                found += _cut(text, sentence, tokenizer, limits, whole, where)
        else:
            found.append(line.span())
    return [trimmed for start, end in found if (trimmed := _trimmed(text, start, end))]


def fits(text: str, tokenizer: Tokenizer, limits: Limits) -> bool:
    """Whether a text can be translated as it is."""
    if len(text) > min(limits.characters or sys.maxsize, limits.pieces * _LONGEST_MEAN):
        return False
    # A piece is at least a byte, so a short text need not be encoded to know.
    return len(text) * 4 < limits.pieces or len(tokenizer.encode(text)) <= limits.pieces


def space_between(left: str, right: str) -> str:
    """The space that two sentences need which had none between them, being of a script without."""
    joined = re.search(rf"[^\s{UNSPACED}\u3000-\u303f\uff00-\uffef]$", left) and re.match(rf"[^\W{UNSPACED}]", right)
    return " " if joined else ""


def _sentences(text: str, start: int, end: int, language: str, whole: Sequence[Range]) -> list[Range]:
    ranges: list[Range] = []
    position = begin = start
    for sentence in _segmented(language, text[start:end]):
        position += len(sentence)
        if not _within(position, whole):
            ranges.append((begin, position))
            begin = position
    if begin < end:
        ranges.append((begin, end))
    return ranges


def _segmented(language: str, text: str) -> list[str]:
    # The library (1.0.32) takes no surrogates and panics at some white space of several bytes, such as U+2028.
    plain = _WHITE.sub(" ", _SURROGATES.sub("\ufffd", text))
    try:
        return list(sentencex.segment(language, plain))
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Rust's, which is no Exception
            raise
        return [text]  # one sentence, cut where there is room


def _cut(
    text: str, sentence: Range, tokenizer: Tokenizer, limits: Limits, whole: Sequence[Range], where: str
) -> list[Range]:
    ranges: list[Range] = []
    start, end = sentence
    while not fits(text[start:end], tokenizer, limits):
        head = text[start : min(end, start + limits.pieces)]
        while len(head) < end - start and fits(head, tokenizer, limits):
            head = text[start : min(end, start + 2 * len(head))]
        place = _place(text, start, start + _furthest(head, tokenizer, limits), tokenizer, limits, whole)
        if place is None:
            shown = text[start:end][:40]
            raise SaccadeError(
                f"{where}: a sentence of {end - start:,} characters is longer than the {limits.pieces:,} pieces that "
                f"are taken, and there is no place to split it: “{shown}…”; split it by hand"
            )
        ranges.append((start, place))
        start = place
        while start < end and text[start].isspace():
            start += 1
    return [*ranges, (start, end)]


def _furthest(text: str, tokenizer: Tokenizer, limits: Limits) -> int:
    """How many characters fit, to begin with."""
    offsets = tokenizer.offsets(tokenizer.encode(text))
    fitting = offsets[limits.pieces - 1][1] if len(offsets) > limits.pieces else len(text) - 1
    return fitting if limits.characters is None else min(fitting, limits.characters)


def _place(
    text: str, start: int, furthest: int, tokenizer: Tokenizer, limits: Limits, whole: Sequence[Range]
) -> int | None:
    """The last good place to cut: after a clause of more than half of what fits, at a space, between characters."""
    while furthest > start:
        clauses = [m.end() for m in _CLAUSE.finditer(text, start, furthest) if m.end() > (start + furthest) // 2]
        spaces = [m.start() for m in _SPACE.finditer(text, start + 1, furthest + 1)]
        characters = [m.start() for m in _CHARACTER.finditer(text, start + 1, furthest + 1)]
        places = (
            place
            for places in (clauses, spaces, characters)
            for place in reversed(places)
            if start < place <= furthest and not _within(place, whole)
        )
        place = next(places, None)
        if place is None or fits(text[start:place], tokenizer, limits):
            return place
        furthest = start + (place - start) * 9 // 10  # a part may take more pieces than it did within the whole
    return None


def _within(place: int, whole: Sequence[Range]) -> bool:
    return any(start < place < end for start, end in whole)


def _trimmed(text: str, start: int, end: int) -> Range | None:
    core = text[start:end]
    first = len(core) - len(core.lstrip())
    return (start + first, start + first + len(core.strip())) if core.strip() else None
